# cython: language_level=3, freethreading_compatible=True
"""Array arguments: from whatever holds an array to a pointer with dtype, shape, strides and device.

Tried in this order: the DLPack C exchange API (no Python code runs, nothing is allocated), `qpi.pointer`, the buffer
protocol, `__cuda_array_interface__`, `__dlpack__`. Nothing is ever copied.
"""

from cpython.buffer cimport (
    Py_buffer,
    PyBUF_RECORDS_RO,
    PyBuffer_Release,
    PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from cpython.object cimport PyObject, PyTypeObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from libc.stdint cimport int32_t, int64_t, uintptr_t

from qpi_distill._dlpack cimport (
    DL_BFLOAT,
    DL_BOOL,
    DL_COMPLEX,
    DL_CPU,
    DL_CUDA,
    DL_CUDA_HOST,
    DL_CUDA_MANAGED,
    DL_FLOAT,
    DL_INT,
    DL_IS_COPIED,
    DL_MAJOR,
    DL_MINOR,
    DL_READ_ONLY,
    DL_UINT,
    DLExchangeAPI,
    DLManagedTensor,
    DLManagedTensorVersioned,
    DLTensor,
)
from qpi_distill._streams cimport LEGACY_STREAM, stream_handle
from qpi_distill.c_api cimport QPI_DEVICE_CPU

import sys

import numpy as np

from qpi_distill import adapters

cdef extern from *:
    bint multiply_overflows "__builtin_mul_overflow"(int64_t a, int64_t b, int64_t* product) nogil

cdef extern from "Python.h":
    PyTypeObject* Py_TYPE(object) noexcept

cdef object _ndarray = np.ndarray
cdef PyTypeObject* _NDARRAY = <PyTypeObject*> _ndarray
cdef PyTypeObject* _POINTER = <PyTypeObject*> Pointer

# Type of array -> Framework. Entries are only ever added, so that a borrowed one stays good.
cdef dict _frameworks = {}

cdef dict _KINDS = {"f": DL_FLOAT, "i": DL_INT, "u": DL_UINT, "b": DL_BOOL, "c": DL_COMPLEX}
cdef dict _FORMATS = {
    "f": DL_FLOAT, "d": DL_FLOAT, "e": DL_FLOAT, "g": DL_FLOAT, "?": DL_BOOL,
    "b": DL_INT, "h": DL_INT, "i": DL_INT, "l": DL_INT, "q": DL_INT, "n": DL_INT,
    "B": DL_UINT, "H": DL_UINT, "I": DL_UINT, "L": DL_UINT, "Q": DL_UINT, "N": DL_UINT, "c": DL_UINT,
    "Zf": DL_COMPLEX, "Zd": DL_COMPLEX, "Zg": DL_COMPLEX,
}
cdef dict _DTYPES = {
    "float32": DT_FLOAT32, "float16": DT_FLOAT16, "bfloat16": DT_BFLOAT16, "float64": DT_FLOAT64, "int8": DT_INT8,
    "int32": DT_INT32, "int64": DT_INT64, "uint8": DT_UINT8, "uint32": DT_UINT32, "bool": DT_BOOL,
}
cdef str _LITTLE = "<" if sys.byteorder == "little" else ">"


# ---- what an array is, in words --------------------------------------------------------------------------------------

cdef str dtype_name(int32_t dtype):
    """The usual name of a dtype."""
    cdef int code = dtype >> 8
    cdef int bits = dtype & 255
    if code == DL_BOOL and bits == 8:
        return "bool"
    names = {DL_INT: "int", DL_UINT: "uint", DL_FLOAT: "float", DL_BFLOAT: "bfloat", DL_COMPLEX: "complex"}
    return f"{names[code]}{bits}" if code in names else f"DLPack type {code} of {bits} bits"


cdef str device_name(int32_t device):
    """Name of a device as arguments spell it."""
    if device == QPI_DEVICE_CPU:
        return "cpu"
    return "cuda" if device == GPU_UNKNOWN else f"cuda:{device}"


cdef str shape_text(const int64_t* shape, int32_t ndim):
    """A shape as Python prints it."""
    return repr(tuple([shape[i] for i in range(ndim)]))


cdef bint is_packed(const Array* array) noexcept nogil:
    """Whether the array is in C order without gaps. Dimensions of one element may have any stride."""
    cdef int64_t expected = 1
    cdef int32_t i
    for i in range(array.ndim - 1, -1, -1):
        if array.shape[i] == 0:
            return True
    for i in range(array.ndim - 1, -1, -1):
        if array.shape[i] != 1:
            if array.strides[i] != expected:
                return False
            expected *= array.shape[i]
    return True


cdef int64_t element_count(const Array* array, str name) except -1:
    """Number of elements; a shape that cannot be is an error."""
    cdef int64_t count = 1
    cdef int32_t i
    cdef bint empty = False
    cdef bint overflow = False
    for i in range(array.ndim):
        if array.shape[i] < 0:
            raise ValueError(f"{name}: negative extent in shape {shape_text(array.shape, array.ndim)}")
        empty = empty or array.shape[i] == 0
        overflow = overflow or multiply_overflows(count, array.shape[i], &count)
    if empty:
        return 0
    if overflow:
        raise OverflowError(f"{name}: shape {shape_text(array.shape, array.ndim)} has 2^63 elements or more")
    return count


# ---- filling the struct ----------------------------------------------------------------------------------------------

cdef int _check_ndim(int64_t ndim, str name) except -1:
    if ndim > MAX_NDIM:
        raise ValueError(f"{name}: {ndim} dimensions, at most {MAX_NDIM} are supported")
    return 0


cdef void _fill_packed_strides(Array* out) noexcept:
    cdef int64_t stride = 1
    cdef int32_t i
    for i in range(out.ndim - 1, -1, -1):
        out.strides[i] = stride
        if out.shape[i] > 0 and multiply_overflows(stride, out.shape[i], &stride):
            stride = 0  # such a shape is refused when its elements are counted


cdef int _fill_byte_stride(Array* out, int32_t i, int64_t stride, int64_t itemsize, str name) except -1:
    """Store a stride that is given in bytes."""
    if stride % itemsize:
        if out.shape[i] > 1:
            raise ValueError(f"{name}: stride of {stride} bytes is no multiple of the item size {itemsize}")
        stride = 0
    out.strides[i] = stride // itemsize
    return 0


cdef int _fill_dltensor(const DLTensor* tensor, str name, Array* out) except -1:
    cdef int32_t i
    cdef int32_t kind = tensor.device.device_type
    _check_ndim(tensor.ndim, name)
    if tensor.dtype.lanes != 1:
        raise TypeError(f"{name}: vector types ({tensor.dtype.lanes} lanes) are not supported")
    if kind == DL_CUDA:
        out.device = tensor.device.device_id
    elif kind == DL_CPU or kind == DL_CUDA_HOST:
        out.device = QPI_DEVICE_CPU
    elif kind == DL_CUDA_MANAGED:
        out.device = GPU_UNKNOWN
    else:
        raise BufferError(f"{name}: is on a device of DLPack type {kind}; expected the CPU or CUDA")
    out.data = <char*> tensor.data + tensor.byte_offset if tensor.data != NULL else NULL
    out.dtype = tensor.dtype.code << 8 | tensor.dtype.bits
    out.ndim = tensor.ndim
    out.readonly = False
    out.stream = 0
    for i in range(tensor.ndim):
        out.shape[i] = tensor.shape[i]
    if tensor.strides == NULL:
        _fill_packed_strides(out)
    else:
        for i in range(tensor.ndim):
            out.strides[i] = tensor.strides[i]
    return 0


# ---- the C exchange API ----------------------------------------------------------------------------------------------

cdef class _Managed:
    """Owner of a tensor that a producer exported in C."""
    cdef DLManagedTensorVersioned* tensor

    def __dealloc__(self):
        if self.tensor != NULL and self.tensor.deleter != NULL:
            self.tensor.deleter(self.tensor)


cdef int _not_exported(object obj, str name, object error) except -1:
    """Say which argument it was that its library could not export: a meta, sparse or quantised tensor."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    kind = f"{type(obj).__module__}.{type(obj).__qualname__}"
    raise BufferError(f"{name}: {kind} has no plain memory: {reason}") from error


cdef object _read_exchange(object obj, str name, bint output, Framework framework, Array* out):
    cdef DLTensor tensor
    cdef _Managed managed
    if framework.api.dltensor_from_py_object_no_sync != NULL and (framework.writable or not output):
        try:
            framework.api.dltensor_from_py_object_no_sync(<void*> obj, &tensor)
        except Exception as error:
            _not_exported(obj, name, error)
        _fill_dltensor(&tensor, name, out)
        if framework.lazy and (not is_packed(out) or element_count(out, name) == 1):
            framework.adapter.refuse_lazy(obj, name)
        return None
    # The borrowed tensor has no flags: where an output might be read-only, the owned one tells.
    managed = _Managed.__new__(_Managed)
    try:
        framework.api.managed_tensor_from_py_object_no_sync(<void*> obj, &managed.tensor)
    except Exception as error:
        _not_exported(obj, name, error)
    _fill_dltensor(&managed.tensor.dl_tensor, name, out)
    _take_flags(managed.tensor, name, out)
    return managed


cdef int _take_flags(const DLManagedTensorVersioned* tensor, str name, Array* out) except -1:
    if tensor.version.major != DL_MAJOR:
        raise BufferError(f"{name}: DLPack version {tensor.version.major} is not supported, only {DL_MAJOR} is")
    if tensor.flags & DL_IS_COPIED:
        raise BufferError(f"{name}: its DLPack export is a copy; pass an array that can be exported as it is")
    out.readonly = (tensor.flags & DL_READ_ONLY) != 0
    return 0


# ---- the buffer protocol ---------------------------------------------------------------------------------------------

cdef class _Export:
    """Holder of an exported buffer, so that its owner cannot resize it meanwhile."""
    cdef Py_buffer view
    cdef bint held

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef int _fill_buffer(const Py_buffer* view, str name, Array* out) except -1:
    cdef int32_t i
    cdef char order = c"@"
    cdef const char* text = "B"
    if view.format != NULL:
        text = view.format
    _check_ndim(view.ndim, name)
    if text[0] in b"@=<>!":
        order = text[0]
        text += 1
    code = _FORMATS.get(text.decode("ascii", "replace"))
    if code is None:
        raise TypeError(f"{name}: buffer format {view.format.decode('ascii', 'replace')!r} is not supported")
    if view.itemsize > 1 and (order == c">" or order == c"!" if _LITTLE == "<" else order == c"<"):
        raise TypeError(f"{name}: byte-swapped ({view.format.decode('ascii')}); convert it to the native byte order")
    out.data = <char*> view.buf
    out.dtype = <int32_t> code << 8 | <int32_t> (view.itemsize * 8)
    out.ndim = view.ndim
    out.device = QPI_DEVICE_CPU
    out.readonly = view.readonly
    out.stream = 0
    for i in range(view.ndim):
        out.shape[i] = view.shape[i]
    if view.strides == NULL:
        _fill_packed_strides(out)
    else:
        for i in range(view.ndim):
            _fill_byte_stride(out, i, view.strides[i], view.itemsize, name)
    return 0


cdef int _read_numpy(object obj, str name, Array* out) except -1:
    """Read an ndarray. The buffer is released at once: the array itself is what keeps its memory."""
    cdef Py_buffer view
    try:
        PyObject_GetBuffer(obj, &view, PyBUF_RECORDS_RO)
    except (ValueError, BufferError, TypeError):
        # NumPy has no buffer format for dtypes of other libraries; of these only ml_dtypes' bfloat16 is ours.
        if obj.dtype.name != "bfloat16":
            raise TypeError(f"{name}: dtype {obj.dtype.name} is not supported") from None
        PyObject_GetBuffer(obj.view("uint16"), &view, PyBUF_RECORDS_RO)
        try:
            _fill_buffer(&view, name, out)
        finally:
            PyBuffer_Release(&view)
        out.dtype = DT_BFLOAT16
        return 0
    try:
        _fill_buffer(&view, name, out)
    finally:
        PyBuffer_Release(&view)
    return 0


cdef object _read_buffer(object obj, str name, Array* out):
    cdef _Export export = _Export.__new__(_Export)
    PyObject_GetBuffer(obj, &export.view, PyBUF_RECORDS_RO)
    export.held = True
    _fill_buffer(&export.view, name, out)
    return export


# ---- __cuda_array_interface__ ----------------------------------------------------------------------------------------

cdef int32_t _interface_dtype(object obj, str typestr, str name) except -1:
    """The dtype that a typestr means. 0: only another protocol can tell."""
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


cdef bint _read_interface(object obj, str name, object interface, Array* out) except -1:
    """Read a __cuda_array_interface__, version 2 or 3. False: the dtype has to come from DLPack."""
    cdef int32_t i
    cdef int32_t dtype
    if not isinstance(interface, dict):
        raise TypeError(f"{name}: __cuda_array_interface__ is {type(interface).__name__}, expected dict")
    try:
        version, shape, typestr = interface["version"], interface["shape"], interface["typestr"]
        address, readonly = interface["data"]
    except (KeyError, TypeError, ValueError) as error:
        raise TypeError(f"{name}: __cuda_array_interface__ is incomplete: {error!r}") from None
    if version < 2:
        raise TypeError(f"{name}: version {version} of __cuda_array_interface__ is not supported, 2 and 3 are")
    if interface.get("mask") is not None:
        raise BufferError(f"{name}: masked arrays are not supported; pass legal_actions or row_weights instead")
    dtype = _interface_dtype(obj, typestr, name)
    if dtype == 0:
        return False
    stream = interface.get("stream")
    if stream is None:
        out.stream = 0
    elif stream == 0:
        raise ValueError(f"{name}: stream 0 in __cuda_array_interface__ is ambiguous and not allowed by the protocol")
    else:
        out.stream = stream_handle(int(stream))
    _check_ndim(len(shape), name)
    out.data = <char*> <uintptr_t> (address or 0)
    out.dtype = dtype
    out.ndim = <int32_t> len(shape)
    out.readonly = bool(readonly)
    out.device = _interface_device(obj)
    for i in range(out.ndim):
        out.shape[i] = shape[i]
    strides = interface.get("strides")
    if strides is None:
        _fill_packed_strides(out)
    elif len(strides) != out.ndim:
        raise ValueError(f"{name}: __cuda_array_interface__ has {len(strides)} strides for {out.ndim} dimensions")
    else:
        for i in range(out.ndim):
            _fill_byte_stride(out, i, strides[i], (dtype & 255) // 8, name)
    return True


cdef int32_t _interface_device(object obj) except? -1:
    """The GPU an array is on. The interface does not tell; DLPack's device query, where there is one, does."""
    query = getattr(obj, "__dlpack_device__", None)
    if query is not None:
        kind, ordinal = query()
        if int(kind) == DL_CUDA:
            return int(ordinal)
    return GPU_UNKNOWN


# ---- __dlpack__ ------------------------------------------------------------------------------------------------------

cdef object _read_dlpack(object obj, str name, Reader* reader, Array* out):
    cdef DLManagedTensorVersioned* versioned
    cdef DLManagedTensor* plain
    kind, ordinal = obj.__dlpack_device__()
    kind = int(kind)
    options = {}
    if kind == DL_CUDA or kind == DL_CUDA_MANAGED:
        _check_device(GPU_UNKNOWN if kind == DL_CUDA_MANAGED else int(ordinal), name, reader)
        # The producer makes this stream wait for its own work. -1: whoever asks will not touch the elements.
        if reader.stream == 0 and reader.device != ANY_DEVICE:
            raise ValueError(f"{name}: pass stream=..., so that its producer can order its work before ours")
        options["stream"] = reader.stream if reader.stream else -1
    try:
        capsule = obj.__dlpack__(max_version=(DL_MAJOR, DL_MINOR), **options)
    except TypeError:  # a producer older than DLPack 1.0
        capsule = obj.__dlpack__(**options)
    # The capsule keeps its name: it stays the owner and calls the deleter when it is dropped.
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        versioned = <DLManagedTensorVersioned*> PyCapsule_GetPointer(capsule, "dltensor_versioned")
        _take_flags(versioned, name, out)
        readonly = out.readonly
        _fill_dltensor(&versioned.dl_tensor, name, out)
        out.readonly = readonly
    elif PyCapsule_IsValid(capsule, "dltensor"):
        plain = <DLManagedTensor*> PyCapsule_GetPointer(capsule, "dltensor")
        _fill_dltensor(&plain.dl_tensor, name, out)
    else:
        raise BufferError(f"{name}: __dlpack__ gave {capsule!r}, expected a DLPack capsule")
    return capsule


# ---- reading any of them ---------------------------------------------------------------------------------------------

cdef int _check_device(int32_t device, str name, const Reader* reader) except -1:
    if reader.device == ANY_DEVICE or device == reader.device or (device == GPU_UNKNOWN and reader.device >= 0):
        return 0
    raise BufferError(f"{name}: is on {device_name(device)}, but the ISV is on {device_name(reader.device)}")


cdef object _read_other(object obj, str name, Framework framework, Reader* reader, Array* out):
    """Everything but the exchange API, NumPy and qpi.pointer. Returns what keeps the memory, or None."""
    cdef object failure = None
    adapter = framework.adapter if framework is not None else None
    prefer_dlpack = adapter is not None and adapter.prefers_dlpack
    if PyObject_CheckBuffer(obj):
        if isinstance(obj, _ndarray):
            if np.ma.isMaskedArray(obj):
                raise BufferError(f"{name}: masked arrays are not supported; pass legal_actions or row_weights instead")
            _read_numpy(obj, name, out)
            return None
        try:
            return _read_buffer(obj, name, out)
        except (BufferError, ValueError, TypeError) as error:
            failure = error
    if not prefer_dlpack or not hasattr(obj, "__dlpack__"):
        try:
            interface = obj.__cuda_array_interface__
        except AttributeError:
            interface = None
        if interface is not None and _read_interface(obj, name, interface, out):
            return None
    if hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__"):
        return _read_dlpack(obj if adapter is None else adapter.exported(obj), name, reader, out)
    if failure is not None:
        raise failure
    raise TypeError(
        f"{name}: {type(obj).__module__}.{type(obj).__qualname__} is not an array; expected one with the buffer "
        "protocol, __cuda_array_interface__ or __dlpack__, or qpi.pointer(address, shape, ...)"
    )


cdef object read_array(object obj, str name, bint output, Reader* reader, Array* out):
    """Read an argument and check what can be said of it alone. Returns what keeps its memory beside itself, or None."""
    cdef PyTypeObject* kind = Py_TYPE(obj)
    cdef Framework framework = None
    cdef object keep = None
    if kind == _NDARRAY:
        _read_numpy(obj, name, out)
    elif kind == _POINTER:
        out[0] = (<Pointer> obj).array
    else:
        if kind != reader.type:
            framework = framework_of(obj)
            reader.framework = <PyObject*> framework if framework is not None else NULL
            reader.type = kind
        if reader.framework != NULL:
            framework = <Framework> reader.framework
        if framework is not None and framework.api != NULL:
            keep = _read_exchange(obj, name, output, framework, out)
        else:
            keep = _read_other(obj, name, framework, reader, out)
        if output:
            # Autograd would not see the write; asking for the attribute imports nothing.
            if getattr(obj, "requires_grad", False) is True:
                raise BufferError(f"{name}: requires grad; write to a tensor that autograd does not track, such as "
                                  "param.grad or zeros_like(logits)")
            if framework is not None and framework.immutable:
                raise BufferError(f"{name}: arrays of {framework.adapter.name} are immutable")
    _check_device(out.device, name, reader)
    if out.readonly and output:
        raise BufferError(f"{name}: is read-only")
    if out.data == NULL and element_count(out, name) > 0:
        raise BufferError(f"{name}: null pointer for shape {shape_text(out.shape, out.ndim)}")
    return keep


# ---- frameworks ------------------------------------------------------------------------------------------------------

cdef const DLExchangeAPI* _exchange_api(type cls) except? NULL:
    """The C exchange API of a type, or NULL where it has none of our major version."""
    cdef const DLExchangeAPI* api
    capsule = getattr(cls, "__dlpack_c_exchange_api__", None)
    if capsule is None or not PyCapsule_IsValid(capsule, "dlpack_exchange_api"):
        return NULL
    api = <const DLExchangeAPI*> PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
    while api != NULL and api.header.version.major != DL_MAJOR:
        api = <const DLExchangeAPI*> api.header.prev_api
    return api


cdef Framework framework_of(object array):
    """What is known about the type of an array, or None. Learned once per type."""
    cdef type cls = type(array)
    cdef object known = _frameworks.get(cls)
    cdef Framework framework
    if known is not None:
        return <Framework> known
    framework = Framework.__new__(Framework)
    framework.api = _exchange_api(cls)
    framework.adapter = adapters.find(cls)
    if framework.api == NULL and framework.adapter is None:
        return None
    if framework.adapter is not None:
        framework.null_is_default = framework.adapter.null_is_default
        framework.writable = framework.adapter.always_writable
        framework.immutable = framework.adapter.immutable
        framework.lazy = framework.adapter.lazy
    return <Framework> _frameworks.setdefault(cls, framework)


cdef class Framework:
    cdef object current_stream(self, object array, int32_t device, uintptr_t* handle):
        """The stream that the library works on now (0: not known). Returns what owns it, or None."""
        cdef void* stream = NULL
        handle[0] = 0
        if self.api != NULL and self.api.current_work_stream != NULL:
            self.api.current_work_stream(DL_CUDA, device, &stream)
            handle[0] = <uintptr_t> stream
            if stream == NULL and self.null_is_default:
                handle[0] = LEGACY_STREAM
            if handle[0]:
                return None
        if self.adapter is None:
            return None
        owner = self.adapter.current_stream(array, device)
        if owner is None:
            return None
        handle[0] = stream_handle(owner)
        return owner


cdef object work_stream(PyObject** arrays, int count, int32_t device, bint required, uintptr_t* handle,
                        PyObject** source):
    """The current stream of the library that the arrays come from. Returns what owns it, or None."""
    cdef PyTypeObject* last = NULL
    cdef PyTypeObject* kind
    cdef Framework framework
    cdef object owner = None
    cdef object found
    cdef uintptr_t current
    cdef int i
    handle[0] = 0
    source[0] = NULL
    for i in range(count):
        if arrays[i] == NULL:
            continue
        kind = Py_TYPE(<object> arrays[i])
        if kind == last or kind == _NDARRAY or kind == _POINTER:
            continue
        last = kind
        framework = framework_of(<object> arrays[i])
        if framework is None:
            continue
        found = framework.current_stream(<object> arrays[i], device, &current)
        if current == 0 or current == handle[0]:
            continue
        if handle[0]:
            raise ValueError("stream: the arrays come from libraries whose current streams differ; pass stream=...")
        handle[0] = current
        owner = found
        source[0] = <PyObject*> framework
    if handle[0] == 0 and required:
        raise ValueError(
            "stream: the current stream of the library that these arrays come from is not known; pass stream=..."
        )
    return owner


# ---- raw pointers ----------------------------------------------------------------------------------------------------

def dtype_code(dtype) -> int:
    """Return the code of a dtype given by name, as a NumPy dtype or type, or as a torch dtype.

    Raises
    ------
    TypeError
        If it is none of float32, float16, bfloat16, float64, bool and the integers of 8, 32 and 64 bits.
    """
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", str(dtype))
    code = _DTYPES.get(name.rpartition(".")[2])
    if code is None:
        raise TypeError(f"dtype {dtype!r} is not supported; expected one of {', '.join(_DTYPES)}")
    return code


cdef class Pointer:
    """An address with dtype, shape and device: made by `qpi.pointer`, accepted wherever an array is.

    Parameters
    ----------
    address : int
        Address of the first element.
    shape : sequence of int
    dtype : str or dtype
    device : int
        -1 for the CPU, or the ordinal of a GPU.
    strides : sequence of int, optional
        In elements; None: C order.
    readonly : bool
    owner : object
        Kept alive as long as this object is.
    """
    cdef Array array
    cdef readonly object owner

    def __init__(self, address, shape, dtype, int32_t device, strides, bint readonly, owner):
        cdef Py_ssize_t i
        _check_ndim(len(shape), "pointer")
        if address < 0:
            raise ValueError(f"pointer: address {address} is negative")
        self.array.data = <char*> <uintptr_t> address
        self.array.dtype = dtype_code(dtype)
        self.array.ndim = <int32_t> len(shape)
        self.array.device = device
        self.array.readonly = readonly
        self.array.stream = 0
        for i in range(self.array.ndim):
            self.array.shape[i] = shape[i]
        if strides is None:
            _fill_packed_strides(&self.array)
        elif len(strides) != self.array.ndim:
            raise ValueError(f"pointer: {len(strides)} strides for {self.array.ndim} dimensions")
        else:
            for i in range(self.array.ndim):
                self.array.strides[i] = strides[i]
        if element_count(&self.array, "pointer") > 0 and self.array.data == NULL:
            raise BufferError(f"pointer: null pointer for shape {tuple(shape)}")
        self.owner = owner

    @property
    def address(self) -> int:
        """Address of the first element."""
        return <uintptr_t> self.array.data

    @property
    def shape(self) -> tuple:
        """Extent of each dimension."""
        return tuple([self.array.shape[i] for i in range(self.array.ndim)])

    @property
    def strides(self) -> tuple:
        """Stride of each dimension, in elements."""
        return tuple([self.array.strides[i] for i in range(self.array.ndim)])

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.array.ndim

    @property
    def dtype(self) -> str:
        """Name of the dtype."""
        return dtype_name(self.array.dtype)

    @property
    def device(self) -> str:
        """Where the memory is: "cpu", "cuda:0" or, where a protocol did not tell, "cuda"."""
        return device_name(self.array.device)

    @property
    def ordinal(self) -> int:
        """Where the memory is: -1 for the CPU, the ordinal of a GPU, or -2 for a GPU that is not known."""
        return self.array.device

    @property
    def readonly(self) -> bool:
        """Whether it may only be read."""
        return self.array.readonly

    @property
    def packed(self) -> bool:
        """Whether it is in C order without gaps."""
        return is_packed(&self.array)

    @property
    def stream(self):
        """The stream that the producer works on, or None."""
        return self.array.stream if self.array.stream else None

    cdef dict _interface(self):
        code = {DL_FLOAT: "f", DL_INT: "i", DL_UINT: "u", DL_BOOL: "b"}.get(self.array.dtype >> 8)
        if code is None:
            raise AttributeError("the array interfaces have no type code for bfloat16")
        itemsize = (self.array.dtype & 255) // 8
        return {
            "shape": self.shape,
            "typestr": f"{_LITTLE if itemsize > 1 else '|'}{code}{itemsize}",
            "data": (self.address, bool(self.array.readonly)),
            "strides": None if is_packed(&self.array) else tuple([s * itemsize for s in self.strides]),
            "version": 3,
        }

    @property
    def __cuda_array_interface__(self) -> dict:
        """The memory for libraries that read CUDA arrays."""
        if self.array.device == QPI_DEVICE_CPU:
            raise AttributeError("memory of the CPU has no __cuda_array_interface__")
        return self._interface()

    @property
    def __array_interface__(self) -> dict:
        """The memory for NumPy."""
        if self.array.device != QPI_DEVICE_CPU:
            raise AttributeError("memory of a GPU has no __array_interface__")
        return self._interface()

    def __repr__(self):
        return f"<qpi.pointer 0x{self.address:x} {self.dtype}{list(self.shape)} on {self.device}>"


def describe(obj, str name="array", bint output=False, device=None, stream=None) -> Pointer:
    """Read an array of any library and return what was understood, as a pointer that keeps the array alive.

    Parameters
    ----------
    obj : array
    name : str
        What error messages call it.
    output : bool
        Whether it has to be writable.
    device : int, optional
        Where it has to be; None: anywhere.
    stream : int, optional
        Handle of the stream that will use it; producers that can will order their own work before it.
    """
    cdef Reader reader
    cdef Pointer pointer = Pointer.__new__(Pointer)
    reader.type = NULL
    reader.framework = NULL
    reader.device = ANY_DEVICE if device is None else <int32_t> device
    reader.stream = 0 if stream is None else <uintptr_t> stream
    pointer.owner = (obj, read_array(obj, name, output, &reader, &pointer.array))
    return pointer


def current_stream(arrays, int32_t device):
    """Return (handle, owner) of the current stream of the library that some arrays come from."""
    cdef PyObject* pointers[8]
    cdef PyObject* source
    cdef uintptr_t handle
    cdef int i
    items = tuple(arrays)[:8]
    for i in range(len(items)):
        pointers[i] = <PyObject*> items[i] if items[i] is not None else NULL
    owner = work_stream(pointers, <int> len(items), device, True, &handle, &source)
    return handle, owner
