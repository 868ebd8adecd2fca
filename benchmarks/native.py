"""Compiles and calls native.cu."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from .results import Unavailable

if TYPE_CHECKING:
    from .timing import Timing

SOURCE = Path(__file__).with_name("native.cu")
SEED_FILES = ("rl_q_pi_distill_grad.cu", "rl_q_distill_lambda_controller.cu")


def find_nvcc() -> str:
    """The CUDA compiler: CUDACXX, PATH, CUDA_HOME, the usual folder."""
    named = os.environ.get("CUDACXX")
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    for found in (named, shutil.which("nvcc"), *(f"{home}/bin/nvcc" for home in homes if home)):
        if found and (shutil.which(found) or Path(found).is_file()):
            return found
    raise Unavailable("nvcc was not found (set CUDACXX, or put it on PATH)")


def seed_sources(folder: Path | None) -> list[Path]:
    """The seed's two files in a folder, or an empty list."""
    if folder is None:
        return []
    files = [folder.resolve() / name for name in SEED_FILES]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise Unavailable(f"{folder} does not hold {' and '.join(missing)}")
    return files


class Native:
    """The compiled library.

    Parameters
    ----------
    work : Path
        Where it is built; a build of the same sources found there is used again.
    capability : tuple of int
        Of the GPU.
    seeds : Path, optional
        Folder with the seed kernels.
    """

    def __init__(self, work: Path, capability: tuple[int, int], seeds: Path | None = None):
        sources = seed_sources(seeds)
        nvcc = find_nvcc()
        arch = f"sm_{capability[0]}{capability[1]}"
        digest = hashlib.sha256(f"{nvcc} {arch}".encode())
        for path in (SOURCE, *sources):
            digest.update(path.read_bytes())
        library = work / f"native-{digest.hexdigest()[:16]}.so"
        if not library.exists():
            work.mkdir(parents=True, exist_ok=True)
            beside = library.with_suffix(f".{os.getpid()}.so")
            command = [nvcc, "-O3", "-std=c++17", f"-arch={arch}", "-shared", "-Xcompiler=-fPIC"]
            for macro, path in zip(("QPI_SEED_GRAD", "QPI_SEED_CONTROLLER"), sources, strict=False):
                command.append(f'-D{macro}="{path}"')
            # Wheels of nvcc before 13.2 do not look for their own libraries where they are.
            beside_nvcc = Path(nvcc).resolve().parent.parent / "lib"
            if (beside_nvcc / "libcudart_static.a").exists():
                command.append(f"-L{beside_nvcc}")
            done = subprocess.run(
                [*command, "-o", str(beside), str(SOURCE)], capture_output=True, text=True, check=False, timeout=120
            )
            if done.returncode != 0:
                raise Unavailable(f"nvcc failed: {(done.stderr or done.stdout).strip()[-1500:]}")
            beside.replace(library)
        self.library = ctypes.CDLL(str(library))
        self.library.qpi_bench_launches.argtypes = [*[ctypes.c_int] * 4, ctypes.POINTER(ctypes.c_double)]
        if sources:
            self.library.qpi_bench_seed_step.argtypes = [*[ctypes.c_void_p] * 5, ctypes.c_int, ctypes.c_void_p]

    def launches_time(self, launches: int, overlap: bool, calls: int, batches: int) -> Timing:
        """Host time of this many bare launches, as C makes them."""
        microseconds = (ctypes.c_double * batches)()
        error = self.library.qpi_bench_launches(launches, calls, batches, int(overlap), microseconds)
        if error:
            raise RuntimeError(f"qpi_bench_launches: CUDA error {error}")
        from .timing import Timing  # needs the package, which gpu_check.py does not

        return Timing.of(list(microseconds))

    def seed_step(self, q: int, pi: int, support: int, bus: int, grad: int, rows: int, stream: int) -> None:
        """Both seed kernels on a stream."""
        error = self.library.qpi_bench_seed_step(q, pi, support, bus, grad, rows, stream)
        if error:
            raise RuntimeError(f"qpi_bench_seed_step: CUDA error {error}")
