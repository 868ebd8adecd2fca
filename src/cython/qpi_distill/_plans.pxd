# The plans of one problem, by what may change from call to call.
from libc.stdint cimport int64_t

from qpi_distill.c_api cimport qpi_plan, qpi_problem

# What may change from call to call and decides about the plan. Compared bytewise: always cleared before it is filled.
ctypedef struct Key:
    int64_t[3] dtypes  # q, pi, grad
    int64_t[3] q
    int64_t[2] pi
    int64_t[2] grad
    int64_t[2] legal
    int64_t weight

cdef struct Node:
    Key key
    qpi_plan* plan
    Node* next

cdef enum:
    BUCKETS = 64


cdef class Plans:
    """The plans of one problem. They live as long as this object: captured graphs may rely on any of them."""
    cdef qpi_problem problem
    cdef (Node*)[BUCKETS] heads
    cdef object lock
    cdef readonly Py_ssize_t count

    cdef const qpi_plan* find(self, const Key* key) except NULL
    cdef const qpi_plan* make(self, const Key* key, int bucket) except NULL
    cdef void packed_key(self, Key* key) noexcept
    cdef int named_key(self, Key* key, object q_dtype, object pi_dtype, object grad_dtype) except -1
