# Arguments that hold arrays: reading them, and the frameworks that they come from.
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int32_t, uintptr_t

from qpi_distill._dlpack cimport DLExchangeAPI
from qpi_distill._interface cimport Attributes
from qpi_distill._strided cimport Array

cdef enum:
    ANY_DEVICE = -3  # for a Reader that takes arrays of every device

# What is known about the arguments of one call before the next of them is read.
ctypedef struct Reader:
    PyTypeObject* type  # of the last argument
    PyObject* framework  # of the last argument: a Framework or NULL; borrowed from the cache, which keeps it for ever
    int32_t device  # where the arrays have to be: QPI_DEVICE_CPU, the ordinal of a GPU, or ANY_DEVICE
    uintptr_t stream  # the stream of the work; 0 on the CPU
    PyObject* producer  # the Framework that producer_stream is of, or NULL; borrowed likewise
    uintptr_t producer_stream  # its current stream


cdef class Framework:
    """What is known about a type of array: its exchange API, and the adapter of its library."""
    cdef const DLExchangeAPI* api
    cdef bint null_is_default
    cdef bint writable
    cdef bint immutable
    cdef bint lazy
    cdef Attributes attributes  # of the library whose own class this is
    cdef int names_stream  # whether its __cuda_array_interface__ names a stream; -1: not asked yet
    cdef object ask_stream  # the library's function from ordinal to current stream, with attribute ptr; or None
    cdef uintptr_t default_stream  # where arrays that are bound to no stream are worked on; 0: to be asked each time
    cdef object plain_memory  # the library's class of memory whose attribute device_pointer is an address; or None
    cdef readonly object adapter

    cdef object current_stream(self, object array, int32_t device, uintptr_t* handle)


cdef object read_array(object obj, str name, bint output, Reader* reader, Array* out)
cdef void start_reader(Reader* reader, int32_t device) noexcept
cdef object work_stream(PyObject** arrays, int count, bint required, Reader* reader, PyObject** source)
