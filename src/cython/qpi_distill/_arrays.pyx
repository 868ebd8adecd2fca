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
from libc.stdint cimport int32_t, uintptr_t

from qpi_distill._dlpack cimport (
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
from qpi_distill._interface cimport (
    CUPY_ATTRIBUTES,
    NO_ATTRIBUTES,
    NUMBA_ATTRIBUTES,
    read_attributes,
    read_interface,
)
from qpi_distill._pointer cimport Pointer
from qpi_distill._streams cimport LEGACY_STREAM, stream_handle
from qpi_distill._strided cimport (
    DT_BFLOAT16,
    GPU_UNKNOWN,
    Array,
    check_ndim,
    copy_array,
    device_name,
    element_count,
    fill_byte_stride,
    fill_packed_strides,
    is_packed,
    is_single,
    shape_text,
)
from qpi_distill.c_api cimport QPI_DEVICE_CPU

import sys

import numpy as np

from qpi_distill import adapters

cdef extern from "Python.h":
    PyTypeObject* Py_TYPE(object) noexcept

cdef object _ndarray = np.ndarray
cdef PyTypeObject* _NDARRAY = <PyTypeObject*> _ndarray
cdef PyTypeObject* _POINTER = <PyTypeObject*> Pointer

# Type of array -> Framework. Entries are only ever added, so that a borrowed one stays good.
cdef dict _frameworks = {}

cdef dict _FORMATS = {
    "f": DL_FLOAT, "d": DL_FLOAT, "e": DL_FLOAT, "g": DL_FLOAT, "?": DL_BOOL,
    "b": DL_INT, "h": DL_INT, "i": DL_INT, "l": DL_INT, "q": DL_INT, "n": DL_INT,
    "B": DL_UINT, "H": DL_UINT, "I": DL_UINT, "L": DL_UINT, "Q": DL_UINT, "N": DL_UINT, "c": DL_UINT,
    "Zf": DL_COMPLEX, "Zd": DL_COMPLEX, "Zg": DL_COMPLEX,
}
cdef str _LITTLE = "<" if sys.byteorder == "little" else ">"


# ---- DLPack tensors --------------------------------------------------------------------------------------------------

cdef int _fill_dltensor(const DLTensor* tensor, str name, Array* out) except -1:
    cdef int32_t i
    cdef int32_t kind = tensor.device.device_type
    check_ndim(tensor.ndim, name)
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
        fill_packed_strides(out)
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


cdef int _not_exported(object obj, str name) except -1:
    """Say which argument it was that its library could not export: a meta, sparse or quantised tensor.

    To be called with the library's exception set.
    """
    try:
        _raise()
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        kind = f"{type(obj).__module__}.{type(obj).__qualname__}"
        raise BufferError(f"{name}: {kind} has no plain memory: {reason}") from error


cdef int _raise() except -1:
    """Go on with the exception that is set."""
    return -1


cdef object _read_exchange(object obj, str name, bint output, Framework framework, Array* out):
    # The status is looked at instead of a try statement, which saves and restores the thread's exception every time.
    cdef DLTensor tensor
    cdef _Managed managed
    if framework.api.dltensor_from_py_object_no_sync != NULL and (framework.writable or not output):
        if framework.api.dltensor_from_py_object_no_sync(<void*> obj, &tensor) != 0:
            _not_exported(obj, name)
        _fill_dltensor(&tensor, name, out)
        if framework.lazy and (not is_packed(out) or is_single(out)):
            framework.adapter.refuse_lazy(obj, name)
        return None
    # The borrowed tensor has no flags: where an output might be read-only, the owned one tells.
    managed = _Managed.__new__(_Managed)
    if framework.api.managed_tensor_from_py_object_no_sync(<void*> obj, &managed.tensor) != 0:
        _not_exported(obj, name)
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
    check_ndim(view.ndim, name)
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
        fill_packed_strides(out)
    else:
        for i in range(view.ndim):
            fill_byte_stride(out, i, view.strides[i], view.itemsize, name)
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

cdef void start_reader(Reader* reader, int32_t device) noexcept:
    """Nothing is known yet about the arrays of a call."""
    reader.type = NULL
    reader.framework = NULL
    reader.producer = NULL
    reader.producer_stream = 0
    reader.device = device
    reader.stream = 0


cdef int _check_device(int32_t device, str name, const Reader* reader) except -1:
    if reader.device == ANY_DEVICE or device == reader.device or (device == GPU_UNKNOWN and reader.device >= 0):
        return 0
    raise BufferError(f"{name}: is on {device_name(device)}, but the ISV is on {device_name(reader.device)}")


cdef object _read_other(object obj, str name, Framework framework, Reader* reader, Array* out):
    """Everything but the exchange API, NumPy and qpi.pointer. Returns what keeps the memory, or None."""
    cdef object failure = None
    if isinstance(obj, type):
        raise TypeError(f"{name}: is the class {obj.__module__}.{obj.__qualname__}, expected an array")
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
        if interface is not None and read_interface(obj, name, interface, out):
            return None
    if hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__"):
        return _read_dlpack(obj if adapter is None else adapter.exported(obj), name, reader, out)
    if failure is not None:
        raise failure
    raise TypeError(
        f"{name}: {type(obj).__module__}.{type(obj).__qualname__} is not an array; expected one with the buffer "
        "protocol, __cuda_array_interface__ or __dlpack__, or qpi.pointer(address, shape, ...)"
    )


cdef uintptr_t _producer_stream(object obj, Framework framework, Reader* reader) except? 0:
    """The stream that CuPy's interface would name: its current one, unless it is told to name none."""
    if framework.attributes != CUPY_ATTRIBUTES:
        return 0
    if framework.names_stream < 0:
        framework.names_stream = obj.__cuda_array_interface__.get("stream") is not None
    if not framework.names_stream:
        return 0
    if reader.producer != <PyObject*> framework:
        framework.current_stream(obj, reader.device, &reader.producer_stream)
        reader.producer = <PyObject*> framework
    return reader.producer_stream


cdef bint _read_own(object obj, Framework framework, Reader* reader, Array* out) except -1:
    """Read an array of a library's own class by its attributes. False: it is something else, or not on our GPU."""
    if framework is None or framework.attributes == NO_ATTRIBUTES or reader.device < 0:
        return False
    return read_attributes(
        framework.attributes, obj, reader.device, _producer_stream(obj, framework, reader), framework.plain_memory, out)


cdef object read_array(object obj, str name, bint output, Reader* reader, Array* out):
    """Read an argument and check what can be said of it alone. Returns what keeps its memory beside itself, or None."""
    cdef PyTypeObject* kind = Py_TYPE(obj)
    cdef Framework framework = None
    cdef object keep = None
    if kind == _NDARRAY:
        _read_numpy(obj, name, out)
    elif kind == _POINTER:
        copy_array(&(<Pointer> obj).array, out)
    else:
        if kind != reader.type:
            framework = framework_of(obj)
            reader.framework = <PyObject*> framework if framework is not None else NULL
            reader.type = kind
        if reader.framework != NULL:
            framework = <Framework> reader.framework
        if framework is not None and framework.api != NULL:
            keep = _read_exchange(obj, name, output, framework, out)
        elif not _read_own(obj, framework, reader, out):
            keep = _read_other(obj, name, framework, reader, out)
        if output:
            # Autograd would not see the write; asking for the attribute imports nothing. CuPy's and Numba's own arrays
            # have no autograd, and to miss an attribute costs more than to read the array.
            own = framework is not None and framework.attributes != NO_ATTRIBUTES
            if not own and getattr(obj, "requires_grad", False) is True:
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
    framework.names_stream = -1
    framework.api = _exchange_api(cls)
    framework.adapter = adapters.find(cls)
    if framework.api == NULL and framework.adapter is None:
        return None
    if framework.adapter is not None:
        framework.null_is_default = framework.adapter.null_is_default
        framework.writable = framework.adapter.always_writable
        framework.immutable = framework.adapter.immutable
        framework.lazy = framework.adapter.lazy
        if framework.adapter.owns(cls):
            framework.attributes = {"cupy": CUPY_ATTRIBUTES, "numba": NUMBA_ATTRIBUTES}[framework.adapter.name]
            framework.ask_stream = framework.adapter.ask_stream()
            framework.default_stream = framework.adapter.default_stream(cls)
            framework.plain_memory = framework.adapter.plain_memory(cls)
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
        if self.ask_stream is not None:
            owner = self.ask_stream(device)
            handle[0] = owner.ptr
            if handle[0] == 0:
                handle[0] = LEGACY_STREAM
            return owner
        if self.default_stream:
            bound = array.stream if array is not None else 0
            if type(bound) is int and bound == 0:
                handle[0] = self.default_stream
                return None
        owner = self.adapter.current_stream(array, device)
        if owner is None:
            return None
        handle[0] = stream_handle(owner)
        return owner


cdef object work_stream(PyObject** arrays, int count, bint required, Reader* reader, PyObject** source):
    """Set the reader's stream to the current one of the library that the arrays come from (0: not known).

    Returns what owns it, or None; `source` is the Framework that told.
    """
    cdef PyTypeObject* kind
    cdef Framework framework
    cdef object owner = None
    cdef object found
    cdef uintptr_t current
    cdef int i
    source[0] = NULL
    for i in range(count):
        if arrays[i] == NULL:
            continue
        kind = Py_TYPE(<object> arrays[i])
        if kind == reader.type or kind == _NDARRAY or kind == _POINTER:
            continue
        framework = framework_of(<object> arrays[i])
        reader.type = kind
        reader.framework = <PyObject*> framework if framework is not None else NULL
        if framework is None:
            continue
        found = framework.current_stream(<object> arrays[i], reader.device, &current)
        reader.producer = <PyObject*> framework
        reader.producer_stream = current
        if current == 0 or current == reader.stream:
            continue
        if reader.stream:
            raise ValueError("stream: the arrays come from libraries whose current streams differ; pass stream=...")
        reader.stream = current
        owner = found
        source[0] = <PyObject*> framework
    if reader.stream == 0 and required:
        raise ValueError(
            "stream: the current stream of the library that these arrays come from is not known; pass stream=..."
        )
    return owner


# ---- for Python ------------------------------------------------------------------------------------------------------

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
    start_reader(&reader, ANY_DEVICE if device is None else <int32_t> device)
    reader.stream = 0 if stream is None else <uintptr_t> stream
    pointer.owner = (obj, read_array(obj, name, output, &reader, &pointer.array))
    return pointer


def current_stream(arrays, int32_t device):
    """Return (handle, owner) of the current stream of the library that some arrays come from."""
    cdef PyObject* pointers[8]
    cdef PyObject* source
    cdef Reader reader
    cdef int i
    items = tuple(arrays)[:8]
    for i in range(len(items)):
        pointers[i] = <PyObject*> items[i] if items[i] is not None else NULL
    start_reader(&reader, device)
    owner = work_stream(pointers, <int> len(items), True, &reader, &source)
    return reader.stream, owner
