/* Many shapes, dtypes, strides and kernels, each array in an allocation of exactly its size, so that a sanitizer sees
 * every byte that is read or written beyond it. Of the numbers only what must hold whatever the row math is: the
 * gradient of a row sums to 0, padding is left alone, and neither threads nor instruction sets change a bit of what
 * they must not change. */
#include <math.h>

#include "harness.h"

typedef struct shape {
  int64_t rows, actions, atoms;
  int padding; /* elements after each row of each array */
} shape;

typedef struct arrays {
  void *q, *pi, *grad;
  float *support, *weights;
  uint8_t* legal;
} arrays;

static fixture state; /* only its state vector and workspace are used */
static uint32_t random_state;

static uint32_t next_random(void) {
  random_state = random_state * 1664525u + 1013904223u;
  return random_state >> 8;
}

static size_t bytes_of(qpi_dtype dtype) { return dtype == QPI_FLOAT32 ? 4 : 2; }

/* Small multiples of 1/8: exact in every dtype. */
static void store(void* array, int64_t i, qpi_dtype dtype, float value) {
  uint32_t bits;
  uint16_t half;
  memcpy(&bits, &value, 4);
  if (dtype == QPI_FLOAT32) {
    memcpy((char*)array + 4 * i, &value, 4);
    return;
  }
  half = (uint16_t)(bits >> 16);
  if (dtype == QPI_FLOAT16)
    half = (uint16_t)((bits >> 16 & 0x8000u) | (value == 0 ? 0 : (bits >> 13 & 0x3ffffu) - (112u << 10)));
  memcpy((char*)array + 2 * i, &half, 2);
}

static float load(const void* array, int64_t i, qpi_dtype dtype) {
  float value;
  uint32_t bits;
  uint16_t half;
  if (dtype == QPI_FLOAT32) {
    memcpy(&value, (const char*)array + 4 * i, 4);
    return value;
  }
  memcpy(&half, (const char*)array + 2 * i, 2);
  if (dtype == QPI_BFLOAT16) {
    bits = (uint32_t)half << 16;
    memcpy(&value, &bits, 4);
    return value;
  }
  value = (float)(half & 0x3ff);
  value = half & 0x7c00 ? ldexpf(value + 1024.0f, (half >> 10 & 31) - 25) : ldexpf(value, -24);
  return half & 0x8000 ? -value : value;
}

static void* allocate(int64_t elements, size_t size) {
  void* memory = malloc((size_t)elements * size);
  if (!memory) abort();
  return memory;
}

/* Elements of an array of `rows` rows of `row` elements, with padding between them but none after the last. */
static int64_t elements(const shape* s, int64_t row) { return s->rows * (row + s->padding) - s->padding; }

static void* filled(int64_t count, qpi_dtype dtype) {
  void* array = allocate(count, bytes_of(dtype));
  int64_t i;
  for (i = 0; i < count; ++i) store(array, i, dtype, ((float)(next_random() % 128) - 64.0f) / 8.0f);
  return array;
}

static void open_arrays(arrays* x, const shape* s, const qpi_problem* p) {
  const int64_t supports = p->support_stride[0] ? s->actions * s->atoms : s->atoms;
  int64_t i;
  x->q = filled(elements(s, s->actions * s->atoms), p->q_dtype);
  x->pi = filled(elements(s, s->actions), p->pi_dtype);
  x->grad = filled(elements(s, s->actions), p->grad_dtype);
  x->support = (float*)filled(supports, QPI_FLOAT32);
  x->weights = (float*)allocate(s->rows, 4);
  x->legal = (uint8_t*)allocate(elements(s, s->actions), 1);
  for (i = 0; i < s->rows; ++i) x->weights[i] = (float)(1 + next_random() % 3);
  for (i = 0; i < elements(s, s->actions); ++i) x->legal[i] = next_random() % 4 != 0;
  for (i = 0; i < s->rows; ++i) x->legal[i * (s->actions + s->padding)] = 1;
}

static void close_arrays(arrays* x) {
  free(x->q);
  free(x->pi);
  free(x->grad);
  free(x->support);
  free(x->weights);
  free(x->legal);
}

typedef struct result {
  void* grad;
  float kl;
} result;

/* One step from the same inputs; returns 0 where the kernel is not for this machine. */
static int step(const shape* s, qpi_problem problem, const arrays* x, int masked, result* out) {
  const size_t size = (size_t)elements(s, s->actions) * bytes_of(problem.grad_dtype);
  qpi_plan* plan = NULL;
  qpi_batch batch;
  const qpi_status made = qpi_plan_create(&problem, &plan);
  if (made == QPI_ERROR_UNSUPPORTED) return 0;
  OK(made);
  fixture_reset(&state);
  out->grad = malloc(size);
  if (!out->grad) abort();
  memcpy(out->grad, x->grad, size);
  qpi_batch_init(&batch);
  batch.rows = s->rows;
  batch.q_logits = x->q;
  batch.pi_logits = x->pi;
  batch.support = x->support;
  batch.pi_grad = out->grad;
  batch.row_weights = masked ? x->weights : NULL;
  batch.legal_actions = masked ? x->legal : NULL;
  OK(qpi_step(plan, &state.isv, &batch, NULL));
  CHECK(counter(&state, QPI_SLOT_rows_last) == (uint64_t)s->rows);
  CHECK(counter(&state, QPI_SLOT_skipped_last) == 0);
  CHECK(*(uint32_t*)slot_address(&state.isv, QPI_SLOT_faults) == 0);
  out->kl = *float_slot(&state, QPI_SLOT_kl_last);
  CHECK(out->kl >= 0 && out->kl <= 100);
  qpi_plan_destroy(plan);
  return 1;
}

static void check_gradient(const shape* s, const qpi_problem* p, const arrays* x, const result* r) {
  const double tolerance = p->grad_dtype == QPI_FLOAT32 ? 1e-5 : p->grad_dtype == QPI_FLOAT16 ? 1e-2 : 1e-1;
  int64_t b, a;
  for (b = 0; b < s->rows; ++b) {
    const int64_t row = b * (s->actions + s->padding);
    double sum = 0, size = 0;
    for (a = 0; a < s->actions; ++a) {
      const float value = load(r->grad, row + a, p->grad_dtype);
      sum += value;
      size += fabs(value);
    }
    if (!(fabs(sum) <= tolerance * (1 + size))) CHECK(!"the gradient of a row sums to 0");
    if (b + 1 < s->rows)
      for (a = s->actions; a < s->actions + s->padding; ++a)
        if (load(r->grad, row + a, p->grad_dtype) != load(x->grad, row + a, p->grad_dtype))
          CHECK(!"padding is left alone");
  }
}

static void one_case(const shape* s, qpi_dtype q_dtype, qpi_dtype pi_dtype, qpi_dtype grad_dtype, int per_action,
                     int masked) {
  static const qpi_kernel kernels[] = {QPI_KERNEL_CPU_BASELINE, QPI_KERNEL_CPU_AVX2, QPI_KERNEL_CPU_AVX512};
  const size_t size = (size_t)elements(s, s->actions) * bytes_of(grad_dtype);
  qpi_problem problem;
  arrays x;
  result first, other;
  size_t k;
  qpi_problem_init(&problem);
  problem.actions = s->actions;
  problem.atoms = s->atoms;
  problem.q_dtype = q_dtype;
  problem.pi_dtype = pi_dtype;
  problem.grad_dtype = grad_dtype;
  problem.reduction = QPI_REDUCTION_SUM;
  problem.mode = QPI_MODE_WRITE;
  problem.value_scale = QPI_VALUE_SCALE_NONE;
  problem.q_stride[0] = s->actions * s->atoms + s->padding;
  problem.pi_stride[0] = problem.grad_stride[0] = problem.legal_stride[0] = s->actions + s->padding;
  problem.support_stride[0] = per_action ? s->atoms : 0;
  open_arrays(&x, s, &problem);
  CHECK(step(s, problem, &x, masked, &first));
  check_gradient(s, &problem, &x, &first);
  problem.max_threads = 1;
  CHECK(step(s, problem, &x, masked, &other));
  CHECK(memcmp(first.grad, other.grad, size) == 0 && memcmp(&first.kl, &other.kl, 4) == 0);
  free(other.grad);
  problem.max_threads = 0;
  for (k = 0; k < sizeof kernels / sizeof kernels[0]; ++k) {
    problem.kernel = kernels[k];
    if (!step(s, problem, &x, masked, &other)) continue;
    check_gradient(s, &problem, &x, &other);
    CHECK(near(first.kl, other.kl, 1e-4 * (1 + first.kl)));
    free(other.grad);
  }
  free(first.grad);
  close_arrays(&x);
}

int main(void) {
  static const int64_t sizes[][2] = {{1, 1},   {1, 7},   {2, 2},   {3, 5},   {4, 8},  {7, 1},
                                     {11, 21}, {16, 16}, {17, 33}, {33, 51}, {5, 257}};
  static const int64_t rows[] = {1, 2, 8, 33, 70};
  shape s;
  size_t i, j;
  int q, pi, half_grad, variant;
  fixture_open(&state);
  for (i = 0; i < sizeof sizes / sizeof sizes[0]; ++i)
    for (j = 0; j < sizeof rows / sizeof rows[0]; ++j)
      for (q = QPI_FLOAT32; q <= QPI_BFLOAT16; ++q)
        for (pi = QPI_FLOAT32; pi <= QPI_BFLOAT16; ++pi)
          for (half_grad = 0; half_grad <= (pi != QPI_FLOAT32); ++half_grad)
            for (variant = 0; variant < 4; ++variant) {
              random_state = (uint32_t)(i * 131 + j * 17 + (size_t)variant);
              s.rows = rows[j];
              s.actions = sizes[i][0];
              s.atoms = sizes[i][1];
              s.padding = variant & 1 ? 3 : 0;
              one_case(&s, (qpi_dtype)q, (qpi_dtype)pi, half_grad ? (qpi_dtype)pi : QPI_FLOAT32, variant >> 1,
                       (variant + 1) >> 1 & 1);
            }
  fixture_close(&state);
  return report();
}
