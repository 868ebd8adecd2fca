/* qpi-distill: pull a policy toward what a distributional critic knows, on the device, inside the training step.
 *
 *     E_Q[b,a]   = sum_z softmax(q_logits[b,a,:])[z] * support[z]
 *     target[b]  = softmax(E_Q[b,:] / tau)
 *     grad[b,a] += lam * (softmax(pi_logits[b,:])[a] - target[b,a])
 *     KL[b]      = sum_a target[b,a] * (log target[b,a] - log pi[b,a])
 *     kl_ema     <- moving average of mean_b KL[b];   lam <- control law(lam, kl_ema, kl_target)
 *
 * In reading order: versions and errors, the state vector (ISV), the plan, the step, its parts, bound calls, the seed
 * kernels.
 *
 * Rules that hold for every function here
 *   - It returns a qpi_status; qpi_last_error_message() says which argument, what it was and what was expected.
 *   - Arguments are checked before anything is launched or written. A call that fails has changed nothing.
 *   - Nothing prints, exits or throws. The calling thread's current CUDA context is afterwards as it was before.
 *   - Functions that take a stream enqueue work on it and return; they neither allocate nor synchronise and can be
 *     captured in a CUDA graph. On the CPU the work is done when they return (large batches start threads), and the
 *     stream must be NULL.
 *   - Plans are immutable: any number of threads may share one. An ISV and its workspace belong to one stream order at
 *     a time.
 *   - A struct begins with its own size; fill it with its initialiser, then change what you need.
 *
 * Plain C99; needs no CUDA header. */
#ifndef QPI_DISTILL_H
#define QPI_DISTILL_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "qpi_distill/flight_manifest.h"
#include "qpi_distill/isv_manifest.h"
#include "qpi_distill/laws.h"

#if defined(__GNUC__) || defined(__clang__)
#define QPI_API __attribute__((visibility("default")))
#else
#define QPI_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- versions and errors ------------------------------------------------------------------------------------------
 */

#define QPI_VERSION_MAJOR 0
#define QPI_VERSION_MINOR 1
#define QPI_VERSION_PATCH 0
#define QPI_VERSION_CODE (QPI_VERSION_MAJOR * 10000 + QPI_VERSION_MINOR * 100 + QPI_VERSION_PATCH)
#define QPI_ABI 1 /* compare once with qpi_abi() */

typedef enum qpi_status {
  QPI_SUCCESS = 0,
  QPI_ERROR_VALUE = 1,       /* a number, a shape or a combination that cannot be */
  QPI_ERROR_TYPE = 2,        /* a dtype or an enumerator that is not supported there */
  QPI_ERROR_OVERFLOW = 3,    /* a size beyond the documented limits */
  QPI_ERROR_POINTER = 4,     /* NULL, misaligned, overlapping, or memory of another device */
  QPI_ERROR_NO_DEVICE = 5,   /* built without CUDA, no driver, driver too old, no such GPU, GPU without kernels here */
  QPI_ERROR_CUDA = 6,        /* CUDA refused; the message holds its error name */
  QPI_ERROR_MEMORY = 7,      /* the host is out of memory */
  QPI_ERROR_UNSUPPORTED = 8, /* a sensible request that this version does not serve */
} qpi_status;

QPI_API int32_t qpi_version(void); /* QPI_VERSION_CODE of the library in use */
QPI_API int32_t qpi_abi(void);     /* QPI_ABI of the library in use */

/* The name of a status ("QPI_ERROR_VALUE"). Static storage. */
QPI_API const char* qpi_status_name(qpi_status status);

/* What went wrong in this thread's last failed call. Valid until the thread's next call into this library. */
QPI_API const char* qpi_last_error_message(void);

/* What the library holds and what the machine has, as one JSON object. Creates no CUDA context, but initialises the
 * driver where there is one (a process that forks afterwards cannot use CUDA in the child). Writes at most
 * `capacity` bytes including the terminator and stores the full length (without it) in *length, if length is given. */
QPI_API qpi_status qpi_build_info(char* text, size_t capacity, size_t* length);

/* ---- the state vector (ISV) ----------------------------------------------------------------------------------------
 * Everything that moves in the loop, and every number that steers it, lives in one buffer of 4-byte slots that the
 * caller owns: device memory for a GPU, host memory for the CPU. A layout says which index each slot has. */

typedef enum qpi_slot {
#define QPI_SLOT_ENUM(name, type, role, def, low, high, unit, meaning) QPI_SLOT_##name,
  QPI_ISV_MANIFEST(QPI_SLOT_ENUM)
#undef QPI_SLOT_ENUM
      QPI_SLOT_COUNT
} qpi_slot;

/* The control laws (qpi_distill/laws.h has them all): values of the slots lam_law and tau_law. */
typedef enum qpi_lam_law {
#define QPI_LAM_LAW_ENUM(name, input, formula, source) QPI_LAM_LAW_##name,
  QPI_LAM_LAWS(QPI_LAM_LAW_ENUM)
#undef QPI_LAM_LAW_ENUM
      QPI_LAM_LAW_COUNT
} qpi_lam_law;

typedef enum qpi_tau_law {
#define QPI_TAU_LAW_ENUM(name, input, formula, source) QPI_TAU_LAW_##name,
  QPI_TAU_LAWS(QPI_TAU_LAW_ENUM)
#undef QPI_TAU_LAW_ENUM
      QPI_TAU_LAW_COUNT
} qpi_tau_law;

typedef enum qpi_slot_type { QPI_SLOT_F32 = 0, QPI_SLOT_U32 = 1, QPI_SLOT_U64 = 2 } qpi_slot_type;
typedef enum qpi_slot_role { QPI_SLOT_PARAM = 0, QPI_SLOT_STATE = 1, QPI_SLOT_OUTPUT = 2 } qpi_slot_role;

typedef struct qpi_slot_info {
  const char* name;
  qpi_slot_type type;
  qpi_slot_role role;
  int32_t words; /* 4-byte slots it takes: 1, or 2 for QPI_SLOT_U64 */
  double default_value, low, high;
  const char* unit;
  const char* meaning;
} qpi_slot_info;

/* The manifest at run time. `slot` is 0 .. QPI_SLOT_COUNT - 1. */
QPI_API qpi_status qpi_isv_slot_info(int32_t slot, qpi_slot_info* info);

/* What a control law is driven by: nothing, the moving average of the batch KL, the number of observations, the
 * entropy of the target, KL(target || prior). */
typedef enum qpi_law_input {
  QPI_LAW_INPUT_NOTHING = 0,
  QPI_LAW_INPUT_KL = 1,
  QPI_LAW_INPUT_OBSERVATIONS = 2,
  QPI_LAW_INPUT_ENTROPY = 3,
  QPI_LAW_INPUT_PRIOR_KL = 4
} qpi_law_input;

typedef struct qpi_law_info {
  const char* name;
  qpi_law_input input;
  const char* formula;
  const char* source;
} qpi_law_info;

/* The registry of laws at run time. `law` is 0 .. QPI_LAM_LAW_COUNT - 1, or QPI_TAU_LAW_COUNT - 1. */
QPI_API qpi_status qpi_lam_law_info(int32_t law, qpi_law_info* info);
QPI_API qpi_status qpi_tau_law_info(int32_t law, qpi_law_info* info);

/* A law of lam with the numbers of its source: what to write into which slots. */
#define QPI_PRESET_VALUES 8
typedef struct qpi_preset_value {
  qpi_slot slot;
  double value;
} qpi_preset_value;
typedef struct qpi_preset_info {
  const char* name;
  qpi_lam_law lam_law;
  int32_t count; /* of values */
  qpi_preset_value values[QPI_PRESET_VALUES];
  const char* source;
} qpi_preset_info;

/* `preset` is 0 .. qpi_preset_count() - 1. */
QPI_API int32_t qpi_preset_count(void);
QPI_API qpi_status qpi_preset_get(int32_t preset, qpi_preset_info* info);

/* Bits of slot `faults`: a value on the device that made no sense. What depended on it was not done. Sticky. */
typedef enum qpi_fault {
  QPI_FAULT_TAU = 1,        /* tau negative or NaN, tau_min not > 0: nothing was written */
  QPI_FAULT_LAM = 2,        /* lam negative or not finite: nothing was written */
  QPI_FAULT_SUPPORT = 4,    /* a support value not finite: rows that use it have no gradient, nothing is committed */
  QPI_FAULT_GRAD_SCALE = 8, /* grad_scale, or its product with lam, not finite: no gradient */
  QPI_FAULT_WEIGHT = 16,    /* a row weight negative, not finite or beyond float32 times lam: that row was skipped */
  QPI_FAULT_ALPHA = 32,     /* kl_alpha or value_alpha outside (0, 1]: gradient only */
  QPI_FAULT_TARGET = 64,    /* kl_target not > 0 and finite: gradient and kl_ema only */
  QPI_FAULT_LAW = 128,      /* a number of lam's law makes no sense, or kl_ema is not finite: lam unchanged. No such
                               law: lam and tau unchanged */
  QPI_FAULT_BOUND = 256,    /* kl_row_max or min_std not > 0, value_std not a number: nothing was written */
  QPI_FAULT_VALUE = 512,    /* the variance of the action values is not finite: value_std not updated */
  QPI_FAULT_TAU_LAW = 1024, /* a number of tau's law or what drives it makes no sense: tau unchanged. No such law:
                               lam and tau unchanged */
} qpi_fault;

/* Codes of the slots `reason` and `tau_reason`: what the last commit or control call did with lam, and with tau. What a
 * law is driven by is kl_ema, or for a law of tau the entropy of the target or prior_kl; its band is the dead zone. */
typedef enum qpi_reason {
  QPI_REASON_NONE = 0,        /* nothing has happened yet */
  QPI_REASON_IN_BAND = 1,     /* inside the band: a law with a dead zone does not move */
  QPI_REASON_ABOVE = 2,       /* above it: lam raised; tau moved to lower it */
  QPI_REASON_BELOW = 3,       /* below it: lam lowered; tau moved to raise it */
  QPI_REASON_AT_MAX = 4,      /* outside it, and the law can go no further up: lam_max, tau_max */
  QPI_REASON_AT_MIN = 5,      /* outside it, and the law can go no further down: lam_min, tau_min */
  QPI_REASON_OFF = 6,         /* lam is 0, or lam_off is set */
  QPI_REASON_NO_ROWS = 7,     /* the statistic had no weight: averages, lam and tau kept */
  QPI_REASON_TOO_FEW = 8,     /* no observation yet, or fewer than law_warmup: kept */
  QPI_REASON_FAULT = 9,       /* see slot `faults` */
  QPI_REASON_OBSERVED = 10,   /* averages updated; the laws were not asked to run */
  QPI_REASON_FIXED = 11,      /* the law keeps it */
  QPI_REASON_SCHEDULED = 12,  /* on its way from the start of the schedule to the end */
  QPI_REASON_ENDED = 13,      /* the schedule is at its end */
  QPI_REASON_UNMEASURED = 14, /* nobody has measured what drives the law: kept */
} qpi_reason;

/* Index of each slot in the caller's buffer; -1 where the buffer has no such slot: the workspace then holds it. */
typedef struct qpi_layout {
  size_t size;
  int32_t index[QPI_SLOT_COUNT];
} qpi_layout;

QPI_API void qpi_layout_native(qpi_layout* layout); /* compact: every slot, in the manifest's order */
QPI_API void qpi_layout_bus(qpi_layout* layout); /* the seed kernels' bus: lam 486, tau 487, kl_ema 488, kl_target 491,
                                                    kl_alpha 493 and nothing else; more can be named by index */
/* Words (4-byte slots) a buffer needs for this layout, or -1 where the layout is not valid. */
QPI_API int64_t qpi_layout_words(const qpi_layout* layout);

#define QPI_DEVICE_CPU (-1) /* a device is this, or the ordinal of a GPU */

/* What QPI_SUMMARY asks for: sums of w times a row's number, over the rows in the statistic whose loss is finite. */
typedef struct qpi_summary {
  double weight;          /* sum of w over these rows */
  double loss;            /* the divergence that the gradient belongs to, without lam */
  double target_entropy;  /* nats */
  double policy_entropy;  /* nats */
  double uniform_entropy; /* log of the number of legal actions */
  double agreement;       /* 1 where one action is the best of both target and policy, else 0 */
  double pi_at_qstar;     /* the policy's probability of the target's best action; of several, the largest */
  double overlap;         /* sum over the actions of min(target, policy) */
} qpi_summary;

/* The statistic of one or several `accumulate` calls. All sums; a data-parallel job adds them up over its ranks
 * (faults: bitwise or) between qpi_accumulate and qpi_commit. */
typedef struct qpi_record {
  double weighted_kl;       /* sum of w * KL over the rows in the statistic */
  double weight;            /* sum of w over the same rows */
  double weighted_variance; /* sum of w * variance of the action values within the row */
  int64_t rows;             /* rows in the statistic */
  int64_t skipped;          /* rows left out whole */
  int64_t clipped;          /* rows whose KL was over kl_row_max (a KL that is not finite is left out of the sums) */
  uint32_t faults;          /* qpi_fault bits seen in the rows */
  uint32_t calls;           /* accumulate calls so far */
  qpi_summary summary;      /* of the calls with QPI_SUMMARY */
} qpi_record;

/* Scratch and record that belong to an ISV: the same size for any number of rows. The record is at its start. The
 * first qpi_workspace_state_size() bytes are what a checkpoint has to save. */
QPI_API size_t qpi_workspace_size(void);
QPI_API size_t qpi_workspace_state_size(void);
#define QPI_WORKSPACE_ALIGNMENT 16

typedef struct CUstream_st* qpi_stream_t; /* a cudaStream_t or CUstream */

/* One commit, as the flight recorder keeps it: slots as they are after it (qpi_distill/flight_manifest.h). */
typedef struct qpi_flight {
#define QPI_FLIGHT_MEMBER_U64(name) uint64_t name;
#define QPI_FLIGHT_MEMBER_F32(name) float name;
#define QPI_FLIGHT_MEMBER_U32(name) uint32_t name;
#define QPI_FLIGHT_MEMBER(name, type) QPI_FLIGHT_MEMBER_##type(name)
  QPI_FLIGHT_MANIFEST(QPI_FLIGHT_MEMBER)
#undef QPI_FLIGHT_MEMBER
#undef QPI_FLIGHT_MEMBER_U32
#undef QPI_FLIGHT_MEMBER_F32
#undef QPI_FLIGHT_MEMBER_U64
} qpi_flight;

#define QPI_FLIGHT_MAX (1 << 24) /* records of a ring, at most */

/* Name, type and offset of the members of qpi_flight, in order. */
typedef struct qpi_flight_field {
  const char* name;
  qpi_slot_type type;
  int32_t offset;
} qpi_flight_field;
QPI_API int32_t qpi_flight_field_count(void);
QPI_API qpi_status qpi_flight_field_info(int32_t field, qpi_flight_field* info);

typedef struct qpi_isv {
  size_t size;
  int32_t device;    /* QPI_DEVICE_CPU or a GPU's ordinal */
  void* slots;       /* the state vector, 4-byte aligned */
  int64_t words;     /* its length in 4-byte slots */
  void* workspace;   /* qpi_workspace_size() bytes on the same device, 16-byte aligned */
  qpi_layout layout; /* where the slots are */
  /* The flight recorder, or NULL: a ring of `flight_capacity` records on the same device, 8-byte aligned, zeroed by the
   * caller. The commit with number n (slot `commits`, from 1 on) writes record (n - 1) % flight_capacity; a control
   * call brings the record of the last commit up to date. Reading the ring needs nothing but a copy in stream order: a
   * record is new if its `commits` is, and gaps in `commits` are records that were overwritten before they were read. A
   * caller that was compiled without these two members has a smaller `size`, and no recorder. */
  qpi_flight* flight;
  int64_t flight_capacity;
} qpi_isv;

QPI_API void qpi_isv_init(qpi_isv* isv); /* the initialiser: native layout, CPU, NULL pointers */

/* Empty the record, and write the defaults of the slots that the layout lacks. Once, before the first use. */
QPI_API qpi_status qpi_workspace_init(const qpi_isv* isv, qpi_stream_t stream);

/* Write the defaults into the slots that the layout has. (On a GPU: by a kernel; nothing is copied from the host.) */
QPI_API qpi_status qpi_isv_reset(const qpi_isv* isv, qpi_stream_t stream);

/* Where a slot's words are: in the caller's buffer or, for a slot that the layout lacks, in the workspace (a PARAM has
 * its default there). A device or host address. */
QPI_API qpi_status qpi_isv_slot_address(const qpi_isv* isv, qpi_slot slot, void** address);

/* ---- the plan ------------------------------------------------------------------------------------------------------
 * What does not change from step to step. Made once; creating it loads the kernels, so that the first step may already
 * be inside a stream capture. */

#define QPI_MAX_ACTIONS 4096
#define QPI_MAX_ATOMS 4096
#define QPI_MAX_ROWS (INT64_C(1) << 40) /* exclusive */

typedef enum qpi_dtype { QPI_FLOAT32 = 0, QPI_FLOAT16 = 1, QPI_BFLOAT16 = 2 } qpi_dtype;

typedef enum qpi_reduction {
  QPI_REDUCTION_UNSET = 0, /* refused: the choice changes the strength by a factor of the batch size */
  QPI_REDUCTION_SUM = 1,   /* gradient of lam * sum_b KL[b] (what the seed kernels do) */
  QPI_REDUCTION_MEAN = 2   /* gradient of lam * mean_b KL[b]; b counts every row of the call, skipped ones too */
} qpi_reduction;

typedef enum qpi_mode {
  QPI_MODE_ADD = 0,  /* pi_grad += ... ; rows and actions without a gradient are left alone */
  QPI_MODE_WRITE = 1 /* pi_grad  = ... ; rows and actions without a gradient become 0 */
} qpi_mode;

typedef enum qpi_value_scale {
  QPI_VALUE_SCALE_NONE = 0,       /* target = softmax(E_Q / tau) */
  QPI_VALUE_SCALE_RUNNING_STD = 1 /* E_Q is divided by max(value_std, min_std); before the first observation by the
                                     row's own standard deviation */
} qpi_value_scale;

typedef enum qpi_kl_stat {
  QPI_KL_STAT_MEAN = 0, /* sum w KL / sum w over the rows */
  QPI_KL_STAT_ROW0 = 1  /* KL of row 0 of the call, as the seed kernels do. Refused by qpi_accumulate. */
} qpi_kl_stat;

/* How q_logits become the values E_Q[b,a]. */
typedef enum qpi_critic {
  QPI_CRITIC_CATEGORICAL = 0, /* C51, HL-Gauss: sum_z softmax(q_logits)[z] * support[z] */
  QPI_CRITIC_QUANTILE = 1     /* QR-DQN, IQN: q_logits are the quantiles, and their mean is the value. No support. With
                                 one atom: a scalar Q. */
} qpi_critic;

typedef enum qpi_target {
  QPI_TARGET_BOLTZMANN = 0, /* softmax(E_Q / tau) */
  QPI_TARGET_GREEDY = 1     /* 1 - target_epsilon over the best actions (equal shares), target_epsilon over all legal
                               ones; tau has no effect */
} qpi_target;

/* What the gradient lowers; t = target, p = softmax(pi_logits / policy_temperature). cuda/math/family.h has them all.
 */
typedef enum qpi_divergence {
  QPI_DIVERGENCE_FORWARD_KL = 0,     /* KL(t || p) */
  QPI_DIVERGENCE_REVERSE_KL = 1,     /* KL(p || t) */
  QPI_DIVERGENCE_JENSEN_SHANNON = 2, /* beta KL(t || m) + (1 - beta) KL(p || m), m = beta t + (1 - beta) p */
  QPI_DIVERGENCE_HELLINGER = 3,      /* 1 - sum sqrt(t p) */
  QPI_DIVERGENCE_TOTAL_VARIATION = 4 /* sum |t - p| / 2 */
} qpi_divergence;

/* What the moving average, and with it the law of lam, is fed with. */
typedef enum qpi_control_stat {
  QPI_CONTROL_STAT_KL = 0,  /* KL(target || softmax(pi_logits)), whatever the gradient is of */
  QPI_CONTROL_STAT_LOSS = 1 /* the divergence: kl_ema, kl_target and kl_row_max are then in its unit */
} qpi_control_stat;

typedef enum qpi_kernel {
  QPI_KERNEL_AUTO = 0,
  QPI_KERNEL_STREAM = 1, /* any shape, stride and alignment */
  QPI_KERNEL_TILE = 2,   /* packed arrays, tiles of rows staged in shared memory */
  QPI_KERNEL_BLOCK = 3,  /* packed arrays, at most 64 rows: one block does the whole step; larger batches: tile */
  QPI_KERNEL_CPU_BASELINE = 16, /* the CPU: any processor */
  QPI_KERNEL_CPU_AVX2 = 17,
  QPI_KERNEL_CPU_AVX512 = 18
} qpi_kernel;

#define QPI_CHECK_POINTERS 1u /* flag: every call asks the driver where each pointer lives */
#define QPI_SUMMARY 2u        /* flag: entropies, agreement, ... of each batch (qpi_summary), in the same pass */

typedef struct qpi_problem {
  size_t size;
  int32_t device;       /* QPI_DEVICE_CPU or a GPU's ordinal */
  int64_t actions;      /* 1 .. QPI_MAX_ACTIONS */
  int64_t atoms;        /* 1 .. QPI_MAX_ATOMS */
  qpi_dtype q_dtype;    /* dtype of q_logits; arithmetic is float32 throughout */
  qpi_dtype pi_dtype;   /* dtype of pi_logits */
  qpi_dtype grad_dtype; /* dtype of pi_grad: QPI_FLOAT32, or pi_dtype */
  qpi_reduction reduction;
  qpi_mode mode;
  qpi_value_scale value_scale;
  qpi_kl_stat kl_stat;
  float illegal_below; /* pi_logits at or below it mark an illegal action; -INFINITY: only -inf does */
  /* Strides in elements. The initialiser's QPI_PACKED stands for the packed C order of [rows, actions, atoms]. */
  int64_t q_stride[3];       /* row, action, atom */
  int64_t pi_stride[2];      /* row, action */
  int64_t grad_stride[2];    /* row, action */
  int64_t legal_stride[2];   /* row, action */
  int64_t support_stride[2]; /* action, atom; packed = one support shared by all actions: {0, 1} */
  int64_t weight_stride;     /* row */
  uint32_t flags;            /* QPI_CHECK_POINTERS, QPI_SUMMARY */
  qpi_kernel kernel;         /* QPI_KERNEL_AUTO, or force one (tests, benchmarks) */
  int32_t max_blocks;        /* 0: chosen; else an upper bound on the grid. The results do not depend on it. */
  int32_t max_threads; /* CPU: 0: the cores this process may use, 64 at most; else an upper bound. Results likewise. */
  qpi_critic critic;
  qpi_target target;
  float target_epsilon; /* of QPI_TARGET_GREEDY: 0 .. 1 */
  qpi_divergence divergence;
  float divergence_beta;    /* of QPI_DIVERGENCE_JENSEN_SHANNON: between 0 and 1, both excluded; 0.5 */
  float policy_temperature; /* of the policy in the divergence, not in the statistic: > 0; 1. The gradient has no factor
                               that would make up for it. */
  qpi_control_stat control_stat;
} qpi_problem;

#define QPI_PACKED INT64_MIN

QPI_API void qpi_problem_init(qpi_problem* problem);

typedef struct qpi_plan qpi_plan;

/* Stores the plan, or NULL where it fails. */
QPI_API qpi_status qpi_plan_create(const qpi_problem* problem, qpi_plan** plan);
QPI_API void qpi_plan_destroy(qpi_plan* plan); /* NULL is fine; captured graphs must not be replayed afterwards */

/* Which kernel a call with this many rows (and 16-byte aligned arrays) runs, with which grid, and why; text. */
QPI_API qpi_status qpi_plan_describe(const qpi_plan* plan, int64_t rows, char* text, size_t capacity, size_t* length);

/* ---- the step ------------------------------------------------------------------------------------------------------
 */

/* One batch. Pointers are to memory of the plan's device. */
typedef struct qpi_batch {
  size_t size;
  int64_t rows;                 /* 0 .. QPI_MAX_ROWS - 1; with 0 rows every other pointer may be NULL */
  const void* q_logits;         /* [rows, actions, atoms] */
  const void* pi_logits;        /* [rows, actions] */
  const float* support;         /* [atoms] or [actions, atoms], by support_stride; NULL with QPI_CRITIC_QUANTILE */
  void* pi_grad;                /* [rows, actions]: gradient of the loss with respect to pi_logits */
  const uint8_t* legal_actions; /* optional [rows, actions]: 0 = illegal; q and pi of that action have no effect */
  const float* row_weights;     /* optional [rows]: >= 0; 0 = the row is not there */
  const float* grad_scale;      /* optional, one float: multiplies the gradient, never the statistic */
} qpi_batch;

QPI_API void qpi_batch_init(qpi_batch* batch);

/* Gradient, statistic, moving average and control law: the whole step. With 0 rows nothing changes. */
QPI_API qpi_status qpi_step(const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch, qpi_stream_t stream);

/* Every check that qpi_step makes, and where each pointer lives as well (QPI_CHECK_POINTERS); launches nothing. */
QPI_API qpi_status qpi_batch_check(const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch);

/* What QPI_CHECK_POINTERS asks, of one address: is it memory that `device` can use as its own? The error calls it
 * `name`. On the CPU every address but NULL passes. */
QPI_API qpi_status qpi_memory_check(int32_t device, const char* name, const void* memory);

/* ---- its parts -----------------------------------------------------------------------------------------------------
 * qpi_step = qpi_accumulate + qpi_commit, in fewer launches. Apart, they let micro-batches, the heads of a
 * multi-discrete action space (a plan each) or the ranks of a data-parallel job count as one observation. */

/* Gradient (with lam and tau of the last commit), and the statistic added to the workspace's record. */
QPI_API qpi_status qpi_accumulate(const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch,
                                  qpi_stream_t stream);

/* Moving averages and control laws from the record, which is then empty. Zero total weight: nothing moves. */
QPI_API qpi_status qpi_commit(const qpi_isv* isv, qpi_stream_t stream);

/* Gradient and moving average, lam untouched: what the first seed kernel does. qpi_control is the other half. */
QPI_API qpi_status qpi_distill_grad(const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch,
                                    qpi_stream_t stream);

/* The control laws alone, on what drives them as it stands. */
QPI_API qpi_status qpi_control(const qpi_isv* isv, qpi_stream_t stream);

/* Empty the record (an optimiser step that was skipped). */
QPI_API qpi_status qpi_discard(const qpi_isv* isv, qpi_stream_t stream);

/* The statistic of a batch, stored in *record (memory of the plan's device, 8-byte aligned). No gradient (pi_grad may
 * be NULL), no change to the ISV or the workspace's record. */
QPI_API qpi_status qpi_measure(const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch, qpi_record* record,
                               qpi_stream_t stream);

/* Clear slot `faults`. */
QPI_API qpi_status qpi_clear_faults(const qpi_isv* isv, qpi_stream_t stream);

/* ---- the same batch again ------------------------------------------------------------------------------------------
 * A loop whose arrays stay where they are pays for checks and preparation once: a bound call holds everything that its
 * launches need, and calling it costs little more than the launches themselves.
 *
 * It is immutable: any number of threads may share one, in the stream order of its ISV. It copies *isv and *batch (not
 * what they point to): changing those structs afterwards has no effect. The plan and all the memory must outlive it.
 * Like the plan's, its calls may be captured from the first one on; a captured graph does not need it any more. */

typedef struct qpi_bound qpi_bound;

/* Every check of qpi_batch_check, then the preparation. Stores the bound call, or NULL where it fails. */
QPI_API qpi_status qpi_bind(const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch, qpi_bound** bound);
QPI_API void qpi_bound_destroy(qpi_bound* bound); /* NULL is fine */

/* What the functions of these names do, with the same results. With QPI_CHECK_POINTERS in the plan, each call asks the
 * driver where the pointers live, as theirs do. */
QPI_API qpi_status qpi_bound_step(const qpi_bound* bound, qpi_stream_t stream);
QPI_API qpi_status qpi_bound_accumulate(const qpi_bound* bound, qpi_stream_t stream);
QPI_API qpi_status qpi_bound_distill_grad(const qpi_bound* bound, qpi_stream_t stream);

/* ---- the seed kernels ----------------------------------------------------------------------------------------------
 * The two kernels this library grew from, with their shapes (11 actions, 21 atoms), their bus slots and their
 * behaviour to the letter: KL of row 0, zero as "not initialised", floors, NaN and all. For code that must not change;
 * everything else wants qpi_step. The same semantics are in the shipped fatbin under the kernels' own names. */

#define QPI_SEED_ACTIONS 11
#define QPI_SEED_ATOMS 21
#define QPI_SEED_BUS_WORDS 494 /* the bus must be at least this long */

QPI_API qpi_status qpi_seed_distill_grad(const float* q_logits, const float* pi_logits, const float* atom_supports,
                                         float* isv, float* pi_grad_logits, int64_t rows, int32_t device,
                                         qpi_stream_t stream);
QPI_API qpi_status qpi_seed_lambda_controller(float* isv, int32_t device, qpi_stream_t stream);

#ifdef __cplusplus
}
#endif

#endif
