# Methods that take their arguments as a C array.
from cpython.object cimport PyObject

ctypedef object (*fast_method)(object self, PyObject** arguments, Py_ssize_t count, PyObject* names)

cdef int replace_method(type cls, str name, fast_method function) except -1
cdef int read_arguments(str function, tuple parameters, int required, int positional, PyObject** arguments,
                        Py_ssize_t count, PyObject* names, PyObject** values) except -1
