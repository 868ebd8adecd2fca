# The public C interface, declared for Cython. qpi_distill.h says what everything does; get_include() and get_library()
# of the Python package say where header and library are.
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t


cdef extern from "qpi_distill.h" nogil:
    int QPI_VERSION_MAJOR
    int QPI_VERSION_MINOR
    int QPI_VERSION_PATCH
    int QPI_VERSION_CODE
    int QPI_ABI

    ctypedef enum qpi_status:
        QPI_SUCCESS
        QPI_ERROR_VALUE
        QPI_ERROR_TYPE
        QPI_ERROR_OVERFLOW
        QPI_ERROR_POINTER
        QPI_ERROR_NO_DEVICE
        QPI_ERROR_CUDA
        QPI_ERROR_MEMORY
        QPI_ERROR_UNSUPPORTED

    int32_t qpi_version()
    int32_t qpi_abi()
    const char* qpi_status_name(qpi_status status)
    const char* qpi_last_error_message()
    qpi_status qpi_build_info(char* text, size_t capacity, size_t* length)

    # The names of the slots are in the manifest (qpi_isv_slot_info); here only their number.
    ctypedef enum qpi_slot:
        QPI_SLOT_COUNT

    ctypedef enum qpi_slot_type:
        QPI_SLOT_F32
        QPI_SLOT_U32
        QPI_SLOT_U64

    ctypedef enum qpi_slot_role:
        QPI_SLOT_PARAM
        QPI_SLOT_STATE
        QPI_SLOT_OUTPUT

    ctypedef struct qpi_slot_info:
        const char* name
        qpi_slot_type type
        qpi_slot_role role
        int32_t words
        double default_value
        double low
        double high
        const char* unit
        const char* meaning

    qpi_status qpi_isv_slot_info(int32_t slot, qpi_slot_info* info)

    # The names of the laws are in the registry (qpi_lam_law_info, qpi_tau_law_info); here only their number.
    ctypedef enum qpi_lam_law:
        QPI_LAM_LAW_COUNT

    ctypedef enum qpi_tau_law:
        QPI_TAU_LAW_COUNT

    ctypedef enum qpi_law_input:
        QPI_LAW_INPUT_NOTHING
        QPI_LAW_INPUT_KL
        QPI_LAW_INPUT_OBSERVATIONS
        QPI_LAW_INPUT_ENTROPY
        QPI_LAW_INPUT_PRIOR_KL

    ctypedef struct qpi_law_info:
        const char* name
        qpi_law_input input
        const char* formula
        const char* source

    qpi_status qpi_lam_law_info(int32_t law, qpi_law_info* info)
    qpi_status qpi_tau_law_info(int32_t law, qpi_law_info* info)

    int QPI_PRESET_VALUES

    ctypedef struct qpi_preset_value:
        qpi_slot slot
        double value

    ctypedef struct qpi_preset_info:
        const char* name
        qpi_lam_law lam_law
        int32_t count
        qpi_preset_value* values  # qpi_preset_value[QPI_PRESET_VALUES]
        const char* source

    int32_t qpi_preset_count()
    qpi_status qpi_preset_get(int32_t preset, qpi_preset_info* info)

    ctypedef enum qpi_fault:
        QPI_FAULT_TAU
        QPI_FAULT_LAM
        QPI_FAULT_SUPPORT
        QPI_FAULT_GRAD_SCALE
        QPI_FAULT_WEIGHT
        QPI_FAULT_ALPHA
        QPI_FAULT_TARGET
        QPI_FAULT_LAW
        QPI_FAULT_BOUND
        QPI_FAULT_VALUE
        QPI_FAULT_TAU_LAW

    ctypedef enum qpi_reason:
        QPI_REASON_NONE
        QPI_REASON_IN_BAND
        QPI_REASON_ABOVE
        QPI_REASON_BELOW
        QPI_REASON_AT_MAX
        QPI_REASON_AT_MIN
        QPI_REASON_OFF
        QPI_REASON_NO_ROWS
        QPI_REASON_TOO_FEW
        QPI_REASON_FAULT
        QPI_REASON_OBSERVED
        QPI_REASON_FIXED
        QPI_REASON_SCHEDULED
        QPI_REASON_ENDED
        QPI_REASON_UNMEASURED

    ctypedef struct qpi_layout:
        size_t size
        int32_t* index  # int32_t[QPI_SLOT_COUNT]

    void qpi_layout_native(qpi_layout* layout)
    void qpi_layout_bus(qpi_layout* layout)
    int64_t qpi_layout_words(const qpi_layout* layout)

    int QPI_DEVICE_CPU

    ctypedef struct qpi_summary:
        double weight
        double loss
        double target_entropy
        double policy_entropy
        double uniform_entropy
        double agreement
        double pi_at_qstar
        double overlap

    ctypedef struct qpi_record:
        double weighted_kl
        double weight
        double weighted_variance
        int64_t rows
        int64_t skipped
        int64_t clipped
        uint32_t faults
        uint32_t calls
        qpi_summary summary

    size_t qpi_workspace_size()
    size_t qpi_workspace_state_size()
    int QPI_WORKSPACE_ALIGNMENT

    cdef struct CUstream_st:
        pass
    ctypedef CUstream_st* qpi_stream_t

    # The names of its members are those of qpi_flight_field_info.
    ctypedef struct qpi_flight:
        pass

    int QPI_FLIGHT_MAX

    ctypedef struct qpi_flight_field:
        const char* name
        qpi_slot_type type
        int32_t offset

    int32_t qpi_flight_field_count()
    qpi_status qpi_flight_field_info(int32_t field, qpi_flight_field* info)

    ctypedef struct qpi_isv:
        size_t size
        int32_t device
        void* slots
        int64_t words
        void* workspace
        qpi_layout layout
        qpi_flight* flight
        int64_t flight_capacity

    void qpi_isv_init(qpi_isv* isv)
    qpi_status qpi_workspace_init(const qpi_isv* isv, qpi_stream_t stream)
    qpi_status qpi_isv_reset(const qpi_isv* isv, qpi_stream_t stream)
    qpi_status qpi_isv_slot_address(const qpi_isv* isv, qpi_slot slot, void** address)

    int QPI_MAX_ACTIONS
    int QPI_MAX_ATOMS
    int64_t QPI_MAX_ROWS

    ctypedef enum qpi_dtype:
        QPI_FLOAT32
        QPI_FLOAT16
        QPI_BFLOAT16

    ctypedef enum qpi_reduction:
        QPI_REDUCTION_UNSET
        QPI_REDUCTION_SUM
        QPI_REDUCTION_MEAN

    ctypedef enum qpi_mode:
        QPI_MODE_ADD
        QPI_MODE_WRITE

    ctypedef enum qpi_value_scale:
        QPI_VALUE_SCALE_NONE
        QPI_VALUE_SCALE_RUNNING_STD

    ctypedef enum qpi_kl_stat:
        QPI_KL_STAT_MEAN
        QPI_KL_STAT_ROW0

    ctypedef enum qpi_critic:
        QPI_CRITIC_CATEGORICAL
        QPI_CRITIC_QUANTILE

    ctypedef enum qpi_target:
        QPI_TARGET_BOLTZMANN
        QPI_TARGET_GREEDY

    ctypedef enum qpi_divergence:
        QPI_DIVERGENCE_FORWARD_KL
        QPI_DIVERGENCE_REVERSE_KL
        QPI_DIVERGENCE_JENSEN_SHANNON
        QPI_DIVERGENCE_HELLINGER
        QPI_DIVERGENCE_TOTAL_VARIATION

    ctypedef enum qpi_control_stat:
        QPI_CONTROL_STAT_KL
        QPI_CONTROL_STAT_LOSS

    ctypedef enum qpi_kernel:
        QPI_KERNEL_AUTO
        QPI_KERNEL_STREAM
        QPI_KERNEL_TILE
        QPI_KERNEL_BLOCK
        QPI_KERNEL_CPU_BASELINE
        QPI_KERNEL_CPU_AVX2
        QPI_KERNEL_CPU_AVX512

    unsigned int QPI_CHECK_POINTERS
    unsigned int QPI_SUMMARY

    ctypedef struct qpi_problem:
        size_t size
        int32_t device
        int64_t actions
        int64_t atoms
        qpi_dtype q_dtype
        qpi_dtype pi_dtype
        qpi_dtype grad_dtype
        qpi_reduction reduction
        qpi_mode mode
        qpi_value_scale value_scale
        qpi_kl_stat kl_stat
        float illegal_below
        int64_t[3] q_stride
        int64_t[2] pi_stride
        int64_t[2] grad_stride
        int64_t[2] legal_stride
        int64_t[2] support_stride
        int64_t weight_stride
        uint32_t flags
        qpi_kernel kernel
        int32_t max_blocks
        int32_t max_threads
        qpi_critic critic
        qpi_target target
        float target_epsilon
        qpi_divergence divergence
        float divergence_beta
        float policy_temperature
        qpi_control_stat control_stat

    int64_t QPI_PACKED

    void qpi_problem_init(qpi_problem* problem)

    ctypedef struct qpi_plan:
        pass

    qpi_status qpi_plan_create(const qpi_problem* problem, qpi_plan** plan)
    void qpi_plan_destroy(qpi_plan* plan)
    qpi_status qpi_plan_describe(const qpi_plan* plan, int64_t rows, char* text, size_t capacity, size_t* length)

    ctypedef struct qpi_batch:
        size_t size
        int64_t rows
        const void* q_logits
        const void* pi_logits
        const float* support
        void* pi_grad
        const uint8_t* legal_actions
        const float* row_weights
        const float* grad_scale

    void qpi_batch_init(qpi_batch* batch)

    qpi_status qpi_step(const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch, qpi_stream_t stream)
    qpi_status qpi_batch_check(const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch)
    qpi_status qpi_memory_check(int32_t device, const char* name, const void* memory)
    qpi_status qpi_accumulate(const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch, qpi_stream_t stream)
    qpi_status qpi_commit(const qpi_isv* isv, qpi_stream_t stream)
    qpi_status qpi_distill_grad(const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch, qpi_stream_t stream)
    qpi_status qpi_control(const qpi_isv* isv, qpi_stream_t stream)
    qpi_status qpi_discard(const qpi_isv* isv, qpi_stream_t stream)
    qpi_status qpi_measure(const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch, qpi_record* record,
                           qpi_stream_t stream)
    qpi_status qpi_clear_faults(const qpi_isv* isv, qpi_stream_t stream)

    ctypedef struct qpi_bound:
        pass

    qpi_status qpi_bind(const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch, qpi_bound** bound)
    void qpi_bound_destroy(qpi_bound* bound)
    qpi_status qpi_bound_step(const qpi_bound* bound, qpi_stream_t stream)
    qpi_status qpi_bound_accumulate(const qpi_bound* bound, qpi_stream_t stream)
    qpi_status qpi_bound_distill_grad(const qpi_bound* bound, qpi_stream_t stream)

    int QPI_SEED_ACTIONS
    int QPI_SEED_ATOMS
    int QPI_SEED_BUS_WORDS

    qpi_status qpi_seed_distill_grad(const float* q_logits, const float* pi_logits, const float* atom_supports,
                                     float* isv, float* pi_grad_logits, int64_t rows, int32_t device,
                                     qpi_stream_t stream)
    qpi_status qpi_seed_lambda_controller(float* isv, int32_t device, qpi_stream_t stream)
