/* Every argument of every function, wrong in every way that can be told: a status, a message that names the argument,
 * and no memory changed. */
#include <math.h>

#include "harness.h"

static qpi_stream_t some_stream(void) { return (qpi_stream_t)(uintptr_t)64; }

/* ---- functions that take a state vector ---- */

typedef qpi_status (*isv_call)(fixture* f, const qpi_isv* isv, qpi_stream_t stream);

static qpi_status call_init(fixture* f, const qpi_isv* isv, qpi_stream_t s) {
  return (void)f, qpi_workspace_init(isv, s);
}
static qpi_status call_reset(fixture* f, const qpi_isv* isv, qpi_stream_t s) { return (void)f, qpi_isv_reset(isv, s); }
static qpi_status call_commit(fixture* f, const qpi_isv* isv, qpi_stream_t s) { return (void)f, qpi_commit(isv, s); }
static qpi_status call_control(fixture* f, const qpi_isv* isv, qpi_stream_t s) { return (void)f, qpi_control(isv, s); }
static qpi_status call_discard(fixture* f, const qpi_isv* isv, qpi_stream_t s) { return (void)f, qpi_discard(isv, s); }
static qpi_status call_clear(fixture* f, const qpi_isv* isv, qpi_stream_t s) {
  return (void)f, qpi_clear_faults(isv, s);
}
static qpi_status call_step(fixture* f, const qpi_isv* isv, qpi_stream_t s) {
  return qpi_step(f->plan, isv, &f->batch, s);
}
static qpi_status call_accumulate(fixture* f, const qpi_isv* isv, qpi_stream_t s) {
  return qpi_accumulate(f->plan, isv, &f->batch, s);
}
static qpi_status call_grad(fixture* f, const qpi_isv* isv, qpi_stream_t s) {
  return qpi_distill_grad(f->plan, isv, &f->batch, s);
}
static qpi_status call_measure(fixture* f, const qpi_isv* isv, qpi_stream_t s) {
  return qpi_measure(f->plan, isv, &f->batch, f->record, s);
}
static qpi_status call_check(fixture* f, const qpi_isv* isv, qpi_stream_t s) {
  (void)s;
  return qpi_batch_check(f->plan, isv, &f->batch);
}
static qpi_status call_address(fixture* f, const qpi_isv* isv, qpi_stream_t s) {
  void* address;
  (void)f, (void)s;
  return qpi_isv_slot_address(isv, QPI_SLOT_lam, &address);
}

#define BAD_ISV(expected, word, change)            \
  do {                                             \
    isv = f->isv;                                  \
    change;                                        \
    FAILS(f, expected, word, call(f, &isv, NULL)); \
  } while (0)

static void wrong_isv(fixture* f, isv_call call, int has_stream) {
  qpi_isv isv;
  OK(qpi_batch_check(f->plan, &f->isv, &f->batch));
  FAILS(f, QPI_ERROR_POINTER, "isv", call(f, NULL, NULL));
  BAD_ISV(QPI_ERROR_VALUE, "isv.size", isv.size = 0);
  BAD_ISV(QPI_ERROR_VALUE, "isv.size", isv.size -= 4);
  BAD_ISV(QPI_ERROR_VALUE, "isv.device", isv.device = -2);
  BAD_ISV(QPI_ERROR_VALUE, "layout.size", isv.layout.size = 1);
  BAD_ISV(QPI_ERROR_VALUE, "layout.index[tau]", isv.layout.index[QPI_SLOT_tau] = -2);
  BAD_ISV(QPI_ERROR_VALUE, "layout.index[kl_ema]", isv.layout.index[QPI_SLOT_kl_ema] = isv.layout.index[QPI_SLOT_tau]);
  BAD_ISV(QPI_ERROR_VALUE, "isv.words", isv.words -= 1);
  BAD_ISV(QPI_ERROR_VALUE, "isv.words", isv.words = -1);
  BAD_ISV(QPI_ERROR_VALUE, "isv.words", isv.layout.index[QPI_SLOT_reason] = INT32_MAX);
  BAD_ISV(QPI_ERROR_POINTER, "isv.slots", isv.slots = NULL);
  BAD_ISV(QPI_ERROR_POINTER, "isv.slots", isv.slots = (char*)isv.slots + 2);
  BAD_ISV(QPI_ERROR_POINTER, "isv.workspace", isv.workspace = NULL);
  BAD_ISV(QPI_ERROR_POINTER, "isv.workspace", isv.workspace = (char*)isv.workspace + 8);
  BAD_ISV(QPI_ERROR_POINTER, "isv.slots", isv.slots = isv.workspace);
  BAD_ISV(QPI_ERROR_POINTER, "isv.slots", isv.slots = (char*)isv.workspace + qpi_workspace_size() - 4);
  if (has_stream) FAILS(f, QPI_ERROR_VALUE, "stream", call(f, &f->isv, some_stream()));
}

static void every_isv_call(fixture* f) {
  static const struct {
    isv_call call;
    int has_stream;
  } calls[] = {{call_init, 1},    {call_reset, 1},   {call_commit, 1}, {call_control, 1},
               {call_discard, 1}, {call_clear, 1},   {call_step, 1},   {call_accumulate, 1},
               {call_grad, 1},    {call_measure, 1}, {call_check, 0},  {call_address, 0}};
  size_t i;
  for (i = 0; i < sizeof calls / sizeof calls[0]; ++i) wrong_isv(f, calls[i].call, calls[i].has_stream);
}

static void slot_addresses(fixture* f) {
  void* address;
  FAILS(f, QPI_ERROR_POINTER, "address", qpi_isv_slot_address(&f->isv, QPI_SLOT_lam, NULL));
  FAILS(f, QPI_ERROR_VALUE, "slot", qpi_isv_slot_address(&f->isv, QPI_SLOT_COUNT, &address));
  FAILS(f, QPI_ERROR_VALUE, "slot", qpi_isv_slot_address(&f->isv, (qpi_slot)-1, &address));
}

/* ---- the plan ---- */

#define BAD_PROBLEM(expected, word, change)                     \
  do {                                                          \
    problem = f->problem;                                       \
    plan = f->plan;                                             \
    change;                                                     \
    FAILS(f, expected, word, qpi_plan_create(&problem, &plan)); \
    CHECK(plan == NULL || plan == f->plan);                     \
  } while (0)

static void wrong_problem(fixture* f) {
  qpi_problem problem = f->problem;
  qpi_plan* plan = NULL;
  FAILS(f, QPI_ERROR_POINTER, "problem", qpi_plan_create(NULL, &plan));
  FAILS(f, QPI_ERROR_POINTER, "plan", qpi_plan_create(&problem, NULL));
  BAD_PROBLEM(QPI_ERROR_VALUE, "problem.size", problem.size = 0);
  BAD_PROBLEM(QPI_ERROR_VALUE, "problem.size", problem.size += 8);
  BAD_PROBLEM(QPI_ERROR_VALUE, "device", problem.device = -2);
  BAD_PROBLEM(QPI_ERROR_NO_DEVICE, "", problem.device = 4096);
  BAD_PROBLEM(QPI_ERROR_VALUE, "actions", problem.actions = 0);
  BAD_PROBLEM(QPI_ERROR_VALUE, "actions", problem.actions = -1);
  BAD_PROBLEM(QPI_ERROR_OVERFLOW, "actions", problem.actions = QPI_MAX_ACTIONS + 1);
  BAD_PROBLEM(QPI_ERROR_OVERFLOW, "actions", problem.actions = INT64_MAX);
  BAD_PROBLEM(QPI_ERROR_VALUE, "atoms", problem.atoms = 0);
  BAD_PROBLEM(QPI_ERROR_VALUE, "atoms", problem.atoms = INT64_MIN);
  BAD_PROBLEM(QPI_ERROR_OVERFLOW, "atoms", problem.atoms = QPI_MAX_ATOMS + 1);
  BAD_PROBLEM(QPI_ERROR_OVERFLOW, "atoms", problem.atoms = INT64_C(1) << 32 | 2);
  BAD_PROBLEM(QPI_ERROR_TYPE, "q_dtype", problem.q_dtype = (qpi_dtype)3);
  BAD_PROBLEM(QPI_ERROR_TYPE, "q_dtype", problem.q_dtype = (qpi_dtype)-1);
  BAD_PROBLEM(QPI_ERROR_TYPE, "pi_dtype", problem.pi_dtype = (qpi_dtype)3);
  BAD_PROBLEM(QPI_ERROR_TYPE, "grad_dtype", problem.grad_dtype = (qpi_dtype)3);
  BAD_PROBLEM(QPI_ERROR_TYPE, "grad_dtype", problem.grad_dtype = QPI_FLOAT16);
  BAD_PROBLEM(QPI_ERROR_TYPE, "grad_dtype", (problem.pi_dtype = QPI_BFLOAT16, problem.grad_dtype = QPI_FLOAT16));
  BAD_PROBLEM(QPI_ERROR_VALUE, "reduction", problem.reduction = QPI_REDUCTION_UNSET);
  BAD_PROBLEM(QPI_ERROR_VALUE, "reduction", problem.reduction = (qpi_reduction)3);
  BAD_PROBLEM(QPI_ERROR_TYPE, "mode", problem.mode = (qpi_mode)2);
  BAD_PROBLEM(QPI_ERROR_TYPE, "value_scale", problem.value_scale = (qpi_value_scale)2);
  BAD_PROBLEM(QPI_ERROR_TYPE, "kl_stat", problem.kl_stat = (qpi_kl_stat)2);
  BAD_PROBLEM(QPI_ERROR_TYPE, "kernel", problem.kernel = (qpi_kernel)99);
  BAD_PROBLEM(QPI_ERROR_TYPE, "kernel", problem.kernel = (qpi_kernel)-1);
  BAD_PROBLEM(QPI_ERROR_TYPE, "kernel", problem.kernel = QPI_KERNEL_TILE); /* a GPU's */
  BAD_PROBLEM(QPI_ERROR_VALUE, "flags", problem.flags = 4);
  BAD_PROBLEM(QPI_ERROR_VALUE, "flags", problem.flags = 0x80000000u);
  BAD_PROBLEM(QPI_ERROR_VALUE, "illegal_below", problem.illegal_below = (float)NAN);
  BAD_PROBLEM(QPI_ERROR_VALUE, "illegal_below", problem.illegal_below = (float)INFINITY);
  BAD_PROBLEM(QPI_ERROR_VALUE, "max_blocks", problem.max_blocks = -1);
  BAD_PROBLEM(QPI_ERROR_VALUE, "max_threads", problem.max_threads = -1);
}

/* Strides are judged with the rows of a call: an axis with one entry may have any. */
#define BAD_STRIDES(expected, word, change)                                   \
  do {                                                                        \
    qpi_plan* strided = NULL;                                                 \
    problem = f->problem;                                                     \
    change;                                                                   \
    OK(qpi_plan_create(&problem, &strided));                                  \
    FAILS(f, expected, word, qpi_batch_check(strided, &f->isv, &batch));      \
    FAILS(f, expected, word, qpi_step(strided, &f->isv, &batch, NULL));       \
    FAILS(f, expected, word, qpi_accumulate(strided, &f->isv, &batch, NULL)); \
    qpi_plan_destroy(strided);                                                \
  } while (0)

static void wrong_strides(fixture* f) {
  qpi_problem problem;
  qpi_batch batch = f->batch;
  qpi_plan* plan = NULL;
  int i;
  batch.legal_actions = f->legal_actions;
  batch.row_weights = f->row_weights;
  /* What is written to must not meet itself. */
  BAD_STRIDES(QPI_ERROR_POINTER, "pi_grad", problem.grad_stride[0] = 0);
  BAD_STRIDES(QPI_ERROR_POINTER, "pi_grad", problem.grad_stride[1] = 0);
  BAD_STRIDES(QPI_ERROR_POINTER, "pi_grad", (problem.grad_stride[0] = 1, problem.grad_stride[1] = 1));
  BAD_STRIDES(QPI_ERROR_POINTER, "pi_grad", (problem.grad_stride[0] = 2, problem.grad_stride[1] = 1));
  BAD_STRIDES(QPI_ERROR_POINTER, "pi_grad", (problem.grad_stride[0] = 1, problem.grad_stride[1] = ROWS - 1));
  BAD_STRIDES(QPI_ERROR_POINTER, "pi_grad", (problem.grad_stride[0] = -2, problem.grad_stride[1] = 1));
  /* Products with the sizes that leave 64 bits, in elements or in bytes. */
  for (i = 0; i < 3; ++i) BAD_STRIDES(QPI_ERROR_OVERFLOW, "q_logits", problem.q_stride[i] = INT64_MAX);
  for (i = 0; i < 2; ++i) {
    BAD_STRIDES(QPI_ERROR_OVERFLOW, "pi_logits", problem.pi_stride[i] = INT64_MAX / 2 + 1);
    BAD_STRIDES(QPI_ERROR_OVERFLOW, "pi_grad", problem.grad_stride[i] = INT64_MAX / 8);
    BAD_STRIDES(QPI_ERROR_OVERFLOW, "legal_actions", problem.legal_stride[i] = INT64_MIN + 1);
    BAD_STRIDES(QPI_ERROR_OVERFLOW, "support", problem.support_stride[i] = INT64_MAX);
  }
  BAD_STRIDES(QPI_ERROR_OVERFLOW, "row_weights", problem.weight_stride = INT64_MAX);

  /* With one row, the stride between rows is nobody's business. */
  problem = f->problem;
  problem.q_stride[0] = problem.pi_stride[0] = problem.grad_stride[0] = INT64_MAX;
  batch = f->batch;
  batch.rows = 1;
  OK(qpi_plan_create(&problem, &plan));
  OK(qpi_batch_check(plan, &f->isv, &batch));
  qpi_plan_destroy(plan);
  CHECK(unchanged(f));
}

static void wrong_plan(fixture* f) {
  char text[8];
  size_t length;
  FAILS(f, QPI_ERROR_POINTER, "plan", qpi_plan_describe(NULL, 1, text, sizeof text, &length));
  FAILS(f, QPI_ERROR_VALUE, "rows", qpi_plan_describe(f->plan, -1, text, sizeof text, &length));
  FAILS(f, QPI_ERROR_OVERFLOW, "rows", qpi_plan_describe(f->plan, QPI_MAX_ROWS, text, sizeof text, &length));
  FAILS(f, QPI_ERROR_POINTER, "text", qpi_plan_describe(f->plan, 1, NULL, 8, &length));
  FAILS(f, QPI_ERROR_POINTER, "plan", qpi_step(NULL, &f->isv, &f->batch, NULL));
  FAILS(f, QPI_ERROR_POINTER, "plan", qpi_accumulate(NULL, &f->isv, &f->batch, NULL));
  FAILS(f, QPI_ERROR_POINTER, "plan", qpi_distill_grad(NULL, &f->isv, &f->batch, NULL));
  FAILS(f, QPI_ERROR_POINTER, "plan", qpi_measure(NULL, &f->isv, &f->batch, f->record, NULL));
  FAILS(f, QPI_ERROR_POINTER, "plan", qpi_batch_check(NULL, &f->isv, &f->batch));
  qpi_plan_destroy(NULL);
}

/* ---- the batch ---- */

typedef qpi_status (*batch_call)(fixture* f, const qpi_batch* batch);

static qpi_status batch_step(fixture* f, const qpi_batch* b) { return qpi_step(f->plan, &f->isv, b, NULL); }
static qpi_status batch_accumulate(fixture* f, const qpi_batch* b) { return qpi_accumulate(f->plan, &f->isv, b, NULL); }
static qpi_status batch_grad(fixture* f, const qpi_batch* b) { return qpi_distill_grad(f->plan, &f->isv, b, NULL); }
static qpi_status batch_check(fixture* f, const qpi_batch* b) { return qpi_batch_check(f->plan, &f->isv, b); }
static qpi_status batch_measure(fixture* f, const qpi_batch* b) {
  return qpi_measure(f->plan, &f->isv, b, f->record, NULL);
}

#define BAD_BATCH(expected, word, change)      \
  do {                                         \
    batch = f->batch;                          \
    change;                                    \
    FAILS(f, expected, word, call(f, &batch)); \
  } while (0)

static void wrong_batch(fixture* f, batch_call call) {
  qpi_batch batch;
  FAILS(f, QPI_ERROR_POINTER, "batch", call(f, NULL));
  BAD_BATCH(QPI_ERROR_VALUE, "batch.size", batch.size = 0);
  BAD_BATCH(QPI_ERROR_VALUE, "rows", batch.rows = -1);
  BAD_BATCH(QPI_ERROR_VALUE, "rows", batch.rows = INT64_MIN);
  BAD_BATCH(QPI_ERROR_OVERFLOW, "rows", batch.rows = QPI_MAX_ROWS);
  BAD_BATCH(QPI_ERROR_OVERFLOW, "rows", batch.rows = INT64_MAX);
  BAD_BATCH(QPI_ERROR_POINTER, "q_logits", batch.q_logits = NULL);
  BAD_BATCH(QPI_ERROR_POINTER, "pi_logits", batch.pi_logits = NULL);
  BAD_BATCH(QPI_ERROR_POINTER, "support", batch.support = NULL);
  BAD_BATCH(QPI_ERROR_POINTER, "q_logits", batch.q_logits = (const char*)batch.q_logits + 1);
  BAD_BATCH(QPI_ERROR_POINTER, "pi_logits", batch.pi_logits = (const char*)batch.pi_logits + 2);
  BAD_BATCH(QPI_ERROR_POINTER, "support", batch.support = (const float*)((const char*)batch.support + 1));
  BAD_BATCH(QPI_ERROR_POINTER, "row_weights", batch.row_weights = (const float*)((const char*)f->row_weights + 1));
}

static void wrong_output(fixture* f, batch_call call) {
  qpi_batch batch;
  const size_t row = sizeof(float) * ACTIONS;
  BAD_BATCH(QPI_ERROR_POINTER, "pi_grad", batch.pi_grad = NULL);
  BAD_BATCH(QPI_ERROR_POINTER, "pi_grad", batch.pi_grad = (char*)batch.pi_grad + 1);
  BAD_BATCH(QPI_ERROR_POINTER, "grad_scale", batch.grad_scale = (const float*)((const char*)f->grad_scale + 1));
  BAD_BATCH(QPI_ERROR_POINTER, "pi_grad", batch.pi_grad = f->pi_logits);
  BAD_BATCH(QPI_ERROR_POINTER, "pi_grad", batch.pi_logits = (const char*)f->pi_grad + row);
  BAD_BATCH(QPI_ERROR_POINTER, "pi_grad", batch.pi_logits = (const char*)f->pi_grad - row * (ROWS - 1));
  BAD_BATCH(QPI_ERROR_POINTER, "pi_grad", batch.q_logits = (const char*)f->pi_grad + row * ROWS - 4);
  BAD_BATCH(QPI_ERROR_POINTER, "pi_grad", batch.support = f->pi_grad + 3);
  BAD_BATCH(QPI_ERROR_POINTER, "pi_grad", batch.row_weights = f->pi_grad);
  BAD_BATCH(QPI_ERROR_POINTER, "pi_grad", batch.legal_actions = (const uint8_t*)f->pi_grad);
  BAD_BATCH(QPI_ERROR_POINTER, "pi_grad", batch.grad_scale = f->pi_grad);
  BAD_BATCH(QPI_ERROR_POINTER, "pi_grad", batch.pi_grad = f->isv.slots);
  BAD_BATCH(QPI_ERROR_POINTER, "pi_grad", batch.pi_grad = (char*)f->isv.workspace + 64);
}

static void every_batch_call(fixture* f) {
  qpi_problem problem = f->problem;
  qpi_plan *saved = f->plan, *row0 = NULL;
  wrong_batch(f, batch_check);
  wrong_batch(f, batch_step);
  wrong_batch(f, batch_accumulate);
  wrong_batch(f, batch_grad);
  wrong_batch(f, batch_measure);
  wrong_output(f, batch_check);
  wrong_output(f, batch_step);
  wrong_output(f, batch_accumulate);
  wrong_output(f, batch_grad);
  FAILS(f, QPI_ERROR_POINTER, "record", qpi_measure(f->plan, &f->isv, &f->batch, NULL, NULL));
  FAILS(f, QPI_ERROR_POINTER, "record",
        qpi_measure(f->plan, &f->isv, &f->batch, (qpi_record*)((char*)f->record + 4), NULL));
  FAILS(f, QPI_ERROR_POINTER, "record",
        qpi_measure(f->plan, &f->isv, &f->batch, (qpi_record*)(void*)f->q_logits, NULL));
  FAILS(f, QPI_ERROR_POINTER, "record", qpi_measure(f->plan, &f->isv, &f->batch, (qpi_record*)f->isv.workspace, NULL));

  /* Row 0 of what, when several calls make one observation? */
  problem.kl_stat = QPI_KL_STAT_ROW0;
  OK(qpi_plan_create(&problem, &row0));
  f->plan = row0;
  FAILS(f, QPI_ERROR_UNSUPPORTED, "kl_stat", qpi_accumulate(row0, &f->isv, &f->batch, NULL));
  OK(qpi_batch_check(row0, &f->isv, &f->batch));
  f->plan = saved;
  qpi_plan_destroy(row0);
}

/* Inputs may share memory, and neighbours do not overlap. */
static void allowed_aliases(fixture* f) {
  qpi_batch batch = f->batch;
  batch.pi_logits = f->q_logits; /* two inputs */
  OK(qpi_batch_check(f->plan, &f->isv, &batch));
  batch = f->batch;
  batch.grad_scale = f->support;
  OK(qpi_batch_check(f->plan, &f->isv, &batch));
  batch = f->batch;
  batch.pi_logits = f->pi_grad + ROWS * ACTIONS; /* adjacent */
  OK(qpi_batch_check(f->plan, &f->isv, &batch));
  CHECK(unchanged(f));
}

/* Sizes whose product leaves 64 bits, or that a 32-bit index would wrap: refused, or not confused with a small one. */
/* Where one address lives; tests/gpu asks of a GPU's. */
static void memory(fixture* f) {
  float one;
  OK(qpi_memory_check(QPI_DEVICE_CPU, "one", &one));
  FAILS(f, QPI_ERROR_POINTER, "one is NULL", qpi_memory_check(QPI_DEVICE_CPU, "one", NULL));
  FAILS(f, QPI_ERROR_POINTER, "one is NULL", qpi_memory_check(0, "one", NULL));
  FAILS(f, QPI_ERROR_POINTER, "name", qpi_memory_check(QPI_DEVICE_CPU, NULL, &one));
  FAILS(f, QPI_ERROR_VALUE, "device is -2", qpi_memory_check(-2, "one", &one));
  FAILS(f, QPI_ERROR_NO_DEVICE, "", qpi_memory_check(4096, "one", &one));
}

static void sizes(fixture* f) {
  qpi_problem problem = f->problem;
  qpi_batch batch = f->batch;
  qpi_plan* wide = NULL;
  problem.q_stride[0] = INT64_C(1) << 40;
  OK(qpi_plan_create(&problem, &wide));
  batch.rows = INT64_C(1) << 39;
  FAILS(f, QPI_ERROR_OVERFLOW, "q_logits", qpi_step(wide, &f->isv, &batch, NULL));
  qpi_plan_destroy(wide);
  /* 2^32 rows of 12 bytes from here reach over the state vector: no 32-bit count could see it. */
  batch = f->batch;
  batch.rows = (INT64_C(1) << 32) + 1;
  FAILS(f, QPI_ERROR_POINTER, "pi_grad", qpi_step(f->plan, &f->isv, &batch, NULL));
}

/* ---- the seed kernels ---- */

static void seed(fixture* f) {
  enum { A = QPI_SEED_ACTIONS, Z = QPI_SEED_ATOMS, B = 2 };
  float* q = (float*)carve(f, sizeof(float) * B * A * Z);
  float* pi = (float*)carve(f, sizeof(float) * B * A);
  float* support = (float*)carve(f, sizeof(float) * A * Z);
  float* bus = (float*)carve(f, sizeof(float) * QPI_SEED_BUS_WORDS);
  float* grad = (float*)carve(f, sizeof(float) * B * A);
  int i;
  for (i = 0; i < B * A * Z; ++i) q[i] = (float)(i % 7);
  for (i = 0; i < B * A; ++i) pi[i] = (float)(i % 5), grad[i] = 0;
  for (i = 0; i < A * Z; ++i) support[i] = (float)(i % Z - 10);
  for (i = 0; i < QPI_SEED_BUS_WORDS; ++i) bus[i] = 0;
  bus[486] = 0.5f, bus[487] = 1.0f, bus[491] = 1e-6f, bus[493] = 0.05f;
  save(f);
#define GRAD(q_, pi_, support_, isv_, grad_, rows_, device_, stream_) \
  qpi_seed_distill_grad(q_, pi_, support_, isv_, grad_, rows_, device_, stream_)
  FAILS(f, QPI_ERROR_POINTER, "q_logits", GRAD(NULL, pi, support, bus, grad, B, -1, NULL));
  FAILS(f, QPI_ERROR_POINTER, "pi_logits", GRAD(q, NULL, support, bus, grad, B, -1, NULL));
  FAILS(f, QPI_ERROR_POINTER, "atom_supports", GRAD(q, pi, NULL, bus, grad, B, -1, NULL));
  FAILS(f, QPI_ERROR_POINTER, "isv", GRAD(q, pi, support, NULL, grad, B, -1, NULL));
  FAILS(f, QPI_ERROR_POINTER, "pi_grad_logits", GRAD(q, pi, support, bus, NULL, B, -1, NULL));
  FAILS(f, QPI_ERROR_POINTER, "pi_logits", GRAD(q, (float*)((char*)pi + 1), support, bus, grad, B, -1, NULL));
  FAILS(f, QPI_ERROR_POINTER, "pi_grad_logits", GRAD(q, pi, support, bus, pi, B, -1, NULL));
  FAILS(f, QPI_ERROR_POINTER, "pi_grad_logits", GRAD(q, pi, support, bus, q + A * Z, B, -1, NULL));
  FAILS(f, QPI_ERROR_POINTER, "pi_grad_logits", GRAD(q, pi, support, bus, bus + 480, B, -1, NULL));
  FAILS(f, QPI_ERROR_VALUE, "rows", GRAD(q, pi, support, bus, grad, -1, -1, NULL));
  FAILS(f, QPI_ERROR_OVERFLOW, "rows", GRAD(q, pi, support, bus, grad, QPI_MAX_ROWS, -1, NULL));
  FAILS(f, QPI_ERROR_VALUE, "device", GRAD(q, pi, support, bus, grad, B, -2, NULL));
  FAILS(f, QPI_ERROR_NO_DEVICE, "", GRAD(q, pi, support, bus, grad, B, 4096, NULL));
  FAILS(f, QPI_ERROR_VALUE, "stream", GRAD(q, pi, support, bus, grad, B, -1, some_stream()));
#undef GRAD
  FAILS(f, QPI_ERROR_POINTER, "isv", qpi_seed_lambda_controller(NULL, -1, NULL));
  FAILS(f, QPI_ERROR_POINTER, "isv", qpi_seed_lambda_controller((float*)((char*)bus + 2), -1, NULL));
  FAILS(f, QPI_ERROR_VALUE, "device", qpi_seed_lambda_controller(bus, -2, NULL));
  FAILS(f, QPI_ERROR_VALUE, "stream", qpi_seed_lambda_controller(bus, -1, some_stream()));
  OK(qpi_seed_distill_grad(NULL, NULL, NULL, NULL, NULL, 0, -1, NULL));
  CHECK(unchanged(f));

  OK(qpi_seed_distill_grad(q, pi, support, bus, grad, B, -1, NULL));
  CHECK(bus[488] > 0);
  OK(qpi_seed_lambda_controller(bus, -1, NULL));
  CHECK(near(bus[486], 0.6, 1e-7));
}

int main(void) {
  fixture f;
  fixture_open(&f);
  every_isv_call(&f);
  slot_addresses(&f);
  wrong_problem(&f);
  wrong_strides(&f);
  wrong_plan(&f);
  every_batch_call(&f);
  allowed_aliases(&f);
  memory(&f);
  sizes(&f);
  seed(&f);
  fixture_close(&f);
  return report();
}
