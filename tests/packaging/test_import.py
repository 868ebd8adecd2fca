"""`import qpi_distill` on a machine without a GPU: it works, it is quick, and it touches no device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolchain import run

SMOKE = """
import numpy as np
import qpi_distill as qpi

isv = qpi.ISV(lam=1.0, tau=1.0, device="cpu")
q = np.array([[[0, -40], [0, 0], [0, 40]]], np.float32)
pi = np.array([[1, 0, -1]], np.float32)
grad = np.zeros_like(pi)
qpi.step(q, pi, grad, support=[-1, 1], isv=isv, reduction="sum", value_scale="none")
assert np.allclose(grad, [[0.575210383, 0, -0.575210383]], atol=2e-6, rtol=0), grad
assert abs(isv.read().kl_ema - 1.150420765) < 3e-6
"""


def python(program, **env):
    return run([sys.executable, "-c", program], env={**os.environ, **env}, cwd=Path(sys.executable).parent)


@pytest.mark.parametrize("visible", [None, ""], ids=["as-is", "no-visible-device"])
def test_smoke_on_the_cpu(visible):
    python(SMOKE, **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}))


def test_asking_for_a_gpu_names_what_is_missing():
    program = """
import qpi_distill as qpi
try:
    qpi.ISV(device="cuda")
except qpi.errors.DeviceError as error:
    print("DeviceError:", error)
"""
    output = python(program, CUDA_VISIBLE_DEVICES="")
    assert "DeviceError:" in output
    assert any(word in output.lower() for word in ("driver", "gpu", "device", "cuda")), output


def test_no_device_is_opened():
    program = """
import os
import qpi_distill
for fd in os.listdir("/proc/self/fd"):
    if os.path.islink(f"/proc/self/fd/{fd}"):
        assert "/dev/nvidia" not in os.readlink(f"/proc/self/fd/{fd}")
with open("/proc/self/maps") as maps:
    assert "libcuda.so" not in maps.read()
"""
    python(program)


def test_nothing_heavy_is_imported():
    program = """
import sys
import qpi_distill
heavy = {"cuda", "torch", "cupy", "jax", "numba", "ml_dtypes", "rich", "matplotlib", "gymnasium", "minatar", "scipy"}
heavy |= {"nvtx", "prometheus_client"}
print(sorted(heavy & set(sys.modules)))
"""
    assert python(program).strip() == "[]"


def test_import_time():
    """Within 0.15 s of what NumPy takes. Processor time, and the best of several, because the machine is shared."""

    def seconds(module):
        child = subprocess.Popen([sys.executable, "-c", f"import {module}"])
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0
        return usage.ru_utime + usage.ru_stime

    measured = [(seconds("qpi_distill"), seconds("numpy")) for _ in range(8)]
    assert min(ours for ours, _ in measured) < min(numpy for _, numpy in measured) + 0.15, measured
