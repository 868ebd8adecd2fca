"""Pull a policy toward what a distributional critic knows, on the device, inside the training step.

    import qpi_distill as qpi

    isv = qpi.ISV(lam=0.1, tau=1.0, kl_target=0.05)
    op = qpi.Distiller(actions=11, support=qpi.linspace(-10, 10, 21), isv=isv, reduction="mean")
    op.step(q_logits, pi_logits, pi_grad)
    isv.read()

Arrays come from NumPy, torch, CuPy, JAX (inputs), Numba or anything with DLPack, a CUDA array interface or a buffer, or
are raw pointers (`pointer`). Importing this package imports neither a framework nor CUDA.
"""

from os import environ as _environ

from . import _core, errors
from ._log import log_library as _log_library
from .arrays import linspace, pointer
from .distiller import Distiller, Statistic
from .errors import CaptureError, CudaError, DeviceError, FaultError, QpiError
from .functions import distill_grad, info, lambda_controller, seed_distill_grad, seed_lambda_controller, step
from .isv import ISV, ISVValues
from .layout import Layout
from .paths import get_cmake_dir, get_include, get_library, get_library_dir, get_pkgconfig_dir, get_seed_fatbin
from .recorder import Recorder

__version__ = _core.version()

__all__ = [
    "ISV",
    "CaptureError",
    "CudaError",
    "DeviceError",
    "Distiller",
    "FaultError",
    "ISVValues",
    "Layout",
    "QpiError",
    "Recorder",
    "Statistic",
    "__version__",
    "distill_grad",
    "errors",
    "get_cmake_dir",
    "get_include",
    "get_library",
    "get_library_dir",
    "get_pkgconfig_dir",
    "get_seed_fatbin",
    "info",
    "lambda_controller",
    "linspace",
    "pointer",
    "seed_distill_grad",
    "seed_lambda_controller",
    "step",
]

_log_library(__version__)
if _environ.get("QPI_DISTILL_NVTX") == "1":
    from . import nvtx as _nvtx

    _nvtx.enable()
