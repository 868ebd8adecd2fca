from libc.stdint cimport int64_t, uintptr_t

from qpi_distill.c_api cimport qpi_isv


cdef class Trace:
    """The stream that last worked on an ISV. Outlives the ISV in whatever has to be freed after that work."""
    cdef readonly uintptr_t handle  # 0: none yet
    cdef object owner  # what owns the stream, or None
    cdef object source  # the Framework that chose it, None where the caller named it


cdef class Isv:
    """The state vector as the C library sees it."""
    cdef qpi_isv c
    cdef readonly Trace trace
    cdef readonly object memory
    cdef object flight_memory
    cdef readonly int64_t rings  # how often the ring has changed
    cdef uintptr_t own  # our own stream, for calls before any caller's
    cdef object settle
    cdef object __weakref__

    cdef int note(self, uintptr_t handle, object owner, object source) except -1
