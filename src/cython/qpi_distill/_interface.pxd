# Arrays that show their memory by __cuda_array_interface__, or by attributes that say the same.
from libc.stdint cimport int32_t, uintptr_t

from qpi_distill._strided cimport Array

# Libraries whose own arrays can be read without the interface, which builds a dictionary for every array.
cdef enum Attributes:
    NO_ATTRIBUTES
    CUPY_ATTRIBUTES
    NUMBA_ATTRIBUTES

cdef bint read_interface(object obj, str name, object interface, Array* out) except -1
cdef bint read_attributes(Attributes attributes, object obj, int32_t device, uintptr_t stream, object plain_memory,
                          Array* out) except -1
