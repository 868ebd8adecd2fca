# cython: language_level=3, freethreading_compatible=True, cdivision=True
"""Checks on the shapes, strides and dtypes of a call's arrays."""

from libc.stdint cimport int32_t, int64_t

from qpi_distill._strided cimport (
    DT_BFLOAT16,
    DT_FLOAT16,
    DT_FLOAT32,
    Array,
    dtype_name,
    element_count,
    shape_text,
)
from qpi_distill.c_api cimport QPI_BFLOAT16, QPI_FLOAT16, QPI_FLOAT32


cdef int float_dtype(const Array* array, str name) except -1:
    if array.dtype == DT_FLOAT32:
        return QPI_FLOAT32
    if array.dtype == DT_FLOAT16:
        return QPI_FLOAT16
    if array.dtype == DT_BFLOAT16:
        return QPI_BFLOAT16
    raise TypeError(
        f"{name}: dtype {dtype_name(array.dtype)} is not supported; expected float32, float16 or bfloat16"
    )


cdef int need_float32(const Array* array, str name) except -1:
    if array.dtype != DT_FLOAT32:
        raise TypeError(f"{name}: dtype {dtype_name(array.dtype)} is not supported; expected float32")
    return 0


cdef int wrong_shape(const Array* array, str name, const Lead* lead, str trailing) except -1:
    """Raise the error for a shape that does not fit."""
    if lead.ndim < 0:
        expected = f"(..., {trailing})"
    else:
        expected = ", ".join([str(lead.shape[i]) for i in range(lead.ndim)] + ([trailing] if trailing else []))
        expected = f"({expected}), with the leading dimensions of q_logits"
    raise ValueError(f"{name}: shape {shape_text(array.shape, array.ndim)}, expected {expected}")


cdef int _wrong_leading(const Array* array, str name, const Lead* lead, int trailing) except -1:
    wrong_shape(
        array, name, lead, ", ".join([str(array.shape[i]) for i in range(max(array.ndim - trailing, 0), array.ndim)])
    )


cdef int64_t row_stride(const Array* array, str name, Lead* lead, int trailing, int64_t packed) except? -1:
    """Check the leading dimensions and return the one stride, in elements, that they collapse to.

    Dimensions of one element do not count, and with at most one row the stride is the packed one: equal problems then
    share a plan whatever the unused strides are.
    """
    cdef int32_t ndim = array.ndim - trailing
    cdef int32_t i
    cdef int64_t stride = 0
    cdef int64_t reach = 0  # the stride that the next outer dimension needs
    cdef bint found = False
    if ndim < 0 or (lead.ndim >= 0 and ndim != lead.ndim):
        _wrong_leading(array, name, lead, trailing)
    if lead.ndim < 0:
        # The trailing extents are 1 or more, so that no product of leading ones exceeds the checked one of all.
        lead.ndim = ndim
        lead.rows = element_count(array, name)
        for i in range(ndim, array.ndim):
            lead.rows //= array.shape[i]
        for i in range(ndim):
            lead.shape[i] = array.shape[i]
    else:
        for i in range(ndim):
            if array.shape[i] != lead.shape[i]:
                _wrong_leading(array, name, lead, trailing)
    if lead.rows <= 1:
        return packed
    for i in range(ndim - 1, -1, -1):
        if array.shape[i] == 1:
            continue
        if not found:
            found = True
            stride = array.strides[i]
        elif array.strides[i] != reach:
            raise ValueError(
                f"{name}: leading dimensions {shape_text(array.shape, ndim)} with strides "
                f"{shape_text(array.strides, ndim)} do not collapse to one row stride; pass an array whose rows are "
                "evenly spaced (nothing is copied here)"
            )
        reach = array.strides[i] * array.shape[i]
    return stride


cdef int check_output(const Array* array, str name) except -1:
    """Refuse an output whose elements share memory."""
    cdef int32_t i
    if element_count(array, name) == 0:
        return 0
    for i in range(array.ndim):
        if array.shape[i] > 1 and array.strides[i] == 0:
            raise BufferError(
                f"{name}: dimension {i} is broadcast (stride 0), so that its elements share memory; pass an array of "
                "its own"
            )
    return 0


cdef int64_t inner_stride(const Array* array, int32_t back, int64_t packed) noexcept:
    """The stride of a trailing dimension, or the packed one where the dimension has a single element."""
    cdef int32_t i = array.ndim - back
    return packed if array.shape[i] == 1 else array.strides[i]
