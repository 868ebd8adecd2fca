# cython: language_level=3, freethreading_compatible=True, cdivision=True
# cython: binding=False, embedsignature=True, embedsignature.format=clinic
"""The step: arguments to a batch, strides to a plan, one call into the C library."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset

from qpi_distill._arrays cimport (
    DT_BFLOAT16,
    DT_BOOL,
    DT_FLOAT16,
    DT_FLOAT32,
    DT_INT8,
    DT_UINT8,
    GPU_UNKNOWN,
    MAX_NDIM,
    Array,
    Framework,
    Reader,
    dtype_name,
    element_count,
    is_packed,
    read_array,
    shape_text,
    work_stream,
)
from qpi_distill._isv cimport Isv
from qpi_distill._status cimport check
from qpi_distill._streams cimport stream_handle
from qpi_distill.c_api cimport (
    QPI_ABI,
    QPI_BFLOAT16,
    QPI_CHECK_POINTERS,
    QPI_DEVICE_CPU,
    QPI_FLOAT16,
    QPI_FLOAT32,
    QPI_KERNEL_AUTO,
    QPI_KERNEL_BLOCK,
    QPI_KERNEL_CPU_AVX2,
    QPI_KERNEL_CPU_AVX512,
    QPI_KERNEL_CPU_BASELINE,
    QPI_KERNEL_STREAM,
    QPI_KERNEL_TILE,
    QPI_KL_STAT_MEAN,
    QPI_KL_STAT_ROW0,
    QPI_MODE_ADD,
    QPI_MODE_WRITE,
    QPI_REDUCTION_MEAN,
    QPI_REDUCTION_SUM,
    QPI_SEED_ACTIONS,
    QPI_SEED_ATOMS,
    QPI_SEED_BUS_WORDS,
    QPI_VALUE_SCALE_NONE,
    QPI_VALUE_SCALE_RUNNING_STD,
    qpi_abi,
    qpi_accumulate,
    qpi_batch,
    qpi_batch_check,
    qpi_batch_init,
    qpi_build_info,
    qpi_distill_grad,
    qpi_dtype,
    qpi_isv,
    qpi_kernel,
    qpi_kl_stat,
    qpi_measure,
    qpi_mode,
    qpi_plan,
    qpi_plan_create,
    qpi_plan_describe,
    qpi_plan_destroy,
    qpi_problem,
    qpi_problem_init,
    qpi_record,
    qpi_reduction,
    qpi_seed_distill_grad,
    qpi_seed_lambda_controller,
    qpi_status,
    qpi_step,
    qpi_stream_t,
    qpi_value_scale,
    qpi_version,
)

import threading

cdef extern from *:
    """
    /* A node of the plan list is complete before it can be seen, also by threads that run without a GIL. */
    #define QPI_LOAD_NODE(pointer) __atomic_load_n(&(pointer), __ATOMIC_ACQUIRE)
    #define QPI_PUBLISH_NODE(pointer, node) __atomic_store_n(&(pointer), (node), __ATOMIC_RELEASE)
    """
    Node* QPI_LOAD_NODE(Node* pointer) nogil
    void QPI_PUBLISH_NODE(Node* pointer, Node* node) nogil

cdef extern from "Python.h":
    object PyMemoryView_FromMemory(char* memory, Py_ssize_t size, int flags)
    enum:
        PyBUF_WRITE

cdef enum:
    STEP
    ACCUMULATE
    DISTILL_GRAD
    MEASURE

# Positions of a call's arrays.
cdef enum:
    Q
    PI
    GRAD
    LEGAL
    WEIGHTS
    SCALE

cdef dict _REDUCTIONS = {"sum": <int> QPI_REDUCTION_SUM, "mean": <int> QPI_REDUCTION_MEAN}
cdef dict _MODES = {"add": <int> QPI_MODE_ADD, "write": <int> QPI_MODE_WRITE}
cdef dict _VALUE_SCALES = {"none": <int> QPI_VALUE_SCALE_NONE, "running_std": <int> QPI_VALUE_SCALE_RUNNING_STD}
cdef dict _KL_STATS = {"mean": <int> QPI_KL_STAT_MEAN, "row0": <int> QPI_KL_STAT_ROW0}
cdef dict _KERNELS = {
    "auto": <int> QPI_KERNEL_AUTO,
    "stream": <int> QPI_KERNEL_STREAM,
    "tile": <int> QPI_KERNEL_TILE,
    "block": <int> QPI_KERNEL_BLOCK,
    "baseline": <int> QPI_KERNEL_CPU_BASELINE,
    "avx2": <int> QPI_KERNEL_CPU_AVX2,
    "avx512": <int> QPI_KERNEL_CPU_AVX512,
}
cdef dict _DTYPES = {"float32": <int> QPI_FLOAT32, "float16": <int> QPI_FLOAT16, "bfloat16": <int> QPI_BFLOAT16}

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


cdef int _option(dict names, object value, str name) except -1:
    """The enumerator of an option given by name."""
    code = names.get(value) if isinstance(value, str) else None
    if code is None:
        raise ValueError(f"{name}: {value!r} is not one of {', '.join([repr(key) for key in names])}")
    return code


cdef int _dtype_option(object value, str name) except -1:
    """The enumerator of a dtype given by name, as a NumPy dtype or type, or as a torch dtype."""
    text = value if isinstance(value, str) else getattr(value, "name", None) or getattr(value, "__name__", str(value))
    code = _DTYPES.get(text.rpartition(".")[2])
    if code is None:
        raise TypeError(f"{name}: dtype {value!r} is not supported; expected one of {', '.join(_DTYPES)}")
    return code


# ---- what a call consists of -----------------------------------------------------------------------------------------

# What may change from call to call and decides about the plan. Compared bytewise: always cleared before it is filled.
ctypedef struct Key:
    int64_t[3] dtypes  # q, pi, grad
    int64_t[3] q
    int64_t[2] pi
    int64_t[2] grad
    int64_t[2] legal
    int64_t weight


# Plans are only ever added at the head, under a lock, so that readers need none.
cdef struct Node:
    Key key
    qpi_plan* plan
    Node* next


cdef enum:
    MAX_ARRAYS = 6

ctypedef struct Call:
    qpi_batch batch
    const qpi_plan* plan
    bint verify  # an array did not say on which GPU it is
    int joins
    uintptr_t[MAX_ARRAYS] join  # streams of producers that have to be ordered with ours


# ---- shapes ----------------------------------------------------------------------------------------------------------

cdef struct Lead:
    int32_t ndim  # -1: not known yet
    int64_t rows
    int64_t[MAX_NDIM] shape


cdef int _float_dtype(const Array* array, str name) except -1:
    if array.dtype == DT_FLOAT32:
        return QPI_FLOAT32
    if array.dtype == DT_FLOAT16:
        return QPI_FLOAT16
    if array.dtype == DT_BFLOAT16:
        return QPI_BFLOAT16
    raise TypeError(
        f"{name}: dtype {dtype_name(array.dtype)} is not supported; expected float32, float16 or bfloat16"
    )


cdef int _need_float32(const Array* array, str name) except -1:
    if array.dtype != DT_FLOAT32:
        raise TypeError(f"{name}: dtype {dtype_name(array.dtype)} is not supported; expected float32")
    return 0


cdef int _wrong_shape(const Array* array, str name, const Lead* lead, str trailing) except -1:
    """Raise the error for a shape that does not fit."""
    if lead.ndim < 0:
        expected = f"(..., {trailing})"
    else:
        expected = ", ".join([str(lead.shape[i]) for i in range(lead.ndim)] + ([trailing] if trailing else []))
        expected = f"({expected}), with the leading dimensions of q_logits"
    raise ValueError(f"{name}: shape {shape_text(array.shape, array.ndim)}, expected {expected}")


cdef int _wrong_leading(const Array* array, str name, const Lead* lead, int trailing) except -1:
    _wrong_shape(
        array, name, lead, ", ".join([str(array.shape[i]) for i in range(max(array.ndim - trailing, 0), array.ndim)])
    )


cdef int64_t _row_stride(const Array* array, str name, Lead* lead, int trailing, int64_t packed) except? -1:
    """Check the leading dimensions and return the one stride, in elements, that they collapse to.

    Dimensions of one element do not count, and with at most one row the stride is the packed one: equal problems then
    share a plan whatever the unused strides are.
    """
    cdef int32_t ndim = array.ndim - trailing
    cdef int32_t i
    cdef int64_t stride = 0
    cdef int64_t reach = 0  # the stride that the next outer dimension needs
    cdef bint found = False
    if ndim < 0 or (lead.ndim >= 0 and ndim != lead.ndim):
        _wrong_leading(array, name, lead, trailing)
    if lead.ndim < 0:
        # The trailing extents are 1 or more, so that no product of leading ones exceeds the checked one of all.
        lead.ndim = ndim
        lead.rows = element_count(array, name)
        for i in range(ndim, array.ndim):
            lead.rows //= array.shape[i]
        for i in range(ndim):
            lead.shape[i] = array.shape[i]
    else:
        for i in range(ndim):
            if array.shape[i] != lead.shape[i]:
                _wrong_leading(array, name, lead, trailing)
    if lead.rows <= 1:
        return packed
    for i in range(ndim - 1, -1, -1):
        if array.shape[i] == 1:
            continue
        if not found:
            found = True
            stride = array.strides[i]
        elif array.strides[i] != reach:
            raise ValueError(
                f"{name}: leading dimensions {shape_text(array.shape, ndim)} with strides "
                f"{shape_text(array.strides, ndim)} do not collapse to one row stride; pass an array whose rows are "
                "evenly spaced (nothing is copied here)"
            )
        reach = array.strides[i] * array.shape[i]
    return stride


cdef int _check_output(const Array* array, str name) except -1:
    """Refuse an output whose elements share memory."""
    cdef int32_t i
    if element_count(array, name) == 0:
        return 0
    for i in range(array.ndim):
        if array.shape[i] > 1 and array.strides[i] == 0:
            raise BufferError(
                f"{name}: dimension {i} is broadcast (stride 0), so that its elements share memory; pass an array of "
                "its own"
            )
    return 0


cdef int64_t _inner(const Array* array, int32_t back, int64_t packed) noexcept:
    """The stride of a trailing dimension, or the packed one where the dimension has a single element."""
    cdef int32_t i = array.ndim - back
    return packed if array.shape[i] == 1 else array.strides[i]


cdef void _note(const Array* array, Call* call) noexcept:
    """Remember what an array asks of the launch."""
    cdef int i
    if array.device == GPU_UNKNOWN:
        call.verify = True
    if array.stream == 0:
        return
    for i in range(call.joins):
        if call.join[i] == array.stream:
            return
    call.join[call.joins] = array.stream
    call.joins += 1


cdef object _read_rows(object obj, str name, bint output, int64_t actions, Lead* lead, Reader* reader, Array* array,
                       Call* call, int64_t* strides):
    """Read an array of shape [..., A] and its strides per row and action. Returns what keeps its memory, or None."""
    cdef object held = read_array(obj, name, output, reader, array)
    if array.ndim < 1 or array.shape[array.ndim - 1] != actions:
        _wrong_shape(array, name, lead, str(actions))
    if output:
        _check_output(array, name)
    strides[0] = _row_stride(array, name, lead, 1, actions)
    strides[1] = _inner(array, 1, 1)
    _note(array, call)
    return held


# ---- the operator ----------------------------------------------------------------------------------------------------

cdef qpi_status _enqueue(int what, const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch,
                         qpi_stream_t stream, uintptr_t record) noexcept nogil:
    if what == STEP:
        return qpi_step(plan, isv, batch, stream)
    if what == ACCUMULATE:
        return qpi_accumulate(plan, isv, batch, stream)
    if what == DISTILL_GRAD:
        return qpi_distill_grad(plan, isv, batch, stream)
    return qpi_measure(plan, isv, batch, <qpi_record*> record, stream)


cdef int _join(int32_t device, const Call* call, uintptr_t stream, bint after) except -1:
    """Order our stream after the producers' (before the work), or theirs after ours."""
    from qpi_distill import _gpu
    cdef int i
    for i in range(call.joins):
        if call.join[i] != stream:
            if after:
                _gpu.wait(device, call.join[i], stream)
            else:
                _gpu.wait(device, stream, call.join[i])
    return 0


cdef int _verify_inputs(int32_t device, const Call* call) except -1:
    """Ask the driver where the inputs live: qpi_batch_check is for calls with a gradient."""
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


cdef int _launch(int what, Isv isv, const Call* call, uintptr_t stream, uintptr_t record) except -1:
    cdef qpi_status status
    cdef const qpi_plan* plan = call.plan
    if call.verify:
        if what == MEASURE:
            _verify_inputs(isv.c.device, call)
        else:
            with nogil:
                status = qpi_batch_check(plan, &isv.c, &call.batch)
            check(status)
    if call.joins:
        _join(isv.c.device, call, stream, False)
    with nogil:
        status = _enqueue(what, plan, &isv.c, &call.batch, <qpi_stream_t> stream, record)
    check(status)
    if call.joins:
        _join(isv.c.device, call, stream, True)
    return 0


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
    """
    cdef qpi_problem problem
    cdef readonly Isv handle
    cdef readonly object support_memory
    cdef Node* plans
    cdef object lock
    cdef bint checked
    cdef const float* support

    def __cinit__(self):
        self.plans = NULL

    def __init__(
        self, Isv handle not None, int64_t actions, int64_t atoms, uintptr_t support, tuple support_strides,
        support_memory, *, reduction, mode, value_scale, kl_stat, kernel, float illegal_below, q_dtype, pi_dtype,
        grad_dtype, bint checked, int32_t max_blocks, int32_t max_threads,
    ):
        if self.lock is not None:
            raise RuntimeError("an operator is initialised once")
        qpi_problem_init(&self.problem)
        self.problem.device = handle.c.device
        self.problem.actions = actions
        self.problem.atoms = atoms
        self.problem.reduction = <qpi_reduction> _option(_REDUCTIONS, reduction, "reduction")
        self.problem.mode = <qpi_mode> _option(_MODES, mode, "mode")
        self.problem.value_scale = <qpi_value_scale> _option(_VALUE_SCALES, value_scale, "value_scale")
        self.problem.kl_stat = <qpi_kl_stat> _option(_KL_STATS, kl_stat, "kl_stat")
        self.problem.kernel = <qpi_kernel> _option(_KERNELS, kernel, "kernel")
        self.problem.illegal_below = illegal_below
        self.problem.support_stride[0], self.problem.support_stride[1] = support_strides
        self.problem.flags = QPI_CHECK_POINTERS if checked else 0
        self.problem.max_blocks = max_blocks
        self.problem.max_threads = max_threads
        self.checked = checked
        self.handle = handle
        self.support = <const float*> support
        self.support_memory = support_memory
        self.lock = threading.Lock()
        self.prepare(q_dtype, pi_dtype, grad_dtype)

    def __dealloc__(self):
        cdef Node* node = self.plans
        cdef Node* following
        while node != NULL:
            following = node.next
            with nogil:
                qpi_plan_destroy(node.plan)
            free(node)
            node = following

    cdef const qpi_plan* plan_for(self, const Key* key) except NULL:
        """The plan for a key; made where there is none yet."""
        cdef Node* node = QPI_LOAD_NODE(self.plans)
        while node != NULL:
            if memcmp(&node.key, key, sizeof(Key)) == 0:
                return node.plan
            node = node.next
        return self._make(key)

    cdef const qpi_plan* _make(self, const Key* key) except NULL:
        cdef Node* node
        cdef qpi_problem problem
        cdef qpi_plan* plan = NULL
        cdef qpi_status status
        cdef int i
        with self.lock:
            node = self.plans
            while node != NULL:  # another thread may have been faster
                if memcmp(&node.key, key, sizeof(Key)) == 0:
                    return node.plan
                node = node.next
            problem = self.problem
            problem.q_dtype = <qpi_dtype> key.dtypes[0]
            problem.pi_dtype = <qpi_dtype> key.dtypes[1]
            problem.grad_dtype = <qpi_dtype> key.dtypes[2]
            for i in range(3):
                problem.q_stride[i] = key.q[i]
            for i in range(2):
                problem.pi_stride[i] = key.pi[i]
                problem.grad_stride[i] = key.grad[i]
                problem.legal_stride[i] = key.legal[i]
            problem.weight_stride = key.weight
            with nogil:
                status = qpi_plan_create(&problem, &plan)
            check(status)
            node = <Node*> calloc(1, sizeof(Node))
            if node == NULL:
                qpi_plan_destroy(plan)
                raise MemoryError()
            node.key = key[0]
            node.plan = plan
            node.next = self.plans
            QPI_PUBLISH_NODE(self.plans, node)
            return plan

    cdef void _packed_key(self, Key* key) noexcept:
        memset(key, 0, sizeof(Key))
        key.q[0] = self.problem.actions * self.problem.atoms
        key.q[1] = self.problem.atoms
        key.q[2] = 1
        key.pi[0] = key.grad[0] = key.legal[0] = self.problem.actions
        key.pi[1] = key.grad[1] = key.legal[1] = 1
        key.weight = 1

    def prepare(self, q_dtype="float32", pi_dtype="float32", grad_dtype="float32") -> None:
        """Make the plan for packed arrays of these dtypes, so that the first step with them may be captured.

        Parameters
        ----------
        q_dtype, pi_dtype, grad_dtype : str or dtype
            float32, float16 or bfloat16; grad_dtype is float32 or pi_dtype.
        """
        cdef Key key
        self._ready()
        self._packed_key(&key)
        key.dtypes[0] = _dtype_option(q_dtype, "q_dtype")
        key.dtypes[1] = _dtype_option(pi_dtype, "pi_dtype")
        key.dtypes[2] = _dtype_option(grad_dtype, "grad_dtype")
        self.plan_for(&key)

    def describe(self, int64_t rows, q_dtype, pi_dtype, grad_dtype) -> str:
        """Return which kernel serves packed arrays with this many rows, and why."""
        cdef Key key
        cdef const qpi_plan* plan
        cdef size_t length = 0
        self._ready()
        self._packed_key(&key)
        key.dtypes[0] = _dtype_option(q_dtype, "q_dtype")
        key.dtypes[1] = _dtype_option(pi_dtype, "pi_dtype")
        key.dtypes[2] = _dtype_option(grad_dtype, "grad_dtype")
        plan = self.plan_for(&key)
        check(qpi_plan_describe(plan, rows, NULL, 0, &length))
        text = bytearray(length + 1)
        cdef char* memory = text
        check(qpi_plan_describe(plan, rows, memory, length + 1, &length))
        return text[:length].decode("utf-8")

    @property
    def plan_count(self) -> int:
        """How many plans have been made."""
        cdef Node* node = QPI_LOAD_NODE(self.plans)
        cdef int count = 0
        while node != NULL:
            count += 1
            node = node.next
        return count

    cdef object fill(self, PyObject** arrays, bint gradient, Reader* reader, Call* call):
        """Read and check the arrays of a call and find its plan. Returns what keeps their memory, or None."""
        cdef Array array
        cdef Key key
        cdef Lead lead
        cdef int64_t actions = self.problem.actions
        cdef int64_t atoms = self.problem.atoms
        cdef object keep = None
        cdef object held
        self._packed_key(&key)
        qpi_batch_init(&call.batch)
        call.batch.support = self.support
        call.verify = False
        call.joins = 0
        lead.ndim = -1

        held = read_array(<object> arrays[Q], "q_logits", False, reader, &array)
        keep = held
        key.dtypes[0] = _float_dtype(&array, "q_logits")
        if array.ndim < 2 or array.shape[array.ndim - 2] != actions or array.shape[array.ndim - 1] != atoms:
            _wrong_shape(&array, "q_logits", &lead, f"{actions}, {atoms}")
        key.q[0] = _row_stride(&array, "q_logits", &lead, 2, actions * atoms)
        key.q[1] = _inner(&array, 2, atoms)
        key.q[2] = _inner(&array, 1, 1)
        call.batch.rows = lead.rows
        call.batch.q_logits = array.data
        _note(&array, call)

        held = _read_rows(<object> arrays[PI], "pi_logits", False, actions, &lead, reader, &array, call, key.pi)
        if held is not None:
            keep = (keep, held)
        key.dtypes[1] = _float_dtype(&array, "pi_logits")
        call.batch.pi_logits = array.data

        if gradient:
            held = _read_rows(<object> arrays[GRAD], "pi_grad", True, actions, &lead, reader, &array, call, key.grad)
            if held is not None:
                keep = (keep, held)
            key.dtypes[2] = _float_dtype(&array, "pi_grad")
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
                <object> arrays[LEGAL], "legal_actions", False, actions, &lead, reader, &array, call, key.legal)
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
            _need_float32(&array, "row_weights")
            key.weight = _row_stride(&array, "row_weights", &lead, 0, 1)
            call.batch.row_weights = <const float*> array.data
            _note(&array, call)

        if arrays[SCALE] != NULL:
            held = read_array(<object> arrays[SCALE], "grad_scale", False, reader, &array)
            if held is not None:
                keep = (keep, held)
            _need_float32(&array, "grad_scale")
            if element_count(&array, "grad_scale") != 1:
                raise ValueError(f"grad_scale: shape {shape_text(array.shape, array.ndim)}, expected one element")
            call.batch.grad_scale = <const float*> array.data
            _note(&array, call)

        call.verify = call.verify and not self.checked and call.batch.rows > 0
        call.plan = self.plan_for(&key)
        return keep

    cdef Isv _ready(self):
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
        cdef Isv isv = self._ready()
        reader.type = NULL
        reader.framework = NULL
        reader.device = isv.c.device
        reader.stream = 0
        if isv.c.device == QPI_DEVICE_CPU:
            if stream is not None:
                raise ValueError("stream: work on the CPU has no stream; leave it out")
        elif stream is None:
            owner = work_stream(arrays, MAX_ARRAYS, isv.c.device, True, &reader.stream, &source)
        else:
            reader.stream = stream_handle(stream)
            if type(stream) is not int:
                owner = stream
        if what == MEASURE and isv.c.device != QPI_DEVICE_CPU:
            from qpi_distill import _gpu
            _gpu.refuse_capture(isv.c.device, reader.stream, "measuring")
        _held = self.fill(arrays, what != MEASURE, &reader, &call)
        _launch(what, isv, &call, reader.stream, record)
        isv.note(reader.stream, owner, <object> source if source != NULL else None)
        return 0

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
        _collect(arrays, q_logits, pi_logits, pi_grad, legal_actions, row_weights, grad_scale)
        self.run(STEP, arrays, stream, 0)

    def accumulate(
        self, q_logits, pi_logits, pi_grad, *, legal_actions=None, row_weights=None, grad_scale=None, stream=None
    ) -> None:
        """Add the gradient, and the statistic to the record that `commit` will use.

        For micro-batches, the heads of a multi-discrete action space and the ranks of a data-parallel job, which then
        count as one observation. Uses lam and tau of the last commit. Parameters and errors as for `step`.
        """
        cdef PyObject* arrays[MAX_ARRAYS]
        _collect(arrays, q_logits, pi_logits, pi_grad, legal_actions, row_weights, grad_scale)
        self.run(ACCUMULATE, arrays, stream, 0)

    def distill_grad(
        self, q_logits, pi_logits, pi_grad, *, legal_actions=None, row_weights=None, grad_scale=None, stream=None
    ) -> None:
        """Add the gradient and update the moving averages; lam stays. Parameters and errors as for `step`."""
        cdef PyObject* arrays[MAX_ARRAYS]
        _collect(arrays, q_logits, pi_logits, pi_grad, legal_actions, row_weights, grad_scale)
        self.run(DISTILL_GRAD, arrays, stream, 0)

    def measure_into(self, uintptr_t record, q_logits, pi_logits, legal_actions, row_weights, stream) -> int:
        """Have the statistic of a batch stored in device memory and return the stream's handle."""
        cdef PyObject* arrays[MAX_ARRAYS]
        _collect(arrays, q_logits, pi_logits, None, legal_actions, row_weights, None)
        self.run(MEASURE, arrays, stream, record)
        return self.handle.trace.handle

    def commit(self, stream=None) -> None:
        """Update the moving averages and lam from the record, which is empty afterwards.

        Parameters
        ----------
        stream : int or stream object, optional
            None: follow the last call on this ISV.
        """
        self._ready().call("commit", stream)

    def discard(self, stream=None) -> None:
        """Empty the record without using it: for an optimiser step that was skipped.

        Parameters
        ----------
        stream : int or stream object, optional
            None: follow the last call on this ISV.
        """
        self._ready().call("discard", stream)

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
        cdef Bound bound = Bound.__new__(Bound)
        cdef qpi_status status
        cdef Isv isv = self._ready()
        cdef const qpi_plan* plan
        _collect(arrays, q_logits, pi_logits, pi_grad, legal_actions, row_weights, grad_scale)
        reader.type = NULL
        reader.framework = NULL
        reader.device = isv.c.device
        reader.stream = 0
        if isv.c.device == QPI_DEVICE_CPU:
            if stream is not None:
                raise ValueError("stream: work on the CPU has no stream; leave it out")
        else:
            if stream is not None:
                reader.stream = stream_handle(stream)
            else:
                work_stream(arrays, MAX_ARRAYS, isv.c.device, False, &reader.stream, &source)
        keep = self.fill(arrays, True, &reader, &bound.call)
        plan = bound.call.plan
        with nogil:
            status = qpi_batch_check(plan, &isv.c, &bound.call.batch)
        check(status)
        bound.call.verify = False
        bound.operator = self
        bound.source = <object> source if source != NULL else None
        bound.arrays = (q_logits, pi_logits, pi_grad, legal_actions, row_weights, grad_scale, keep)
        return bound


cdef inline void _collect(PyObject** arrays, object q, object pi, object grad, object legal, object weights,
                          object scale) noexcept:
    """The arguments of a call in the order of their positions; NULL for what is optional and left out."""
    arrays[Q] = <PyObject*> q
    arrays[PI] = <PyObject*> pi
    arrays[GRAD] = <PyObject*> grad
    arrays[LEGAL] = <PyObject*> legal if legal is not None else NULL
    arrays[WEIGHTS] = <PyObject*> weights if weights is not None else NULL
    arrays[SCALE] = <PyObject*> scale if scale is not None else NULL


cdef class Bound:
    """Arrays that have been checked: what `Distiller.bind` returns. Keeps them alive.

    The arrays have to stay where they are (a tensor that is resized, or whose storage is swapped, has to be bound
    anew). Producers whose array interface names a stream are ordered with every call.
    """
    cdef Operator operator
    cdef Call call
    cdef object arrays
    cdef object source

    def __init__(self):
        raise TypeError("bound calls are made by Distiller.bind")

    cdef int run(self, int what, object stream) except -1:
        if self.operator is None:
            raise RuntimeError("bound calls are made by Distiller.bind")
        cdef Isv isv = self.operator.handle
        cdef uintptr_t handle = 0
        cdef object owner = None
        cdef object source = None
        if isv.c.device == QPI_DEVICE_CPU:
            if stream is not None:
                raise ValueError("stream: work on the CPU has no stream; leave it out")
        elif stream is not None:
            handle = stream_handle(stream)
            if type(stream) is not int:
                owner = stream
        else:
            source = self.source
            if source is not None:
                owner = (<Framework> source).current_stream(None, isv.c.device, &handle)
            if handle == 0:
                raise ValueError(
                    "stream: the current stream of the library that these arrays come from is not known; "
                    "pass stream=..."
                )
        _launch(what, isv, &self.call, handle, 0)
        isv.note(handle, owner, source)
        return 0

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
        return self.call.batch.rows


# ---- the seed kernels ------------------------------------------------------------------------------------------------

cdef object _read_seed(object obj, str name, bint output, tuple trailing, Lead* lead, Reader* reader, Array* array,
                       Call* call):
    """Read a packed float32 array for the seed kernels. Returns what keeps its memory, or None."""
    cdef int32_t count = <int32_t> len(trailing)
    cdef int32_t i
    cdef object held = read_array(obj, name, output, reader, array)
    _need_float32(array, name)
    text = ", ".join([str(n) for n in trailing])
    for i in range(count):
        if array.ndim < count or array.shape[array.ndim - count + i] != trailing[i]:
            _wrong_shape(array, name, lead, text)
    if output:
        _check_output(array, name)
    _row_stride(array, name, lead, count, 1)
    if not is_packed(array):
        raise ValueError(f"{name}: has to be in C order without gaps")
    _note(array, call)
    return held


cdef int _seed_reader(PyObject** arrays, int32_t device, object stream, Reader* reader) except -1:
    cdef PyObject* source
    reader.type = NULL
    reader.framework = NULL
    reader.device = device
    reader.stream = 0
    if device == QPI_DEVICE_CPU:
        if stream is not None:
            raise ValueError("stream: work on the CPU has no stream; leave it out")
    elif stream is not None:
        reader.stream = stream_handle(stream)
    else:
        work_stream(arrays, MAX_ARRAYS, device, True, &reader.stream, &source)
    return 0


cdef object _read_bus(object obj, Reader* reader, Array* array, Call* call):
    cdef object held = read_array(obj, "isv", True, reader, array)
    _need_float32(array, "isv")
    if array.ndim != 1 or array.shape[0] < QPI_SEED_BUS_WORDS or not is_packed(array):
        raise ValueError(
            f"isv: shape {shape_text(array.shape, array.ndim)}, expected one packed dimension of at least "
            f"{<int> QPI_SEED_BUS_WORDS}"
        )
    _note(array, call)
    return held


def seed_distill_grad(q_logits, pi_logits, atom_supports, isv, pi_grad_logits, int32_t device, stream) -> None:
    """Run the semantics of the first seed kernel on a device."""
    cdef PyObject* arrays[MAX_ARRAYS]
    cdef Reader reader
    cdef Call call
    cdef Lead lead
    cdef Array q, pi, support, bus, grad
    cdef qpi_status status
    _collect(arrays, q_logits, pi_logits, pi_grad_logits, isv, atom_supports, None)
    _seed_reader(arrays, device, stream, &reader)
    call.joins = 0
    call.verify = False
    lead.ndim = -1
    cdef int actions = QPI_SEED_ACTIONS
    cdef int atoms = QPI_SEED_ATOMS
    keep = [
        _read_seed(q_logits, "q_logits", False, (actions, atoms), &lead, &reader, &q, &call),
        _read_seed(pi_logits, "pi_logits", False, (actions,), &lead, &reader, &pi, &call),
        _read_seed(pi_grad_logits, "pi_grad_logits", True, (actions,), &lead, &reader, &grad, &call),
    ]
    cdef int64_t rows = lead.rows
    lead.ndim = -1
    keep.append(_read_seed(atom_supports, "atom_supports", False, (atoms,), &lead, &reader, &support, &call))
    if lead.rows != 1:
        raise ValueError(f"atom_supports: shape {shape_text(support.shape, support.ndim)}, expected ({atoms},)")
    keep.append(_read_bus(isv, &reader, &bus, &call))
    if call.joins:
        _join(device, &call, reader.stream, False)
    with nogil:
        status = qpi_seed_distill_grad(
            <const float*> q.data, <const float*> pi.data, <const float*> support.data, <float*> bus.data,
            <float*> grad.data, rows, device, <qpi_stream_t> reader.stream)
    check(status)
    if call.joins:
        _join(device, &call, reader.stream, True)


def seed_lambda_controller(isv, int32_t device, stream) -> None:
    """Run the semantics of the second seed kernel on a device."""
    cdef PyObject* arrays[MAX_ARRAYS]
    cdef Reader reader
    cdef Call call
    cdef Array bus
    cdef qpi_status status
    memset(arrays, 0, sizeof(arrays))
    arrays[0] = <PyObject*> isv
    _seed_reader(arrays, device, stream, &reader)
    call.joins = 0
    _held = _read_bus(isv, &reader, &bus, &call)
    if call.joins:
        _join(device, &call, reader.stream, False)
    with nogil:
        status = qpi_seed_lambda_controller(<float*> bus.data, device, <qpi_stream_t> reader.stream)
    check(status)
    if call.joins:
        _join(device, &call, reader.stream, True)
