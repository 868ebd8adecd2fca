# cython: language_level=3, freethreading_compatible=True
"""An array as one small struct: dtype, shape and strides, in words and in numbers."""

from libc.stdint cimport int32_t, int64_t

from qpi_distill._dlpack cimport DL_BFLOAT, DL_BOOL, DL_COMPLEX, DL_FLOAT, DL_INT, DL_UINT
from qpi_distill.c_api cimport QPI_DEVICE_CPU

cdef extern from *:
    bint multiply_overflows "__builtin_mul_overflow"(int64_t a, int64_t b, int64_t* product) nogil


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


cdef bint is_single(const Array* array) noexcept nogil:
    """Whether the array has exactly one element."""
    cdef int32_t i
    for i in range(array.ndim):
        if array.shape[i] != 1:
            return False
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

cdef int check_ndim(int64_t ndim, str name) except -1:
    if ndim > MAX_NDIM:
        raise ValueError(f"{name}: {ndim} dimensions, at most {MAX_NDIM} are supported")
    return 0


cdef void fill_packed_strides(Array* out) noexcept:
    cdef int64_t stride = 1
    cdef int32_t i
    for i in range(out.ndim - 1, -1, -1):
        out.strides[i] = stride
        if out.shape[i] > 0 and multiply_overflows(stride, out.shape[i], &stride):
            stride = 0  # such a shape is refused when its elements are counted


cdef int fill_byte_stride(Array* out, int32_t i, int64_t stride, int64_t itemsize, str name) except -1:
    """Store a stride that is given in bytes."""
    if stride % itemsize:
        if out.shape[i] > 1:
            raise ValueError(f"{name}: stride of {stride} bytes is no multiple of the item size {itemsize}")
        stride = 0
    out.strides[i] = stride // itemsize
    return 0


cdef void copy_array(const Array* array, Array* out) noexcept:
    """Copy what is in use: most of the struct is room for dimensions."""
    cdef int32_t i
    out.data = array.data
    out.dtype = array.dtype
    out.ndim = array.ndim
    out.device = array.device
    out.readonly = array.readonly
    out.stream = array.stream
    for i in range(array.ndim):
        out.shape[i] = array.shape[i]
        out.strides[i] = array.strides[i]
