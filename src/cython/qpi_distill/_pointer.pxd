from qpi_distill._strided cimport Array


cdef class Pointer:
    """An address with dtype, shape and device."""
    cdef Array array
    cdef readonly object owner

    cdef dict interface(self)
