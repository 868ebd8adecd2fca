# What the shapes of a call's arrays have to be, and the strides that they come down to.
from libc.stdint cimport int32_t, int64_t

from qpi_distill._strided cimport MAX_NDIM, Array

# The leading dimensions, which all arrays of a call share.
cdef struct Lead:
    int32_t ndim  # -1: not known yet
    int64_t rows
    int64_t[MAX_NDIM] shape

cdef int float_dtype(const Array* array, str name) except -1
cdef int need_float32(const Array* array, str name) except -1
cdef int wrong_shape(const Array* array, str name, const Lead* lead, str trailing) except -1
cdef int64_t row_stride(const Array* array, str name, Lead* lead, int trailing, int64_t packed) except? -1
cdef int check_output(const Array* array, str name) except -1
cdef int64_t inner_stride(const Array* array, int32_t back, int64_t packed) noexcept
