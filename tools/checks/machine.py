"""What this machine has: GPU, driver, CUDA tools."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76  # CUdevice_attribute


@dataclass(frozen=True)
class Gpu:
    """The first GPU that this process sees."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    count: int
    driver: str
    cuda: str

    @property
    def architecture(self) -> str:
        """For CMAKE_CUDA_ARCHITECTURES: machine code for this GPU alone."""
        return f"{self.capability[0]}{self.capability[1]}-real"


def find_gpu() -> Gpu | str:
    """The GPU, or why there is none. Creates no context."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver was found (libcuda.so.1)"
    status = cuda.cuInit(0)
    if status != 0:
        return f"the NVIDIA driver answers with error {status}"

    def number(function, *arguments, kind=ctypes.c_int) -> int:
        out = kind()
        return out.value if function(ctypes.byref(out), *arguments) == 0 else 0

    count = number(cuda.cuDeviceGetCount)
    if count == 0:
        return "the NVIDIA driver shows no GPU"
    device = number(cuda.cuDeviceGet, 0)
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, 256, device)
    capability = (
        number(cuda.cuDeviceGetAttribute, CAPABILITY_MAJOR, device),
        number(cuda.cuDeviceGetAttribute, CAPABILITY_MINOR, device),
    )
    version = number(cuda.cuDriverGetVersion)
    return Gpu(
        name=name.value.decode(),
        capability=capability,
        memory_bytes=number(cuda.cuDeviceTotalMem_v2, device, kind=ctypes.c_size_t),
        count=count,
        driver=driver_version(),
        cuda=f"{version // 1000}.{version % 1000 // 10}",
    )


def driver_version() -> str:
    """As the driver calls itself ("580.159.04"), or an empty string."""
    program = shutil.which("nvidia-smi")
    if program:
        command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            done = None
        if done is not None and done.returncode == 0 and done.stdout.strip():
            return done.stdout.split()[0]
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return found[1] if found else ""


def find_tool(name: str, nvcc: str | None) -> str | None:
    """A program of the CUDA toolkit: on PATH, beside nvcc, in the usual folder, in a folder of its own there."""
    homes = [Path(nvcc).resolve().parents[1]] if nvcc else []
    homes.append(Path("/usr/local/cuda"))
    folders = [home / folder for home in homes for folder in ("bin", name)]
    for found in (shutil.which(name), *(folder / name for folder in folders)):
        if found and Path(found).is_file():
            return str(found)
    return None


def nvcc_version(nvcc: str | None) -> str:
    """The version of the compiler ("13.0.88"), or an empty string."""
    if nvcc is None:
        return ""
    try:
        done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"V(\d+\.\d+\.\d+)", done.stdout)
    return found[1] if found else ""
