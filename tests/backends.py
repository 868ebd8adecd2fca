"""Where a test's arrays live: in NumPy's memory, or on a GPU behind raw pointers.

The GPU side uses the driver alone (cuda-core and cuda-bindings, which the package needs anyway), so that everything
that takes a ``backend`` runs on any GPU machine, whatever frameworks it has.
"""

from __future__ import annotations

import ctypes
import functools

import numpy as np

try:
    import ml_dtypes

    BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
except ImportError:
    BFLOAT16 = None

DTYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": BFLOAT16}


class CSummary(ctypes.Structure):
    """qpi_summary of the C header."""

    _fields_ = tuple(
        (name, ctypes.c_double)
        for name in (
            "weight",
            "loss",
            "target_entropy",
            "policy_entropy",
            "uniform_entropy",
            "agreement",
            "pi_at_qstar",
            "overlap",
        )
    )


class CRecord(ctypes.Structure):
    """qpi_record of the C header."""

    _fields_ = (
        ("weighted_kl", ctypes.c_double),
        ("weight", ctypes.c_double),
        ("weighted_variance", ctypes.c_double),
        ("rows", ctypes.c_int64),
        ("skipped", ctypes.c_int64),
        ("clipped", ctypes.c_int64),
        ("faults", ctypes.c_uint32),
        ("calls", ctypes.c_uint32),
        ("summary", CSummary),
    )


@functools.cache
def gpu_count() -> tuple[int, str]:
    """How many GPUs the driver offers, and why there are none. Creates no context."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0, "no NVIDIA driver here"
    count = ctypes.c_int()
    status = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    return (count.value, "no GPU here") if status == 0 else (0, f"the driver answers with error {status}")


@functools.cache
def built_with_cuda() -> bool:
    import qpi_distill as qpi

    return bool(qpi.info()["gpu"]["built"])


def gpu_missing(needed: int = 1) -> str | None:
    """Why tests that need this many GPUs cannot run, or None."""
    count, why = gpu_count()
    if count < needed:
        return why if count == 0 else f"needs {needed} GPUs, found {count}"
    return None if built_with_cuda() else "the library was built without CUDA"


def extent(array: np.ndarray) -> tuple[int, int]:
    """First byte of an array, and the number of bytes up to its last one."""
    low = high = array.__array_interface__["data"][0]
    if array.size:
        for n, step in zip(array.shape, array.strides, strict=True):
            low, high = low + min(0, (n - 1) * step), high + max(0, (n - 1) * step)
        high += array.itemsize
    return low, high - low


class Cpu:
    """NumPy arrays as they are."""

    name = device = "cpu"
    stream = None

    @property
    def kernels(self):
        """Instruction sets that this machine has: what can be forced."""
        import qpi_distill as qpi

        return tuple(qpi.info()["cpu"]["kernels"])

    def put(self, array):
        return array

    def get(self, array):
        return array

    def pointer(self, array):
        import qpi_distill as qpi

        return qpi.pointer(array.ctypes.data, array.shape, array.dtype.name, device="cpu", owner=array)

    def peek(self, address: int, nbytes: int) -> bytes:
        return ctypes.string_at(int(address), nbytes)

    def poke(self, address: int, data: bytes) -> None:
        ctypes.memmove(int(address), data, len(data))

    def record(self, isv) -> CRecord:
        return CRecord.from_buffer_copy(self.peek(isv.record, ctypes.sizeof(CRecord)))

    def sync(self) -> None:
        pass


class Memory:
    """A piece of GPU memory that frees itself."""

    def __init__(self, nbytes: int, device: int):
        from cuda.bindings import driver

        self._driver = driver
        self.nbytes = nbytes
        self.device = device
        status, address = driver.cuMemAlloc(max(nbytes, 1))
        check(status)
        self.address = int(address)

    def __del__(self):
        self._driver.cuMemFree(self.address)

    def write(self, offset: int, source: int, nbytes: int) -> None:
        """Return when the bytes are there: a copy from pageable memory alone may still be on its way."""
        if nbytes:
            check(*self._driver.cuMemcpyHtoD(self.address + offset, source, nbytes))
            check(*self._driver.cuStreamSynchronize(0))

    def read(self, offset: int, nbytes: int) -> bytearray:
        out = bytearray(nbytes)
        if nbytes:
            target = (ctypes.c_char * nbytes).from_buffer(out)
            check(*self._driver.cuMemcpyDtoH(ctypes.addressof(target), self.address + offset, nbytes))
        return out


def check(status, *_) -> None:
    if int(status) != 0:
        raise RuntimeError(f"the CUDA driver answers {status!r}")


class Cuda:
    """Arrays on a GPU: the bytes of a NumPy array's extent, at the same alignment, behind ``qpi.pointer``."""

    name = "cuda"

    @property
    def kernels(self):
        """Kernels that can be forced."""
        import qpi_distill as qpi

        return tuple(qpi.info()["gpu"]["kernels"])

    def __init__(self, ordinal: int = 0):
        from cuda.core import Device

        self.ordinal = ordinal
        self.device = f"cuda:{ordinal}"
        self.core = Device(ordinal)
        self.core.set_current()
        self.stream = self.core.create_stream()

    def put(self, array):
        import qpi_distill as qpi

        if array is None:
            return None
        array = np.asarray(array)
        low, nbytes = extent(array)
        lead = low % 256
        memory = Memory(lead + nbytes, self.ordinal)
        memory.write(lead, low, nbytes)
        start = array.__array_interface__["data"][0] - low
        strides = tuple(step // array.itemsize for step in array.strides)
        pointer = qpi.pointer(
            memory.address + lead + start,
            array.shape,
            "uint8" if array.dtype == bool else array.dtype.name,
            device=self.ordinal,
            strides=strides,
            owner=memory,
        )
        self._places[id(pointer)] = (pointer, memory, lead, start, array)
        return pointer

    @functools.cached_property
    def _places(self) -> dict:
        return {}

    def get(self, pointer) -> np.ndarray:
        _, memory, lead, start, array = self._places[id(pointer)]
        self.sync()
        _, nbytes = extent(array)
        data = memory.read(lead, nbytes)
        return np.ndarray(array.shape, array.dtype, buffer=data, offset=start, strides=array.strides)

    def pointer(self, array):
        return self.put(array)

    def peek(self, address: int, nbytes: int) -> bytes:
        from cuda.bindings import driver

        self.sync()
        out = ctypes.create_string_buffer(nbytes)
        check(*driver.cuMemcpyDtoH(ctypes.addressof(out), int(address), nbytes))
        return out.raw

    def poke(self, address: int, data: bytes) -> None:
        from cuda.bindings import driver

        self.core.sync()
        source = ctypes.create_string_buffer(data, len(data))
        check(*driver.cuMemcpyHtoD(int(address), ctypes.addressof(source), len(data)))
        check(*driver.cuStreamSynchronize(0))

    def record(self, isv) -> CRecord:
        return CRecord.from_buffer_copy(self.peek(isv.record, ctypes.sizeof(CRecord)))

    def sync(self) -> None:
        self.stream.sync()


def make(name: str):
    return Cpu() if name == "cpu" else Cuda(int(name.partition(":")[2] or 0))
