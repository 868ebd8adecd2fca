from libc.stdint cimport uintptr_t


cdef enum:
    LEGACY_STREAM = 1  # cudaStreamLegacy: the legacy default stream, named explicitly


cdef uintptr_t stream_handle(object stream) except 0
