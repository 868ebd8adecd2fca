from libc.stdint cimport int32_t, int64_t

from qpi_distill._call cimport Joins
from qpi_distill._isv cimport Isv
from qpi_distill.c_api cimport qpi_batch, qpi_bound, qpi_plan


cdef class Bound:
    """Arrays that have been checked, and the call that was prepared for them."""
    cdef qpi_bound* c
    cdef const qpi_plan* plan
    cdef qpi_batch batch
    cdef int64_t rings  # of the ISV, when the call was prepared
    cdef Isv isv
    cdef int32_t device
    cdef int64_t row_count
    cdef Joins joins
    cdef object source  # the Framework whose current stream serves where none is named, or None
    cdef object operator  # kept alive: its plans, its support
    cdef object arrays  # kept alive

    cdef int prepare(self) except -1
    cdef int run(self, int what, object stream) except -1
