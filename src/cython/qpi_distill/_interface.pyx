# cython: language_level=3, freethreading_compatible=True
"""Arrays that show their memory by `__cuda_array_interface__`.

CuPy's and Numba's own arrays are read by the attributes that their interface is made of: building and taking apart a
dictionary for each array costs more than the launch.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uintptr_t

from qpi_distill._dlpack cimport DL_BOOL, DL_COMPLEX, DL_CUDA, DL_FLOAT, DL_INT, DL_UINT
from qpi_distill._streams cimport stream_handle
from qpi_distill._strided cimport (
    DT_BFLOAT16,
    GPU_UNKNOWN,
    MAX_NDIM,
    Array,
    check_ndim,
    fill_byte_stride,
    fill_packed_strides,
)

import sys

import numpy as np

cdef extern from "Python.h":
    PyObject* PyList_GetItem(object items, Py_ssize_t i) except NULL
    PyObject* PyTuple_GetItem(object items, Py_ssize_t i) except NULL
    int64_t PyLong_AsLongLong(PyObject* number) except? -1

cdef dict _KINDS = {"f": DL_FLOAT, "i": DL_INT, "u": DL_UINT, "b": DL_BOOL, "c": DL_COMPLEX}
cdef str _LITTLE = "<" if sys.byteorder == "little" else ">"

# NumPy's own dtypes are one object each: these are found without hashing. Kept alive by the list.
cdef list _SINGLETONS = [np.dtype(name) for name in (
    "float32", "bool", "uint8", "int8", "float16", "float64", "int32", "int64", "uint32", "uint64"
)]
cdef enum:
    SINGLETONS = 10
cdef (PyObject*)[SINGLETONS] _objects
cdef int32_t[SINGLETONS] _codes

# The codes of all others that were met and are known, such as ml_dtypes' bfloat16.
cdef dict _more_codes = {}


# ---- the interface ---------------------------------------------------------------------------------------------------

cdef int _malformed(str name, str field, object value, str expected) except -1:
    raise TypeError(f"{name}: {field!r} of __cuda_array_interface__ is {value!r}, expected {expected}")


cdef int64_t _integer(object value, str name, str field, object whole, str expected) except? -1:
    """An entry of the interface that has to be an integer of 64 bits."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        _malformed(name, field, whole, expected)
    try:
        return value.__index__()
    except OverflowError:
        raise OverflowError(f"{name}: {field!r} of __cuda_array_interface__ is {whole!r}, beyond 64 bits") from None


cdef int32_t _interface_dtype(object obj, object typestr, str name) except -1:
    """The dtype that a typestr means. 0: only another protocol can tell."""
    if not isinstance(typestr, str):
        _malformed(name, "typestr", typestr, "str")
    if len(typestr) < 3 or typestr[0] not in "<>|=" or not typestr[2:].isdigit():
        raise TypeError(f"{name}: typestr {typestr!r} of __cuda_array_interface__ is not supported")
    itemsize = int(typestr[2:])
    if typestr[0] in "<>" and typestr[0] != _LITTLE and itemsize > 1:
        raise TypeError(f"{name}: byte-swapped ({typestr}); convert it to the native byte order")
    # The interface has no code for bfloat16: producers send void or even float16. The object's own dtype tells.
    if typestr[1:] in ("V2", "f2") and str(getattr(obj, "dtype", "")).rpartition(".")[2] == "bfloat16":
        return DT_BFLOAT16
    if typestr[1] == "V":
        if hasattr(obj, "__dlpack__"):
            return 0
        raise TypeError(
            f"{name}: typestr {typestr!r} of __cuda_array_interface__ does not say what the elements are; "
            "pass it through DLPack, or as qpi.pointer(address, shape, dtype='bfloat16', device=...)"
        )
    if typestr[1] not in _KINDS or itemsize > 31:
        raise TypeError(f"{name}: typestr {typestr!r} of __cuda_array_interface__ is not supported")
    return <int32_t> _KINDS[typestr[1]] << 8 | <int32_t> itemsize * 8


cdef bint read_interface(object obj, str name, object interface, Array* out) except -1:
    """Read a __cuda_array_interface__, version 2 or 3. False: the dtype has to come from DLPack."""
    cdef int32_t i
    cdef int32_t dtype
    if not isinstance(interface, dict):
        raise TypeError(f"{name}: __cuda_array_interface__ is {type(interface).__name__}, expected dict")
    for key in ("version", "shape", "typestr", "data"):
        if key not in interface:
            raise TypeError(f"{name}: __cuda_array_interface__ is incomplete: it has no {key!r}")
    shape, data, version = interface["shape"], interface["data"], interface["version"]
    if _integer(version, name, "version", version, "an integer") < 2:
        raise TypeError(f"{name}: version {version} of __cuda_array_interface__ is not supported, 2 and 3 are")
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        _malformed(name, "data", data, "a pair of address and whether it is read-only")
    address, readonly = data
    if interface.get("mask") is not None:
        raise BufferError(f"{name}: masked arrays are not supported; pass legal_actions or row_weights instead")
    dtype = _interface_dtype(obj, interface["typestr"], name)
    if dtype == 0:
        return False
    stream = interface.get("stream")
    if stream is None:
        out.stream = 0
    elif isinstance(stream, bool) or not hasattr(stream, "__index__"):
        _malformed(name, "stream", stream, "an integer or None")
    elif stream == 0:
        raise ValueError(f"{name}: stream 0 in __cuda_array_interface__ is ambiguous and not allowed by the protocol")
    elif not 0 < stream <= <uintptr_t> -1:
        raise ValueError(f"{name}: stream {stream} in __cuda_array_interface__ is not a stream handle")
    else:
        out.stream = stream_handle(int(stream))
    if not isinstance(shape, (tuple, list)):
        _malformed(name, "shape", shape, "a tuple of integers")
    check_ndim(len(shape), name)
    if address is None:
        address = 0
    if isinstance(address, bool) or not hasattr(address, "__index__") or not 0 <= address <= <uintptr_t> -1:
        _malformed(name, "data", data, "an address first")
    out.data = <char*> <uintptr_t> address
    out.dtype = dtype
    out.ndim = <int32_t> len(shape)
    out.readonly = bool(readonly)
    out.device = _interface_device(obj)
    for i in range(out.ndim):
        out.shape[i] = _integer(shape[i], name, "shape", shape, "a tuple of integers")
    strides = interface.get("strides")
    if strides is None:
        fill_packed_strides(out)
        return True
    if not isinstance(strides, (tuple, list)):
        _malformed(name, "strides", strides, "a tuple of integers, or None")
    if len(strides) != out.ndim:
        raise ValueError(f"{name}: __cuda_array_interface__ has {len(strides)} strides for {out.ndim} dimensions")
    for i in range(out.ndim):
        fill_byte_stride(
            out, i, _integer(strides[i], name, "strides", strides, "a tuple of integers"), (dtype & 255) // 8, name)
    return True


cdef int32_t _interface_device(object obj) except? -1:
    """The GPU an array is on. The interface does not tell; DLPack's device query, where there is one, does."""
    query = getattr(obj, "__dlpack_device__", None)
    if query is not None:
        kind, ordinal = query()
        if int(kind) == DL_CUDA:
            return int(ordinal)
    return GPU_UNKNOWN


# ---- the same from attributes ----------------------------------------------------------------------------------------

cdef int32_t _plain_code(object dtype) except -1:
    """The code of a native dtype of a kind that we have a code for."""
    return <int32_t> _KINDS[dtype.kind] << 8 | <int32_t> dtype.itemsize * 8


cdef int32_t _code_of(object dtype) except -1:
    """The code of a NumPy dtype; 0 where the interface has to be asked what it is."""
    cdef int i
    for i in range(SINGLETONS):
        if _objects[i] == <PyObject*> dtype:
            return _codes[i]
    known = _more_codes.get(dtype)
    if known is not None:
        return <int32_t> known
    if getattr(dtype, "name", None) == "bfloat16":
        code = <int32_t> DT_BFLOAT16
    elif dtype.isnative and dtype.kind in _KINDS and dtype.itemsize < 32:
        code = _plain_code(dtype)
    else:
        return 0
    _more_codes[dtype] = code
    return code


cdef int _learn_singletons() except -1:
    cdef int i
    for i in range(SINGLETONS):
        _objects[i] = PyList_GetItem(_SINGLETONS, i)
        _codes[i] = _plain_code(_SINGLETONS[i])
    return 0


_learn_singletons()


cdef bint _fill_dimensions(object shape, object strides, int64_t itemsize, Array* out) except -1:
    """Take over shape and strides in bytes. False: they are something else."""
    cdef Py_ssize_t ndim
    cdef Py_ssize_t i
    cdef int64_t stride
    if type(shape) is not tuple or type(strides) is not tuple:
        return False
    ndim = len(<tuple> shape)
    if len(<tuple> strides) != ndim or ndim > MAX_NDIM:
        return False
    out.ndim = <int32_t> ndim
    for i in range(ndim):
        out.shape[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i))
        stride = PyLong_AsLongLong(PyTuple_GetItem(strides, i))
        if stride % itemsize:
            return False
        out.strides[i] = stride // itemsize
    return True


cdef bint _read_cupy(object obj, int32_t device, uintptr_t stream, Array* out) except -1:
    cdef int32_t i
    data = obj.data
    out.device = data.device_id
    out.dtype = _code_of(obj.dtype)
    if out.dtype == 0 or out.device != device:
        return False  # another GPU, or managed memory that lives there: the interface and DLPack tell which
    out.data = <char*> <uintptr_t> data.ptr
    out.stream = stream
    if not _fill_dimensions(obj.shape, obj.strides, (out.dtype & 255) // 8, out):
        return False
    for i in range(out.ndim):
        if out.shape[i] == 0:
            out.data = NULL  # the interface says so too
    return True


cdef bint _numba_address(object memory, object plain_memory, Array* out) except -1:
    """Take over the address of gpu_data."""
    if type(memory) is plain_memory:
        # The array's own pointer would be made for us, in Python.
        out.data = <char*> <uintptr_t> int(memory.device_pointer)
        return True
    pointer = getattr(memory, "device_ctypes_pointer", None)
    address = getattr(pointer, "value", pointer)
    if pointer is None or address is pointer:
        return False
    out.data = <char*> <uintptr_t> address if address is not None else NULL
    return True


cdef bint _read_numba(object obj, object plain_memory, Array* out) except -1:
    out.dtype = _code_of(obj.dtype)
    if out.dtype == 0 or not _numba_address(obj.gpu_data, plain_memory, out):
        return False
    out.device = GPU_UNKNOWN
    stream = obj.stream
    if type(stream) is int and stream == 0:  # not bound to a stream
        out.stream = 0
    else:
        number = int(stream)
        if number == 0:
            return False
        out.stream = stream_handle(number)
    return _fill_dimensions(obj.shape, obj.strides, (out.dtype & 255) // 8, out)


cdef bint read_attributes(Attributes attributes, object obj, int32_t device, uintptr_t stream, object plain_memory,
                          Array* out) except -1:
    """Read an array of exactly the library's own class. False: only the interface can say what it is.

    Parameters
    ----------
    attributes : Attributes
        Of which library.
    device : int
        Where the array has to be, the ordinal of a GPU.
    stream : int
        What CuPy's interface would name as the stream; 0 for none.
    plain_memory : type or None
        Numba's class of memory whose attribute `device_pointer` is the address.
    """
    out.readonly = False
    if attributes == CUPY_ATTRIBUTES:
        return _read_cupy(obj, device, stream, out)
    return _read_numba(obj, plain_memory, out)
