# Arrays of any library as one small struct.
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int32_t, int64_t, uintptr_t

from qpi_distill._dlpack cimport DLExchangeAPI

cdef enum:
    MAX_NDIM = 16
    GPU_UNKNOWN = -2  # on a GPU, and the protocol does not say on which
    ANY_DEVICE = -3  # for a Reader that takes arrays of every device

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

# What is known about the arguments of one call before the next of them is read.
ctypedef struct Reader:
    PyTypeObject* type  # of the last argument
    PyObject* framework  # of the last argument: a Framework or NULL; borrowed from the cache, which keeps it for ever
    int32_t device  # where the arrays have to be: QPI_DEVICE_CPU, the ordinal of a GPU, or ANY_DEVICE
    uintptr_t stream  # the stream of the work; 0 on the CPU


cdef class Framework:
    """What is known about a type of array: its exchange API, and the adapter of its library."""
    cdef const DLExchangeAPI* api
    cdef bint null_is_default
    cdef bint writable
    cdef bint immutable
    cdef bint lazy
    cdef readonly object adapter

    cdef object current_stream(self, object array, int32_t device, uintptr_t* handle)


cdef object read_array(object obj, str name, bint output, Reader* reader, Array* out)
cdef object work_stream(PyObject** arrays, int count, int32_t device, bint required, uintptr_t* handle,
                        PyObject** source)
cdef str dtype_name(int32_t dtype)
cdef str device_name(int32_t device)
cdef str shape_text(const int64_t* shape, int32_t ndim)
cdef bint is_packed(const Array* array) noexcept nogil
cdef int64_t element_count(const Array* array, str name) except -1
