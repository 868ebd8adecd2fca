# An array as one small struct, and what can be said of it alone.
from libc.stdint cimport int32_t, int64_t, uintptr_t

cdef enum:
    MAX_NDIM = 16
    GPU_UNKNOWN = -2  # on a GPU, and the protocol does not say on which

# A dtype is DLPack's type code and the number of bits.
cdef enum:
    DT_FLOAT32 = 2 << 8 | 32
    DT_FLOAT16 = 2 << 8 | 16
    DT_BFLOAT16 = 4 << 8 | 16
    DT_FLOAT64 = 2 << 8 | 64
    DT_INT8 = 0 << 8 | 8
    DT_INT32 = 0 << 8 | 32
    DT_INT64 = 0 << 8 | 64
    DT_UINT8 = 1 << 8 | 8
    DT_UINT32 = 1 << 8 | 32
    DT_BOOL = 6 << 8 | 8

ctypedef struct Array:
    char* data
    int32_t dtype
    int32_t ndim
    int32_t device  # QPI_DEVICE_CPU, the ordinal of a GPU, or GPU_UNKNOWN
    bint readonly
    uintptr_t stream  # the stream that the producer works on, 0 where it does not say
    int64_t[MAX_NDIM] shape
    int64_t[MAX_NDIM] strides  # in elements

cdef str dtype_name(int32_t dtype)
cdef str device_name(int32_t device)
cdef str shape_text(const int64_t* shape, int32_t ndim)
cdef bint is_packed(const Array* array) noexcept nogil
cdef bint is_single(const Array* array) noexcept nogil
cdef int64_t element_count(const Array* array, str name) except -1
cdef int check_ndim(int64_t ndim, str name) except -1
cdef void fill_packed_strides(Array* out) noexcept
cdef int fill_byte_stride(Array* out, int32_t i, int64_t stride, int64_t itemsize, str name) except -1
cdef void copy_array(const Array* array, Array* out) noexcept
