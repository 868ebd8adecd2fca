# cython: language_level=3, freethreading_compatible=True
"""Methods that take their arguments as a C array.

Cython offers that convention under the limited API from Python 3.12 on; before, its methods get a tuple and a dict made
for every call, which costs as much as all else that a call does here. The convention itself is part of the limited API
of 3.11, so the few methods of the hot path are put into their classes once more, in this form.
"""

from cpython.object cimport PyObject

cdef extern from *:
    """
    #if defined(Py_LIMITED_API) && Py_LIMITED_API + 0 < 0x030C0000
    #define QPI_REPLACE_METHODS 1
    #else /* Cython's own methods are of this form */
    #define QPI_REPLACE_METHODS 0
    #endif
    """
    bint QPI_REPLACE_METHODS

cdef extern from "Python.h":
    ctypedef struct PyMethodDef:
        const char* ml_name
        void* ml_meth
        int ml_flags
        const char* ml_doc
    int METH_FASTCALL
    int METH_KEYWORDS
    object PyDescr_NewMethod(type cls, PyMethodDef* method)
    PyObject* PyTuple_GetItem(PyObject* items, Py_ssize_t i) noexcept
    Py_ssize_t PyTuple_Size(PyObject* items) noexcept

cdef enum:
    MOST_METHODS = 16

# Python keeps pointers to these: they live as long as the process.
cdef PyMethodDef[MOST_METHODS] _methods
cdef int _count = 0
cdef list _texts = []


cdef int replace_method(type cls, str name, fast_method function) except -1:
    """Put a method into a class in place of Cython's of that name, whose signature and documentation it keeps."""
    global _count
    if not QPI_REPLACE_METHODS:
        return 0
    before = getattr(cls, name)
    if _count == MOST_METHODS:
        raise RuntimeError(f"no more than {<int> MOST_METHODS} methods can be replaced")
    text = f"{name}{before.__text_signature__}\n--\n\n{before.__doc__}".encode()
    spelled = name.encode()
    _texts.extend((text, spelled))
    _methods[_count].ml_name = spelled
    _methods[_count].ml_meth = <void*> function
    _methods[_count].ml_flags = METH_FASTCALL | METH_KEYWORDS
    _methods[_count].ml_doc = text
    _count += 1
    setattr(cls, name, PyDescr_NewMethod(cls, &_methods[_count - 1]))
    return 0


cdef int read_arguments(str function, tuple parameters, int required, int positional, PyObject** arguments,
                        Py_ssize_t count, PyObject* names, PyObject** values) except -1:
    """Sort the arguments of a call by parameter, as Python does; `values` is cleared by the caller.

    Of the parameters the first `required` have no default, and the first `positional` may be given by position.
    """
    cdef Py_ssize_t named = PyTuple_Size(names) if names != NULL else 0
    cdef Py_ssize_t known = len(parameters)
    cdef Py_ssize_t i, j
    cdef PyObject* name
    if count > positional:
        raise TypeError(f"{function}() takes at most {positional} positional arguments ({count} given)")
    for i in range(count):
        values[i] = arguments[i]
    for i in range(named):
        name = PyTuple_GetItem(names, i)
        for j in range(known):  # names in a call are interned, as ours are
            if name == PyTuple_GetItem(<PyObject*> parameters, j):
                break
        else:
            for j in range(known):
                if <object> name == parameters[j]:
                    break
            else:
                raise TypeError(f"{function}() got an unexpected keyword argument {<object> name!r}")
        if values[j] != NULL:
            raise TypeError(f"{function}() got multiple values for argument {<object> name!r}")
        values[j] = arguments[count + i]
    for j in range(required):
        if values[j] == NULL:
            raise TypeError(f"{function}() missing required argument {parameters[j]!r}")
    return 0
