# cython: language_level=3, freethreading_compatible=True, cdivision=True
"""The seed kernels' semantics on arrays."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memset

from qpi_distill._arrays cimport Reader, read_array, start_reader, work_stream
from qpi_distill._call cimport MAX_ARRAYS, Joins, collect, join, no_stream, note_stream
from qpi_distill._shapes cimport Lead, check_output, need_float32, row_stride, wrong_shape
from qpi_distill._status cimport check
from qpi_distill._streams cimport stream_handle
from qpi_distill._strided cimport Array, is_packed, shape_text
from qpi_distill.c_api cimport (
    QPI_DEVICE_CPU,
    QPI_SEED_ACTIONS,
    QPI_SEED_ATOMS,
    QPI_SEED_BUS_WORDS,
    qpi_seed_distill_grad,
    qpi_seed_lambda_controller,
    qpi_status,
    qpi_stream_t,
)


cdef object _read_seed(object obj, str name, bint output, tuple trailing, Lead* lead, Reader* reader, Array* array,
                       Joins* joins):
    """Read a packed float32 array for the seed kernels. Returns what keeps its memory, or None."""
    cdef int32_t count = <int32_t> len(trailing)
    cdef int32_t i
    cdef object held = read_array(obj, name, output, reader, array)
    need_float32(array, name)
    text = ", ".join([str(n) for n in trailing])
    for i in range(count):
        if array.ndim < count or array.shape[array.ndim - count + i] != trailing[i]:
            wrong_shape(array, name, lead, text)
    if output:
        check_output(array, name)
    row_stride(array, name, lead, count, 1)
    if not is_packed(array):
        raise ValueError(f"{name}: has to be in C order without gaps")
    note_stream(array, joins)
    return held


cdef int _seed_reader(PyObject** arrays, int32_t device, object stream, Reader* reader) except -1:
    cdef PyObject* source
    start_reader(reader, device)
    if device == QPI_DEVICE_CPU:
        no_stream(stream)
    elif stream is not None:
        reader.stream = stream_handle(stream)
    else:
        work_stream(arrays, MAX_ARRAYS, True, reader, &source)
    return 0


cdef object _read_bus(object obj, Reader* reader, Array* array, Joins* joins):
    cdef object held = read_array(obj, "isv_bus", True, reader, array)
    need_float32(array, "isv_bus")
    if array.ndim != 1 or array.shape[0] < QPI_SEED_BUS_WORDS or not is_packed(array):
        raise ValueError(
            f"isv_bus: shape {shape_text(array.shape, array.ndim)}, expected one packed dimension of at least "
            f"{<int> QPI_SEED_BUS_WORDS}"
        )
    note_stream(array, joins)
    return held


def seed_distill_grad(q_logits, pi_logits, atom_supports, isv_bus, pi_grad_logits, int32_t device, stream) -> None:
    """Run the semantics of the first seed kernel on a device."""
    cdef PyObject* arrays[MAX_ARRAYS]
    cdef Reader reader
    cdef Joins joins
    cdef Lead lead
    cdef Array q, pi, support, bus, grad
    cdef qpi_status status
    collect(arrays, q_logits, pi_logits, pi_grad_logits, isv_bus, atom_supports, None)
    _seed_reader(arrays, device, stream, &reader)
    joins.count = 0
    lead.ndim = -1
    cdef int actions = QPI_SEED_ACTIONS
    cdef int atoms = QPI_SEED_ATOMS
    keep = [
        _read_seed(q_logits, "q_logits", False, (actions, atoms), &lead, &reader, &q, &joins),
        _read_seed(pi_logits, "pi_logits", False, (actions,), &lead, &reader, &pi, &joins),
        _read_seed(pi_grad_logits, "pi_grad_logits", True, (actions,), &lead, &reader, &grad, &joins),
    ]
    cdef int64_t rows = lead.rows
    lead.ndim = -1
    keep.append(_read_seed(atom_supports, "atom_supports", False, (atoms,), &lead, &reader, &support, &joins))
    if lead.rows != 1:
        raise ValueError(f"atom_supports: shape {shape_text(support.shape, support.ndim)}, expected ({atoms},)")
    keep.append(_read_bus(isv_bus, &reader, &bus, &joins))
    if joins.count:
        join(device, &joins, reader.stream, False)
    with nogil:
        status = qpi_seed_distill_grad(
            <const float*> q.data, <const float*> pi.data, <const float*> support.data, <float*> bus.data,
            <float*> grad.data, rows, device, <qpi_stream_t> reader.stream)
    check(status)
    if joins.count:
        join(device, &joins, reader.stream, True)


def seed_lambda_controller(isv_bus, int32_t device, stream) -> None:
    """Run the semantics of the second seed kernel on a device."""
    cdef PyObject* arrays[MAX_ARRAYS]
    cdef Reader reader
    cdef Joins joins
    cdef Array bus
    cdef qpi_status status
    memset(arrays, 0, sizeof(arrays))
    arrays[0] = <PyObject*> isv_bus
    _seed_reader(arrays, device, stream, &reader)
    joins.count = 0
    _held = _read_bus(isv_bus, &reader, &bus, &joins)
    if joins.count:
        join(device, &joins, reader.stream, False)
    with nogil:
        status = qpi_seed_lambda_controller(<float*> bus.data, device, <qpi_stream_t> reader.stream)
    check(status)
    if joins.count:
        join(device, &joins, reader.stream, True)
