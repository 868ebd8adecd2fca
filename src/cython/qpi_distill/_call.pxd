# One call into the C library: its arrays, and what their producers ask of the launch.
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, uintptr_t

from qpi_distill._isv cimport Isv
from qpi_distill._strided cimport Array
from qpi_distill.c_api cimport qpi_batch, qpi_bound, qpi_plan

cdef enum:
    STEP
    ACCUMULATE
    DISTILL_GRAD
    MEASURE

# Positions of a call's arrays.
cdef enum:
    Q
    PI
    GRAD
    LEGAL
    WEIGHTS
    SCALE
    MAX_ARRAYS

ctypedef struct Joins:
    int count
    uintptr_t[MAX_ARRAYS] streams  # of producers that have to be ordered with ours

# An array that did not say on which GPU it is.
ctypedef struct Unplaced:
    int position
    const void* data

ctypedef struct Call:
    qpi_batch batch
    const qpi_plan* plan
    int unplaced_count
    Unplaced[MAX_ARRAYS] unplaced
    Joins joins

cdef void collect(PyObject** arrays, object q, object pi, object grad, object legal, object weights,
                  object scale) noexcept
cdef int no_stream(object stream) except -1
cdef void note_stream(const Array* array, Joins* joins) noexcept
cdef void note_array(const Array* array, int position, Call* call) noexcept
cdef int join(int32_t device, const Joins* joins, uintptr_t stream, bint after) except -1
cdef int launch(int what, Isv isv, const Call* call, uintptr_t stream, uintptr_t record) except -1
cdef int launch_bound(int what, int32_t device, const qpi_bound* bound, const Joins* joins,
                      uintptr_t stream) except -1
