# cython: language_level=3, freethreading_compatible=True, cdivision=True
"""One call: from checked arrays into the C library, in the order of their producers' streams."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, uintptr_t

from qpi_distill._isv cimport Isv
from qpi_distill._status cimport check
from qpi_distill._strided cimport GPU_UNKNOWN, Array
from qpi_distill.c_api cimport (
    QPI_SUCCESS,
    qpi_accumulate,
    qpi_bound,
    qpi_bound_accumulate,
    qpi_bound_distill_grad,
    qpi_bound_step,
    qpi_distill_grad,
    qpi_measure,
    qpi_memory_check,
    qpi_record,
    qpi_status,
    qpi_step,
    qpi_stream_t,
)

# What error messages call the arrays, by position.
cdef (const char*)[MAX_ARRAYS] _NAMES
_NAMES[:] = [b"q_logits", b"pi_logits", b"pi_grad", b"legal_actions", b"row_weights", b"grad_scale"]


cdef void collect(PyObject** arrays, object q, object pi, object grad, object legal, object weights,
                  object scale) noexcept:
    """The arguments of a call in the order of their positions; NULL for what is optional and left out."""
    arrays[Q] = <PyObject*> q
    arrays[PI] = <PyObject*> pi
    arrays[GRAD] = <PyObject*> grad
    arrays[LEGAL] = <PyObject*> legal if legal is not None else NULL
    arrays[WEIGHTS] = <PyObject*> weights if weights is not None else NULL
    arrays[SCALE] = <PyObject*> scale if scale is not None else NULL


cdef int no_stream(object stream) except -1:
    """Refuse a stream for work on the CPU."""
    if stream is not None:
        raise ValueError("stream: work on the CPU has no stream; leave it out")
    return 0


cdef void note_stream(const Array* array, Joins* joins) noexcept:
    """Remember the stream that an array's producer works on."""
    cdef int i
    if array.stream == 0:
        return
    for i in range(joins.count):
        if joins.streams[i] == array.stream:
            return
    joins.streams[joins.count] = array.stream
    joins.count += 1


cdef void note_array(const Array* array, int position, Call* call) noexcept:
    """Remember what an array asks of the launch."""
    note_stream(array, &call.joins)
    if array.device == GPU_UNKNOWN:
        call.unplaced[call.unplaced_count].position = position
        call.unplaced[call.unplaced_count].data = array.data
        call.unplaced_count += 1


cdef int join(int32_t device, const Joins* joins, uintptr_t stream, bint after) except -1:
    """Order our stream after the producers' (before the work), or theirs after ours."""
    cdef int i
    for i in range(joins.count):
        if joins.streams[i] != stream:
            from qpi_distill import _gpu
            if after:
                _gpu.wait(device, joins.streams[i], stream)
            else:
                _gpu.wait(device, stream, joins.streams[i])
    return 0


cdef qpi_status _place(int32_t device, const Call* call) noexcept nogil:
    """Ask the driver where the arrays live that do not say so themselves."""
    cdef const Unplaced* array
    cdef qpi_status status
    cdef int i
    for i in range(call.unplaced_count):
        array = &call.unplaced[i]
        status = qpi_memory_check(device, _NAMES[array.position], array.data)
        if status != QPI_SUCCESS:
            return status
    return QPI_SUCCESS


cdef int _place_inputs(int32_t device, const Call* call) except -1:
    """The same for a measurement, in its words."""
    from qpi_distill import _gpu
    for name, address in (
        ("q_logits", <uintptr_t> call.batch.q_logits),
        ("pi_logits", <uintptr_t> call.batch.pi_logits),
        ("legal_actions", <uintptr_t> call.batch.legal_actions),
        ("row_weights", <uintptr_t> call.batch.row_weights),
    ):
        if address:
            _gpu.require(device, name, address)
    return 0


cdef int launch(int what, Isv isv, const Call* call, uintptr_t stream, uintptr_t record) except -1:
    """Make a call. `record` is where a measurement goes."""
    cdef qpi_status status
    cdef qpi_stream_t target = <qpi_stream_t> stream
    if call.unplaced_count:
        if what == MEASURE:
            _place_inputs(isv.c.device, call)
        else:
            with nogil:
                status = _place(isv.c.device, call)
            if status != QPI_SUCCESS:
                check(status)
    if call.joins.count:
        join(isv.c.device, &call.joins, stream, False)
    with nogil:
        if what == STEP:
            status = qpi_step(call.plan, &isv.c, &call.batch, target)
        elif what == ACCUMULATE:
            status = qpi_accumulate(call.plan, &isv.c, &call.batch, target)
        elif what == DISTILL_GRAD:
            status = qpi_distill_grad(call.plan, &isv.c, &call.batch, target)
        else:
            status = qpi_measure(call.plan, &isv.c, &call.batch, <qpi_record*> record, target)
    if status != QPI_SUCCESS:
        check(status)
    if call.joins.count:
        join(isv.c.device, &call.joins, stream, True)
    return 0


cdef int launch_bound(int what, int32_t device, const qpi_bound* bound, const Joins* joins,
                      uintptr_t stream) except -1:
    """Make a bound call."""
    cdef qpi_status status
    cdef qpi_stream_t target = <qpi_stream_t> stream
    if joins.count:
        join(device, joins, stream, False)
    with nogil:
        if what == STEP:
            status = qpi_bound_step(bound, target)
        elif what == ACCUMULATE:
            status = qpi_bound_accumulate(bound, target)
        else:
            status = qpi_bound_distill_grad(bound, target)
    if status != QPI_SUCCESS:
        check(status)
    if joins.count:
        join(device, joins, stream, True)
    return 0
