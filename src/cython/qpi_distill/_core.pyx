# cython: language_level=3, freethreading_compatible=True, cdivision=True
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""The step: arguments to a batch, strides to a plan, one call into the C library."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t

from qpi_distill._arrays cimport Reader, read_array, start_reader, work_stream
from qpi_distill._bound cimport Bound
from qpi_distill._call cimport (
    ACCUMULATE,
    DISTILL_GRAD,
    GRAD,
    LEGAL,
    MAX_ARRAYS,
    MEASURE,
    PI,
    SCALE,
    STEP,
    WEIGHTS,
    Call,
    Q,
    collect,
    launch,
    no_stream,
    note_array,
)
from qpi_distill._fastcall cimport read_arguments, replace_method
from qpi_distill._isv cimport Isv
from qpi_distill._plans cimport Key, Plans
from qpi_distill._shapes cimport (
    Lead,
    check_output,
    float_dtype,
    inner_stride,
    need_float32,
    row_stride,
    wrong_shape,
)
from qpi_distill._status cimport check
from qpi_distill._streams cimport stream_handle
from qpi_distill._strided cimport (
    DT_BOOL,
    DT_INT8,
    DT_UINT8,
    Array,
    dtype_name,
    element_count,
    shape_text,
)
from qpi_distill.c_api cimport (
    QPI_ABI,
    QPI_CHECK_POINTERS,
    QPI_DEVICE_CPU,
    QPI_FLOAT32,
    qpi_abi,
    qpi_batch_init,
    qpi_build_info,
    qpi_version,
)

cdef extern from "Python.h":
    object PyMemoryView_FromMemory(char* memory, Py_ssize_t size, int flags)
    enum:
        PyBUF_WRITE

if qpi_abi() != QPI_ABI:
    raise ImportError(f"libqpi_distill.so has ABI {qpi_abi()}, this build of qpi_distill needs {QPI_ABI}")


def version() -> str:
    """Return the version of the C library."""
    cdef int code = qpi_version()
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


def build_info() -> str:
    """Return what the library holds and what the machine has, as JSON."""
    cdef size_t length = 0
    check(qpi_build_info(NULL, 0, &length))
    text = bytearray(length + 1)
    cdef char* memory = text
    check(qpi_build_info(memory, length + 1, &length))
    return text[:length].decode("utf-8")


def host_memory(uintptr_t address, Py_ssize_t size) -> memoryview:
    """Return host memory as a writable memoryview. The caller keeps the memory alive."""
    return PyMemoryView_FromMemory(<char*> address, size, PyBUF_WRITE)


cdef object _read_rows(object obj, str name, bint output, int64_t actions, Lead* lead, Reader* reader, Array* array,
                       int position, Call* call, int64_t* strides):
    """Read an array of shape [..., A] and its strides per row and action. Returns what keeps its memory, or None."""
    cdef object held = read_array(obj, name, output, reader, array)
    if array.ndim < 1 or array.shape[array.ndim - 1] != actions:
        wrong_shape(array, name, lead, str(actions))
    if output:
        check_output(array, name)
    strides[0] = row_stride(array, name, lead, 1, actions)
    strides[1] = inner_stride(array, 1, 1)
    note_array(array, position, call)
    return held


cdef class Operator:
    """A problem, its plans and the ISV that it works on: what `qpi.Distiller` is built on.

    Parameters
    ----------
    handle : Isv
        The state vector.
    actions, atoms : int
        Sizes of the last two dimensions of q_logits.
    support : int
        Address of the support, float32 on the ISV's device.
    support_strides : tuple of int
        Its strides in elements, per action and per atom.
    support_memory : object
        Kept alive as long as this object is.
    reduction, mode, value_scale, kl_stat, kernel : str
        Options by name.
    illegal_below : float
        pi_logits at or below it mark an illegal action.
    q_dtype, pi_dtype, grad_dtype : str or dtype
        What is planned at once.
    checked : bool
        Whether every call asks the driver where each pointer lives.
    max_blocks, max_threads : int
        Upper bounds, 0: none.
    critic, target, divergence, control_stat : str
        Members of the family by name.
    epsilon, beta, policy_temperature : float
        Their numbers.
    summary : bool
        Whether each batch is summed up.
    """
    cdef Plans plans
    cdef bint scalar  # q_logits has no axis for atoms
    cdef readonly Isv handle
    cdef readonly object support_memory
    cdef const float* support

    def __init__(
        self, Isv handle not None, int64_t actions, int64_t atoms, uintptr_t support, tuple support_strides,
        support_memory, *, reduction, mode, value_scale, kl_stat, kernel, float illegal_below, q_dtype, pi_dtype,
        grad_dtype, bint checked, int32_t max_blocks, int32_t max_threads, critic, target, float epsilon, divergence,
        float beta, float policy_temperature, control_stat, bint summary,
    ):
        if self.handle is not None:
            raise RuntimeError("an operator is initialised once")
        cdef Plans plans = Plans(
            handle.c.device, actions, atoms, support_strides, reduction=reduction, mode=mode,
            value_scale=value_scale, kl_stat=kl_stat, kernel=kernel, illegal_below=illegal_below, checked=checked,
            max_blocks=max_blocks, max_threads=max_threads, critic=critic, target=target, epsilon=epsilon,
            divergence=divergence, beta=beta, policy_temperature=policy_temperature, control_stat=control_stat,
            summary=summary,
        )
        plans.prepare(q_dtype, pi_dtype, grad_dtype)
        self.plans = plans
        self.scalar = critic == "scalar"
        self.support = <const float*> support
        self.support_memory = support_memory
        self.handle = handle

    def __reduce__(self):
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: it works on its ISV's memory; make one anew, and "
            "carry the state over by ISV.state_dict()"
        )

    def prepare(self, q_dtype="float32", pi_dtype="float32", grad_dtype="float32") -> None:
        """Make the plan for packed arrays of these dtypes, so that the first step with them may be captured.

        Plans are kept as long as this object lives; other strides get theirs when they are first met.

        Parameters
        ----------
        q_dtype, pi_dtype, grad_dtype : str or dtype
            float32, float16 or bfloat16; grad_dtype is float32 or pi_dtype.
        """
        self.ready()
        self.plans.prepare(q_dtype, pi_dtype, grad_dtype)

    def describe(self, int64_t rows, q_dtype, pi_dtype, grad_dtype) -> str:
        """Return which kernel serves packed arrays with this many rows, and why."""
        self.ready()
        return self.plans.describe(rows, q_dtype, pi_dtype, grad_dtype)

    @property
    def plan_count(self) -> int:
        """How many plans have been made."""
        return self.plans.count if self.plans is not None else 0

    def relocate(self, uintptr_t slots, uintptr_t workspace, uintptr_t support) -> None:
        """Have the calls to come work on another state and another support of the same strides: see `Isv.relocate`."""
        self.ready().relocate(slots, workspace)
        self.support = <const float*> support

    cdef object fill(self, PyObject** arrays, bint gradient, Reader* reader, Call* call):
        """Read and check the arrays of a call and find its plan. Returns what keeps their memory, or None."""
        cdef Array array
        cdef Key key
        cdef Lead lead
        cdef int64_t actions = self.plans.problem.actions
        cdef int64_t atoms = self.plans.problem.atoms
        cdef object keep = None
        cdef object held
        self.plans.packed_key(&key)
        qpi_batch_init(&call.batch)
        call.batch.support = self.support
        call.unplaced_count = 0
        call.joins.count = 0
        lead.ndim = -1

        held = read_array(<object> arrays[Q], "q_logits", False, reader, &array)
        keep = held
        key.dtypes[0] = float_dtype(&array, "q_logits")
        if self.scalar:
            if array.ndim < 1 or array.shape[array.ndim - 1] != actions:
                wrong_shape(&array, "q_logits", &lead, str(actions))
            key.q[0] = row_stride(&array, "q_logits", &lead, 1, actions)
            key.q[1] = inner_stride(&array, 1, 1)
        else:
            if array.ndim < 2 or array.shape[array.ndim - 2] != actions or array.shape[array.ndim - 1] != atoms:
                wrong_shape(&array, "q_logits", &lead, f"{actions}, {atoms}")
            key.q[0] = row_stride(&array, "q_logits", &lead, 2, actions * atoms)
            key.q[1] = inner_stride(&array, 2, atoms)
            key.q[2] = inner_stride(&array, 1, 1)
        call.batch.rows = lead.rows
        call.batch.q_logits = array.data
        note_array(&array, Q, call)

        held = _read_rows(<object> arrays[PI], "pi_logits", False, actions, &lead, reader, &array, PI, call, key.pi)
        if held is not None:
            keep = (keep, held)
        key.dtypes[1] = float_dtype(&array, "pi_logits")
        call.batch.pi_logits = array.data

        if gradient:
            held = _read_rows(
                <object> arrays[GRAD], "pi_grad", True, actions, &lead, reader, &array, GRAD, call, key.grad)
            if held is not None:
                keep = (keep, held)
            key.dtypes[2] = float_dtype(&array, "pi_grad")
            if key.dtypes[2] != QPI_FLOAT32 and key.dtypes[2] != key.dtypes[1]:
                raise TypeError(
                    f"pi_grad: dtype {dtype_name(array.dtype)} is not supported here; expected float32, or the dtype "
                    "of pi_logits"
                )
            call.batch.pi_grad = array.data
        else:
            key.dtypes[2] = QPI_FLOAT32

        if arrays[LEGAL] != NULL:
            held = _read_rows(
                <object> arrays[LEGAL], "legal_actions", False, actions, &lead, reader, &array, LEGAL, call,
                key.legal)
            if held is not None:
                keep = (keep, held)
            if array.dtype != DT_BOOL and array.dtype != DT_UINT8 and array.dtype != DT_INT8:
                raise TypeError(
                    f"legal_actions: dtype {dtype_name(array.dtype)} is not supported; expected bool, uint8 or int8"
                )
            call.batch.legal_actions = <const uint8_t*> array.data

        if arrays[WEIGHTS] != NULL:
            held = read_array(<object> arrays[WEIGHTS], "row_weights", False, reader, &array)
            if held is not None:
                keep = (keep, held)
            need_float32(&array, "row_weights")
            key.weight = row_stride(&array, "row_weights", &lead, 0, 1)
            call.batch.row_weights = <const float*> array.data
            note_array(&array, WEIGHTS, call)

        if arrays[SCALE] != NULL:
            held = read_array(<object> arrays[SCALE], "grad_scale", False, reader, &array)
            if held is not None:
                keep = (keep, held)
            need_float32(&array, "grad_scale")
            if element_count(&array, "grad_scale") != 1:
                raise ValueError(f"grad_scale: shape {shape_text(array.shape, array.ndim)}, expected one element")
            call.batch.grad_scale = <const float*> array.data
            note_array(&array, SCALE, call)

        if call.batch.rows == 0 or self.plans.problem.flags & QPI_CHECK_POINTERS:  # no memory, or all of it is asked
            call.unplaced_count = 0
        call.plan = self.plans.find(&key)
        return keep

    cdef Isv ready(self):
        """The state vector, of an operator that has been initialised."""
        if self.handle is None:
            raise RuntimeError("this Distiller has not been initialised")
        return self.handle

    cdef int run(self, int what, PyObject** arrays, object stream, uintptr_t record) except -1:
        """One call from arrays to launch."""
        cdef Reader reader
        cdef Call call
        cdef PyObject* source = NULL
        cdef object owner = None
        cdef object _held  # owners of what the arrays hand over, until the launch
        cdef Isv isv = self.ready()
        start_reader(&reader, isv.c.device)
        if isv.c.device == QPI_DEVICE_CPU:
            no_stream(stream)
        elif stream is None:
            owner = work_stream(arrays, MAX_ARRAYS, True, &reader, &source)
        else:
            reader.stream = stream_handle(stream)
            if type(stream) is not int:
                owner = stream
        if what == MEASURE and isv.c.device != QPI_DEVICE_CPU:
            from qpi_distill import _gpu
            _gpu.refuse_capture(isv.c.device, reader.stream, "measuring")
        _held = self.fill(arrays, what != MEASURE, &reader, &call)
        launch(what, isv, &call, reader.stream, record)
        return isv.note(reader.stream, owner, <object> source if source != NULL else None)

    def step(
        self, q_logits, pi_logits, pi_grad, *, legal_actions=None, row_weights=None, grad_scale=None, stream=None
    ) -> None:
        """Add the gradient, update the moving averages and let the control law move lam.

        Parameters
        ----------
        q_logits : array, shape [..., A, Z], float32, float16 or bfloat16
            The critic's logits over the atoms.
        pi_logits : array, shape [..., A], float32, float16 or bfloat16
            The policy's logits; -inf marks an illegal action.
        pi_grad : array, shape [..., A], float32 or the dtype of pi_logits
            Gradient of the loss with respect to pi_logits, added to or overwritten according to `mode`. Must be
            writable and overlap nothing else.
        legal_actions : array, shape [..., A], bool, uint8 or int8, optional
            0 marks an illegal action, of which neither q_logits nor pi_logits are read.
        row_weights : array, shape [...], float32, optional
            Weights >= 0 of the rows, in the gradient and in the statistic.
        grad_scale : array of one element, float32, optional
            Multiplies the gradient, never the statistic.
        stream : int or stream object, optional
            Where the work is enqueued. None: the current stream of the library that the arrays come from; on the CPU
            it has to be None.

        Raises
        ------
        ValueError
            A shape that does not fit, leading dimensions that do not collapse to one row stride, a stream that is not
            known.
        TypeError
            A dtype or a kind of object that is not supported.
        BufferError
            Memory that is read-only, broadcast, overlapping, null, masked or on another device.
        OverflowError
            2^40 rows or more.
        """
        cdef PyObject* arrays[MAX_ARRAYS]
        collect(arrays, q_logits, pi_logits, pi_grad, legal_actions, row_weights, grad_scale)
        self.run(STEP, arrays, stream, 0)

    def accumulate(
        self, q_logits, pi_logits, pi_grad, *, legal_actions=None, row_weights=None, grad_scale=None, stream=None
    ) -> None:
        """Add the gradient, and the statistic to the record that `commit` will use.

        For micro-batches, the heads of a multi-discrete action space and the ranks of a data-parallel job, which then
        count as one observation. Uses lam and tau of the last commit. Parameters and errors as for `step`.
        """
        cdef PyObject* arrays[MAX_ARRAYS]
        collect(arrays, q_logits, pi_logits, pi_grad, legal_actions, row_weights, grad_scale)
        self.run(ACCUMULATE, arrays, stream, 0)

    def distill_grad(
        self, q_logits, pi_logits, pi_grad, *, legal_actions=None, row_weights=None, grad_scale=None, stream=None
    ) -> None:
        """Add the gradient and update the moving averages; lam stays. Parameters and errors as for `step`."""
        cdef PyObject* arrays[MAX_ARRAYS]
        collect(arrays, q_logits, pi_logits, pi_grad, legal_actions, row_weights, grad_scale)
        self.run(DISTILL_GRAD, arrays, stream, 0)

    def measure_into(self, uintptr_t record, q_logits, pi_logits, legal_actions, row_weights, stream) -> int:
        """Have the statistic of a batch stored in device memory and return the stream's handle."""
        cdef PyObject* arrays[MAX_ARRAYS]
        collect(arrays, q_logits, pi_logits, None, legal_actions, row_weights, None)
        self.run(MEASURE, arrays, stream, record)
        return self.handle.trace.handle

    def commit(self, stream=None) -> None:
        """Update the moving averages and lam from the record, which is empty afterwards.

        Parameters
        ----------
        stream : int or stream object, optional
            None: follow the last call on this ISV.
        """
        self.ready().call("commit", stream)

    def discard(self, stream=None) -> None:
        """Empty the record without using it: for an optimiser step that was skipped.

        Parameters
        ----------
        stream : int or stream object, optional
            None: follow the last call on this ISV.
        """
        self.ready().call("discard", stream)

    def bind(
        self, q_logits, pi_logits, pi_grad, *, legal_actions=None, row_weights=None, grad_scale=None, stream=None
    ) -> Bound:
        """Check the arrays once, where they live as well, for many calls on the same memory.

        Parameters
        ----------
        q_logits, pi_logits, pi_grad, legal_actions, row_weights, grad_scale : array
            As for `step`. They are kept alive.
        stream : int or stream object, optional
            Where producers that hand over by `__dlpack__` on a GPU order their work to. Others need none.

        Returns
        -------
        Bound
            With methods `step`, `accumulate` and `distill_grad`.

        Raises
        ------
        ValueError, TypeError, BufferError, OverflowError
            As for `step`.
        """
        cdef PyObject* arrays[MAX_ARRAYS]
        cdef PyObject* source = NULL
        cdef Reader reader
        cdef Call call
        cdef Bound bound = Bound.__new__(Bound)
        cdef Isv isv = self.ready()
        collect(arrays, q_logits, pi_logits, pi_grad, legal_actions, row_weights, grad_scale)
        start_reader(&reader, isv.c.device)
        if isv.c.device == QPI_DEVICE_CPU:
            no_stream(stream)
        elif stream is not None:
            reader.stream = stream_handle(stream)
        else:
            work_stream(arrays, MAX_ARRAYS, False, &reader, &source)
        keep = self.fill(arrays, True, &reader, &call)
        bound.plan = call.plan
        bound.batch = call.batch
        bound.isv = isv
        bound.prepare()
        bound.device = isv.c.device
        bound.row_count = call.batch.rows
        bound.joins = call.joins
        bound.source = <object> source if source != NULL else None
        bound.operator = self
        bound.arrays = (q_logits, pi_logits, pi_grad, legal_actions, row_weights, grad_scale, keep)
        return bound


# ---- the same methods without a tuple and a dict for every call ------------------------------------------------------

cdef tuple _PARAMETERS = ("q_logits", "pi_logits", "pi_grad", "legal_actions", "row_weights", "grad_scale", "stream")


cdef object _run(int what, str name, Operator operator, PyObject** arguments, Py_ssize_t count, PyObject* names):
    cdef PyObject* values[MAX_ARRAYS + 1]
    cdef PyObject* none = <PyObject*> None
    cdef int i
    for i in range(MAX_ARRAYS + 1):
        values[i] = NULL
    read_arguments(name, _PARAMETERS, 3, 3, arguments, count, names, values)
    for i in range(LEGAL, MAX_ARRAYS):
        if values[i] == none:
            values[i] = NULL
    operator.run(what, values, <object> values[MAX_ARRAYS] if values[MAX_ARRAYS] != NULL else None, 0)


cdef object _step(object operator, PyObject** arguments, Py_ssize_t count, PyObject* names):
    return _run(STEP, "step", <Operator> operator, arguments, count, names)


cdef object _accumulate(object operator, PyObject** arguments, Py_ssize_t count, PyObject* names):
    return _run(ACCUMULATE, "accumulate", <Operator> operator, arguments, count, names)


cdef object _distill_grad(object operator, PyObject** arguments, Py_ssize_t count, PyObject* names):
    return _run(DISTILL_GRAD, "distill_grad", <Operator> operator, arguments, count, names)


replace_method(Operator, "step", _step)
replace_method(Operator, "accumulate", _accumulate)
replace_method(Operator, "distill_grad", _distill_grad)
