"""CuPy's and Numba's own arrays, which are read by their attributes: fakes with the attributes, the interface and the
streams that the real ones have, and subclasses of them, which are read by the interface. Both have to say the same."""

from __future__ import annotations

import ctypes
import math
import sys
from types import SimpleNamespace

import hypothesis
import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest

from qpi_distill import adapters
from qpi_distill._arrays import current_stream, describe

BASE = 0x7F0000001000
PER_THREAD = "CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM"
DTYPES = ["float32", "float16", "float64", "int8", "int32", "int64", "uint8", "uint32", "bool", ml_dtypes.bfloat16]


def contiguous(shape, strides, itemsize):
    """C order, whatever the strides of dimensions with one element."""
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != itemsize:
            return False
        itemsize *= extent
    return True


def typestr(dtype):
    return "<V2" if dtype.name == "bfloat16" else dtype.str


class CuPyStream:
    def __init__(self, ptr):
        self.ptr = ptr

    def __cuda_stream__(self):
        return 0, self.ptr


class Reads:
    """How often the interface was asked for."""

    interface = 0


@pytest.fixture
def cupy(monkeypatch):
    """A module that looks like CuPy: `ndarray`, a subclass `derived`, `stream` and `version` of the interface."""
    module = SimpleNamespace(stream=CuPyStream(0), version=3, reads=Reads(), streams=[])

    class ndarray:
        __module__ = "cupy"

        def __init__(self, shape, dtype, strides=None, address=BASE, device=0):
            self.shape, self.dtype = tuple(shape), np.dtype(dtype)
            self.strides = strides or tuple(self.dtype.itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape)))
            self.size = math.prod(shape)
            self.data = SimpleNamespace(ptr=address, device_id=device)

        @property
        def __cuda_array_interface__(self):
            module.reads.interface += 1
            interface = {
                "shape": self.shape,
                "typestr": typestr(self.dtype),
                "descr": [("", typestr(self.dtype))],
                "version": module.version,
                "strides": None if contiguous(self.shape, self.strides, self.dtype.itemsize) else self.strides,
                "data": (self.data.ptr if self.size else 0, False),
            }
            if module.version == 3:
                interface["stream"] = module.stream.ptr or 1
            return interface

        def __dlpack_device__(self):
            return 2, self.data.device_id

    class derived(ndarray):
        __module__ = "elsewhere"

    def get_current_stream(device=-1):
        module.streams.append(device)
        return module.stream

    module.ndarray, module.derived = ndarray, derived
    module.cuda = SimpleNamespace(get_current_stream=get_current_stream)
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


class DevicePointer:
    """cuda.bindings' CUdeviceptr: a number, and no ctypes pointer."""

    def __init__(self, address):
        self.address = address

    def __int__(self):
        return self.address


class MemoryPointer:
    """Memory of Numba with cuda.bindings; `asked` counts the ctypes pointers that it made."""

    def __init__(self, address):
        self.device_pointer, self.asked = DevicePointer(address), 0

    @property
    def device_ctypes_pointer(self):
        self.asked += 1
        return ctypes.c_size_t(int(self.device_pointer))


class OwnedPointer:
    """A counted reference to such memory, which keeps the ctypes pointer and passes on what else it is asked."""

    def __init__(self, memory):
        self._view = memory
        self.device_ctypes_pointer = memory.device_ctypes_pointer

    def __getattr__(self, name):
        return getattr(self._view, name)


class CtypesMemory:
    """Memory of Numba's own target without cuda.bindings."""

    def __init__(self, address):
        self.device_pointer = ctypes.c_void_p(address)

    @property
    def device_ctypes_pointer(self):
        return self.device_pointer


class BindingsMemory:
    """Memory of Numba's own target with cuda.bindings, which gives no ctypes pointer at all."""

    def __init__(self, address):
        self.device_pointer = DevicePointer(address)

    @property
    def device_ctypes_pointer(self):
        return self.device_pointer


class NumbaStream:
    """`handle` is a driver object whose integer value is 0 for the default stream."""

    def __init__(self, handle):
        self.handle = handle

    def __int__(self):
        return self.handle

    def __cuda_stream__(self):
        return 0, self.handle


@pytest.fixture
def numba(monkeypatch):
    """Modules that look like Numba's: `DeviceNDArray`, and `derived`, a subclass of it."""
    module = SimpleNamespace(reads=Reads(), default_streams=0)

    class DeviceNDArray:
        def __init__(self, shape, dtype, strides=None, address=BASE, stream=0, memory=None):
            self.shape, self.dtype = tuple(shape), np.dtype(dtype)
            self.strides = strides or tuple(self.dtype.itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape)))
            self.size = math.prod(shape)
            address = address if self.size else 0
            self.gpu_data = memory(address) if memory else OwnedPointer(MemoryPointer(address))
            self.stream = stream

        @property
        def device_ctypes_pointer(self):
            return self.gpu_data.device_ctypes_pointer if self.gpu_data is not None else ctypes.c_void_p(0)

        @property
        def __cuda_array_interface__(self):
            module.reads.interface += 1
            pointer = self.device_ctypes_pointer
            return {
                "shape": self.shape,
                "strides": None if contiguous(self.shape, self.strides, self.dtype.itemsize) else self.strides,
                "data": (getattr(pointer, "value", None) or getattr(pointer, "address", 0), False),
                "typestr": typestr(self.dtype),
                "stream": int(self.stream) if self.stream != 0 else None,
                "version": 3,
            }

    class derived(DeviceNDArray):
        pass

    DeviceNDArray.__module__ = "numba.cuda.cudadrv.devicearray"
    derived.__module__ = "elsewhere"
    module.DeviceNDArray, module.derived = DeviceNDArray, derived
    monkeypatch.setitem(sys.modules, "numba.cuda.cudadrv.devicearray", module)
    config = SimpleNamespace(CUDA_PER_THREAD_DEFAULT_STREAM=0)
    module.driver = SimpleNamespace(MemoryPointer=MemoryPointer, config=config)
    monkeypatch.setitem(sys.modules, "numba.cuda.cudadrv.driver", module.driver)

    def default_stream():
        module.default_streams += 1
        return NumbaStream(0)

    monkeypatch.setitem(sys.modules, "numba.cuda", SimpleNamespace(default_stream=default_stream))
    monkeypatch.delenv(PER_THREAD, raising=False)
    return module


KINDS_OF_MEMORY = {
    "plain": MemoryPointer,
    "owned": lambda address: OwnedPointer(MemoryPointer(address)),
    "ctypes": CtypesMemory,
    "bindings": BindingsMemory,
    "none": lambda address: None,
}


def seen(array, **options):
    """What is understood of an array, or the kind of error and its words."""
    try:
        p = describe(array, "pi_grad", device=0, **options)
    except (TypeError, ValueError, BufferError, OverflowError) as error:
        return type(error), str(error)
    # A stride over a single element, or of an empty array, is never used.
    strides = [s for n, s in zip(p.shape, p.strides, strict=True) if n > 1] if math.prod(p.shape) else None
    return p.address, p.shape, strides, p.dtype, p.ordinal, p.readonly, p.stream


@st.composite
def layouts(draw):
    shape = draw(st.lists(st.integers(0, 5), max_size=4).map(tuple))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    strides = draw(st.none() | st.tuples(*[st.integers(-9, 9).map(lambda s: s * dtype.itemsize) for _ in shape]))
    if not strides:
        strides = None
    return shape, dtype, strides, draw(st.sampled_from([BASE, BASE + 2, 2**63 + 8, 0]))


fixtures_are_kept = hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])


@fixtures_are_kept
@hypothesis.given(layout=layouts(), stream=st.sampled_from([0, 1, 2, 0xBEEF]), output=st.booleans())
def test_cupy_attributes_say_what_the_interface_says(cupy, layout, stream, output):
    cupy.stream = CuPyStream(stream)
    shape, dtype, strides, address = layout
    own = seen(cupy.ndarray(shape, dtype, strides, address), output=output)
    assert own == seen(cupy.derived(shape, dtype, strides, address), output=output)


@fixtures_are_kept
@hypothesis.given(
    layout=layouts(),
    stream=st.sampled_from([None, 0, 1, 2, 0xBEEF]),
    memory=st.sampled_from(list(KINDS_OF_MEMORY)),
    output=st.booleans(),
)
def test_numba_attributes_say_what_the_interface_says(numba, layout, stream, memory, output):
    options = (*layout, 0 if stream is None else NumbaStream(stream), KINDS_OF_MEMORY[memory])
    assert seen(numba.DeviceNDArray(*options), output=output) == seen(numba.derived(*options), output=output)


def test_the_interface_is_asked_once_whether_it_names_a_stream(cupy):
    for n in range(5):
        assert describe(cupy.ndarray((n, 3), "float32"), device=0).shape == (n, 3)
    assert cupy.reads.interface == 1


@pytest.mark.parametrize("memory", ["plain", "owned", "ctypes"])
def test_numba_is_not_asked_for_the_interface(numba, memory):
    array = numba.DeviceNDArray((2, 3), "float32", memory=KINDS_OF_MEMORY[memory])
    assert describe(array, device=0).ordinal == -2
    assert numba.reads.interface == 0


def test_plain_memory_of_numba_makes_no_ctypes_pointer(numba):
    array = numba.DeviceNDArray((2, 3), "float32", memory=MemoryPointer)
    assert describe(array, device=0).address == BASE
    assert array.gpu_data.asked == 0


@pytest.mark.parametrize(("setting", "handle"), [(None, 1), ("0", 1), ("1", 2), ("2", 2), ("yes", 1)])
def test_the_default_stream_of_numba_with_cuda_python(numba, monkeypatch, setting, handle):
    if setting is not None:
        monkeypatch.setenv(PER_THREAD, setting)
    numba.driver.config.CUDA_PER_THREAD_DEFAULT_STREAM = 2 - handle  # is not asked
    assert current_stream([numba.DeviceNDArray((2,), "float32") for _ in range(5)], 0) == (handle, None)
    assert numba.default_streams == 0


@pytest.mark.parametrize(("setting", "handle"), [(0, 1), (1, 2)])
def test_the_default_stream_of_numba_with_ctypes(numba, monkeypatch, setting, handle):
    monkeypatch.setenv(PER_THREAD, str(1 - setting))  # is not asked
    numba.driver.USE_NV_BINDING = False
    numba.driver.config.CUDA_PER_THREAD_DEFAULT_STREAM = setting
    assert current_stream([numba.DeviceNDArray((2,), "float32", memory=CtypesMemory)], 0) == (handle, None)
    assert numba.default_streams == 0


def test_numba_whose_driver_is_elsewhere_is_asked_for_its_default_stream(numba, monkeypatch):
    monkeypatch.delitem(sys.modules, "numba.cuda.cudadrv.driver")
    handle, owner = current_stream([numba.DeviceNDArray((2,), "float32")], 0)
    assert (handle, type(owner), numba.default_streams) == (1, NumbaStream, 1)


@pytest.mark.parametrize("number", [1, 2, 0xBEEF])
def test_the_stream_that_an_array_of_numba_is_bound_to(numba, monkeypatch, number):
    monkeypatch.setenv(PER_THREAD, "1")
    stream = NumbaStream(number)
    assert current_stream([numba.DeviceNDArray((2,), "float32", stream=stream)], 0) == (number, stream)
    assert numba.default_streams == 0


def test_cupy_that_exports_no_stream(cupy):
    cupy.version, cupy.stream = 2, CuPyStream(0xBEEF)
    assert describe(cupy.ndarray((2, 3), "float32"), device=0).stream is None
    assert describe(cupy.derived((2, 3), "float32"), device=0).stream is None


def test_cupy_streams_are_those_of_the_arrays_gpu_and_of_the_moment(cupy):
    array = cupy.ndarray((2, 3), "float32", device=3)
    for handle in (7, 8, 0):
        cupy.stream = CuPyStream(handle)
        assert describe(array, device=3).stream == (handle or 1)
    assert set(cupy.streams) == {3}


def test_one_question_for_the_stream_of_a_call(cupy):
    cupy.stream = CuPyStream(0x77)
    handle, owner = current_stream([cupy.ndarray((2,), "float32") for _ in range(5)], 0)
    assert (handle, owner) == (0x77, cupy.stream)
    assert cupy.streams == [0]


@pytest.mark.parametrize("device", [1, -1])
def test_cupy_arrays_of_another_gpu_are_left_to_the_interface(cupy, device):
    array = cupy.ndarray((2, 3), "float32", device=1)
    if device == 1:
        assert describe(array, device=1).ordinal == 1
        with pytest.raises(BufferError, match=r"pi_grad: is on cuda:1, but the ISV is on cuda:0"):
            describe(array, "pi_grad", device=0)
    else:
        with pytest.raises(BufferError, match=r"pi_grad: is on cuda:1, but the ISV is on cpu"):
            describe(array, "pi_grad", device=-1)


def test_managed_memory_of_cupy_is_left_to_the_interface(cupy):
    array = cupy.ndarray((2, 3), "float32", device=1)
    type(array).__dlpack_device__ = lambda self: (13, 1)
    assert describe(array, device=0).ordinal == -2


@pytest.mark.parametrize("dtype", [">f4", "complex64", "datetime64[s]", "S4", [("x", "f4")]])
def test_dtypes_that_are_none_of_ours_fail_alike(cupy, numba, dtype):
    for own, derived in ((cupy.ndarray, cupy.derived), (numba.DeviceNDArray, numba.derived)):
        assert seen(own((2,), dtype)) == seen(derived((2,), dtype))


def test_shapes_that_are_no_tuples_are_left_to_the_interface(cupy):
    array = cupy.ndarray((2, 3), "float32")
    array.shape = [2, 3]
    assert describe(array, device=0).shape == (2, 3)
    assert cupy.reads.interface == 2


def test_a_class_that_only_has_the_name_is_not_taken_for_the_librarys_own(cupy):
    impostor = type("ndarray", (), {"__module__": "cupy"})
    assert not adapters.find(impostor).owns(impostor)
    assert adapters.find(cupy.ndarray).owns(cupy.ndarray)
    assert not adapters.find(cupy.derived).owns(cupy.derived)
