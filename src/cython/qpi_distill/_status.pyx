# cython: language_level=3, freethreading_compatible=True
"""From a status of the C library to a Python exception, in one place."""

from qpi_distill.c_api cimport (
    QPI_ERROR_CUDA,
    QPI_ERROR_MEMORY,
    QPI_ERROR_NO_DEVICE,
    QPI_ERROR_OVERFLOW,
    QPI_ERROR_POINTER,
    QPI_ERROR_TYPE,
    QPI_ERROR_UNSUPPORTED,
    QPI_ERROR_VALUE,
    QPI_SUCCESS,
    qpi_last_error_message,
    qpi_status,
    qpi_status_name,
)

from qpi_distill.errors import CudaError, DeviceError, QpiError

cdef dict _EXCEPTIONS = {
    <int> QPI_ERROR_VALUE: ValueError,
    <int> QPI_ERROR_TYPE: TypeError,
    <int> QPI_ERROR_OVERFLOW: OverflowError,
    <int> QPI_ERROR_POINTER: BufferError,
    <int> QPI_ERROR_NO_DEVICE: DeviceError,
    <int> QPI_ERROR_CUDA: CudaError,
    <int> QPI_ERROR_MEMORY: MemoryError,
    <int> QPI_ERROR_UNSUPPORTED: ValueError,
}


cdef int check(qpi_status status) except -1:
    """Raise what a failed call means. To be called by the thread that made the call, before its next one."""
    if status == QPI_SUCCESS:
        return 0
    message = qpi_last_error_message().decode("utf-8", "replace")
    name = qpi_status_name(status).decode("ascii", "replace")
    raise _EXCEPTIONS.get(<int> status, QpiError)(message or name)
