# cython: language_level=3, freethreading_compatible=True, cdivision=True
"""The plans of one problem: options by name, and a table from dtypes and strides to plans."""

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset

from qpi_distill._status cimport check
from qpi_distill.c_api cimport (
    QPI_BFLOAT16,
    QPI_CHECK_POINTERS,
    QPI_CONTROL_STAT_KL,
    QPI_CONTROL_STAT_LOSS,
    QPI_CRITIC_CATEGORICAL,
    QPI_CRITIC_QUANTILE,
    QPI_DIVERGENCE_FORWARD_KL,
    QPI_DIVERGENCE_HELLINGER,
    QPI_DIVERGENCE_JENSEN_SHANNON,
    QPI_DIVERGENCE_REVERSE_KL,
    QPI_DIVERGENCE_TOTAL_VARIATION,
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
    QPI_SUMMARY,
    QPI_TARGET_BOLTZMANN,
    QPI_TARGET_GREEDY,
    QPI_VALUE_SCALE_NONE,
    QPI_VALUE_SCALE_RUNNING_STD,
    qpi_control_stat,
    qpi_critic,
    qpi_divergence,
    qpi_dtype,
    qpi_kernel,
    qpi_kl_stat,
    qpi_mode,
    qpi_plan,
    qpi_plan_create,
    qpi_plan_describe,
    qpi_plan_destroy,
    qpi_problem,
    qpi_problem_init,
    qpi_reduction,
    qpi_status,
    qpi_target,
    qpi_value_scale,
)

import threading

cdef extern from *:
    """
    /* A node is complete before it can be seen, also by threads that run without a GIL. */
    #define QPI_LOAD_NODE(pointer) __atomic_load_n(&(pointer), __ATOMIC_ACQUIRE)
    #define QPI_PUBLISH_NODE(pointer, node) __atomic_store_n(&(pointer), (node), __ATOMIC_RELEASE)
    """
    Node* QPI_LOAD_NODE(Node* pointer) nogil
    void QPI_PUBLISH_NODE(Node* pointer, Node* node) nogil

cdef dict _REDUCTIONS = {"sum": <int> QPI_REDUCTION_SUM, "mean": <int> QPI_REDUCTION_MEAN}
cdef dict _MODES = {"add": <int> QPI_MODE_ADD, "write": <int> QPI_MODE_WRITE}
cdef dict _VALUE_SCALES = {"none": <int> QPI_VALUE_SCALE_NONE, "running_std": <int> QPI_VALUE_SCALE_RUNNING_STD}
cdef dict _KL_STATS = {"mean": <int> QPI_KL_STAT_MEAN, "row0": <int> QPI_KL_STAT_ROW0}
cdef dict _CRITICS = {
    "categorical": <int> QPI_CRITIC_CATEGORICAL,
    "quantile": <int> QPI_CRITIC_QUANTILE,
    "scalar": <int> QPI_CRITIC_QUANTILE,  # of one quantile
}
cdef dict _TARGETS = {"boltzmann": <int> QPI_TARGET_BOLTZMANN, "greedy": <int> QPI_TARGET_GREEDY}
cdef dict _DIVERGENCES = {
    "forward_kl": <int> QPI_DIVERGENCE_FORWARD_KL,
    "reverse_kl": <int> QPI_DIVERGENCE_REVERSE_KL,
    "jensen_shannon": <int> QPI_DIVERGENCE_JENSEN_SHANNON,
    "hellinger": <int> QPI_DIVERGENCE_HELLINGER,
    "total_variation": <int> QPI_DIVERGENCE_TOTAL_VARIATION,
}
cdef dict _CONTROL_STATS = {"kl": <int> QPI_CONTROL_STAT_KL, "loss": <int> QPI_CONTROL_STAT_LOSS}
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


cdef int _option(dict names, object value, str name) except -1:
    """The enumerator of an option given by name."""
    code = names.get(value) if isinstance(value, str) else None
    if code is None:
        raise ValueError(f"{name}: {value!r} is not one of {', '.join([repr(key) for key in names])}")
    return code


cdef int _dtype_option(object value, str name) except -1:
    """The enumerator of a dtype given by name, as a NumPy dtype or type, or as a torch dtype."""
    text = value if isinstance(value, str) else getattr(value, "name", None) or getattr(value, "__name__", str(value))
    code = _DTYPES.get(text.rpartition(".")[2]) if isinstance(text, str) else None
    if code is None:
        raise TypeError(f"{name}: dtype {value!r} is not supported; expected one of {', '.join(_DTYPES)}")
    return code


cdef int _bucket(const Key* key) noexcept nogil:
    """Where a key belongs. The multiplications do not wait for each other."""
    cdef const uint64_t* words = <const uint64_t*> key
    cdef uint64_t factor = 0x9E3779B97F4A7C15U  # odd
    cdef uint64_t step = 0xC6A4A7935BD1E994U  # even, so that every factor is odd
    cdef uint64_t hashed = 0
    cdef size_t i
    for i in range(sizeof(Key) // sizeof(uint64_t)):
        hashed += words[i] * (factor + i * step)
    return <int> (hashed >> 58)  # the top bits depend on all others; 2^6 of them are BUCKETS


cdef class Plans:
    """The plans of one problem, made when their dtypes and strides are first met, and kept.

    None is ever dropped: a graph captured with a plan must not outlive it, and nobody can tell what was captured. What
    that costs is bounded by the layouts in use (about a kilobyte for each), never by the number of calls or rows.

    Parameters
    ----------
    device : int
        -1 for the CPU, or the ordinal of a GPU.
    actions, atoms : int
        Sizes of the problem.
    support_strides : tuple of int
        In elements, per action and per atom.
    reduction, mode, value_scale, kl_stat, kernel : str
        Options by name.
    illegal_below : float
        pi_logits at or below it mark an illegal action.
    checked : bool
        Whether every call asks the driver where each pointer lives.
    max_blocks, max_threads : int
        Upper bounds, 0: none.
    critic, target, divergence, control_stat : str
        Members of the family by name.
    epsilon, beta, policy_temperature : float
        Their numbers.
    summary : bool
        Whether each batch is summed up (qpi_summary).
    """

    def __init__(
        self, int device, int64_t actions, int64_t atoms, tuple support_strides, *, reduction, mode, value_scale,
        kl_stat, kernel, float illegal_below, bint checked, int max_blocks, int max_threads, critic, target,
        float epsilon, divergence, float beta, float policy_temperature, control_stat, bint summary,
    ):
        qpi_problem_init(&self.problem)
        self.problem.device = device
        self.problem.actions = actions
        self.problem.atoms = atoms
        self.problem.reduction = <qpi_reduction> _option(_REDUCTIONS, reduction, "reduction")
        self.problem.mode = <qpi_mode> _option(_MODES, mode, "mode")
        self.problem.value_scale = <qpi_value_scale> _option(_VALUE_SCALES, value_scale, "value_scale")
        self.problem.kl_stat = <qpi_kl_stat> _option(_KL_STATS, kl_stat, "kl_stat")
        self.problem.kernel = <qpi_kernel> _option(_KERNELS, kernel, "kernel")
        self.problem.illegal_below = illegal_below
        self.problem.support_stride[0], self.problem.support_stride[1] = support_strides
        self.problem.flags = (QPI_CHECK_POINTERS if checked else 0) | (QPI_SUMMARY if summary else 0)
        self.problem.max_blocks = max_blocks
        self.problem.max_threads = max_threads
        self.problem.critic = <qpi_critic> _option(_CRITICS, critic, "critic")
        self.problem.target = <qpi_target> _option(_TARGETS, target, "target")
        self.problem.target_epsilon = epsilon
        self.problem.divergence = <qpi_divergence> _option(_DIVERGENCES, divergence, "divergence")
        self.problem.divergence_beta = beta
        self.problem.policy_temperature = policy_temperature
        self.problem.control_stat = <qpi_control_stat> _option(_CONTROL_STATS, control_stat, "control_stat")
        self.lock = threading.Lock()

    def __dealloc__(self):
        cdef Node* node
        cdef Node* following
        cdef int i
        for i in range(BUCKETS):
            node = self.heads[i]
            while node != NULL:
                following = node.next
                with nogil:
                    qpi_plan_destroy(node.plan)
                free(node)
                node = following

    cdef const qpi_plan* find(self, const Key* key) except NULL:
        """The plan for a key, made where there is none. Readers need no lock: nodes are only ever added in front."""
        cdef int bucket = _bucket(key)
        cdef Node* node = QPI_LOAD_NODE(self.heads[bucket])
        while node != NULL:
            if memcmp(&node.key, key, sizeof(Key)) == 0:
                return node.plan
            node = node.next
        return self.make(key, bucket)

    cdef const qpi_plan* make(self, const Key* key, int bucket) except NULL:
        cdef Node* node
        cdef qpi_problem problem
        cdef qpi_plan* plan = NULL
        cdef qpi_status status
        cdef int i
        with self.lock:
            node = self.heads[bucket]
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
            node.next = self.heads[bucket]
            QPI_PUBLISH_NODE(self.heads[bucket], node)
            self.count += 1
            return plan

    cdef void packed_key(self, Key* key) noexcept:
        """The strides of packed arrays."""
        memset(key, 0, sizeof(Key))
        key.q[0] = self.problem.actions * self.problem.atoms
        key.q[1] = self.problem.atoms
        key.q[2] = 1
        key.pi[0] = key.grad[0] = key.legal[0] = self.problem.actions
        key.pi[1] = key.grad[1] = key.legal[1] = 1
        key.weight = 1

    cdef int named_key(self, Key* key, object q_dtype, object pi_dtype, object grad_dtype) except -1:
        """The key of packed arrays with dtypes that are given by name."""
        self.packed_key(key)
        key.dtypes[0] = _dtype_option(q_dtype, "q_dtype")
        key.dtypes[1] = _dtype_option(pi_dtype, "pi_dtype")
        key.dtypes[2] = _dtype_option(grad_dtype, "grad_dtype")
        return 0

    def prepare(self, q_dtype, pi_dtype, grad_dtype) -> None:
        """Make the plan for packed arrays of these dtypes."""
        cdef Key key
        self.named_key(&key, q_dtype, pi_dtype, grad_dtype)
        self.find(&key)

    def describe(self, int64_t rows, q_dtype, pi_dtype, grad_dtype) -> str:
        """Return which kernel serves packed arrays with this many rows, and why."""
        cdef Key key
        cdef const qpi_plan* plan
        cdef size_t length = 0
        self.named_key(&key, q_dtype, pi_dtype, grad_dtype)
        plan = self.find(&key)
        check(qpi_plan_describe(plan, rows, NULL, 0, &length))
        text = bytearray(length + 1)
        cdef char* memory = text
        check(qpi_plan_describe(plan, rows, memory, length + 1, &length))
        return text[:length].decode("utf-8")
