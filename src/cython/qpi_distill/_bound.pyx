# cython: language_level=3, freethreading_compatible=True, cdivision=True
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""Bound calls: arrays that were checked once, for many calls on the same memory."""

from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t

from qpi_distill._arrays cimport Framework
from qpi_distill._call cimport ACCUMULATE, DISTILL_GRAD, STEP, launch_bound, no_stream
from qpi_distill._fastcall cimport read_arguments, replace_method
from qpi_distill._streams cimport stream_handle
from qpi_distill._status cimport check
from qpi_distill.c_api cimport QPI_DEVICE_CPU, qpi_bind, qpi_bound, qpi_bound_destroy, qpi_status


cdef class Bound:
    """Arrays that have been checked: what `Distiller.bind` returns. Keeps them alive.

    The arrays have to stay where they are (a tensor that is resized, or whose storage is swapped, has to be bound
    anew). Producers whose array interface names a stream are ordered with every call.
    """

    def __init__(self):
        raise TypeError("bound calls are made by Distiller.bind")

    def __dealloc__(self):
        qpi_bound_destroy(self.c)

    def __reduce__(self):
        raise TypeError("a bound call cannot be copied or pickled: it stands for memory; bind the arrays again")

    cdef int prepare(self) except -1:
        """Check the memory and prepare the call, for the ISV as it is now."""
        cdef qpi_bound* made = NULL
        cdef qpi_status status
        with nogil:
            status = qpi_bind(self.plan, &self.isv.c, &self.batch, &made)
        check(status)
        qpi_bound_destroy(self.c)
        self.c = made
        self.rings = self.isv.rings
        return 0

    cdef int run(self, int what, object stream) except -1:
        cdef uintptr_t handle = 0
        cdef object owner = None
        cdef object source = None
        if self.c == NULL:
            raise RuntimeError("bound calls are made by Distiller.bind")
        if self.device == QPI_DEVICE_CPU:
            no_stream(stream)
        elif stream is not None:
            handle = stream_handle(stream)
            if type(stream) is not int:
                owner = stream
        else:
            source = self.source
            if source is not None:
                owner = (<Framework> source).current_stream(None, self.device, &handle)
            if handle == 0:
                raise ValueError(
                    "stream: the current stream of the library that these arrays come from is not known; "
                    "pass stream=..."
                )
        if self.rings != self.isv.rings:  # a recorder came or went
            self.prepare()
        launch_bound(what, self.device, self.c, &self.joins, handle)
        return self.isv.note(handle, owner, source)

    def step(self, stream=None) -> None:
        """`Distiller.step` on the bound arrays.

        Parameters
        ----------
        stream : int or stream object, optional
            None: the current stream of the library that the arrays come from; on the CPU it has to be None.
        """
        self.run(STEP, stream)

    def accumulate(self, stream=None) -> None:
        """`Distiller.accumulate` on the bound arrays. Parameters as for `step`."""
        self.run(ACCUMULATE, stream)

    def distill_grad(self, stream=None) -> None:
        """`Distiller.distill_grad` on the bound arrays. Parameters as for `step`."""
        self.run(DISTILL_GRAD, stream)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.row_count


# ---- the same methods without a tuple for every call -----------------------------------------------------------------

cdef tuple _PARAMETERS = ("stream",)


cdef object _run(int what, str name, Bound bound, PyObject** arguments, Py_ssize_t count, PyObject* names):
    cdef PyObject* stream = NULL
    read_arguments(name, _PARAMETERS, 0, 1, arguments, count, names, &stream)
    bound.run(what, <object> stream if stream != NULL else None)


cdef object _step(object bound, PyObject** arguments, Py_ssize_t count, PyObject* names):
    return _run(STEP, "step", <Bound> bound, arguments, count, names)


cdef object _accumulate(object bound, PyObject** arguments, Py_ssize_t count, PyObject* names):
    return _run(ACCUMULATE, "accumulate", <Bound> bound, arguments, count, names)


cdef object _distill_grad(object bound, PyObject** arguments, Py_ssize_t count, PyObject* names):
    return _run(DISTILL_GRAD, "distill_grad", <Bound> bound, arguments, count, names)


replace_method(Bound, "step", _step)
replace_method(Bound, "accumulate", _accumulate)
replace_method(Bound, "distill_grad", _distill_grad)
