/* What the C programs of this folder share: checks that say what failed, and a small problem on the CPU whose memory is
 * one block, so that "a call that fails has changed nothing" is one comparison. Compiles as C99 and as C++11. */
#ifndef QPI_TESTS_HARNESS_H
#define QPI_TESTS_HARNESS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qpi_distill.h"

static int checks_done, checks_failed;

#define CHECK(condition)                                                        \
  do {                                                                          \
    ++checks_done;                                                              \
    if (!(condition)) {                                                         \
      ++checks_failed;                                                          \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                           \
  } while (0)

/* A call that has to succeed. */
#define OK(call)                                                                                     \
  do {                                                                                               \
    const qpi_status ok_status = (call);                                                             \
    ++checks_done;                                                                                   \
    if (ok_status != QPI_SUCCESS) {                                                                  \
      ++checks_failed;                                                                               \
      fprintf(stderr, "%s:%d: %s: %s (%s)\n", __FILE__, __LINE__, #call, qpi_status_name(ok_status), \
              qpi_last_error_message());                                                             \
    }                                                                                                \
  } while (0)

/* A call that has to fail with this status, with a message that holds this word, and with nothing changed. */
#define FAILS(fixture, expected, word, call) \
  expect_failure((fixture), (call), (expected), (word), #call, __FILE__, __LINE__)

enum { ROWS = 4, ACTIONS = 3, ATOMS = 2, ARRAY_BYTES = 1 << 15 };

typedef struct fixture {
  unsigned char *block, *saved;
  size_t used, capacity;
  float *q_logits, *pi_logits, *support, *pi_grad, *row_weights, *grad_scale;
  uint8_t* legal_actions;
  qpi_record* record;
  qpi_problem problem;
  qpi_plan* plan;
  qpi_isv isv;
  qpi_batch batch;
} fixture;

static void* carve(fixture* f, size_t bytes) {
  void* result = f->block + f->used;
  f->used += (bytes + 63) / 64 * 64;
  if (f->used > f->capacity) abort();
  return result;
}

static inline void save(fixture* f) { memcpy(f->saved, f->block, f->capacity); }
static inline int unchanged(const fixture* f) { return memcmp(f->saved, f->block, f->capacity) == 0; }

static inline void expect_failure(fixture* f, qpi_status status, qpi_status expected, const char* word,
                                  const char* call, const char* file, int line) {
  const char* message = qpi_last_error_message();
  checks_done += 3;
  if (status != expected) {
    ++checks_failed;
    fprintf(stderr, "%s:%d: %s: %s (%s), expected %s\n", file, line, call, qpi_status_name(status), message,
            qpi_status_name(expected));
  } else if (!strstr(message, word)) {
    ++checks_failed;
    fprintf(stderr, "%s:%d: %s: the message does not name %s: %s\n", file, line, call, word, message);
  }
  if (f && !unchanged(f)) {
    ++checks_failed;
    fprintf(stderr, "%s:%d: %s: failed, but changed memory (%s)\n", file, line, call, message);
    memcpy(f->block, f->saved, f->capacity);
  }
}

/* A slot's words in place; NULL where there are none. */
static inline void* slot_address(const qpi_isv* isv, qpi_slot slot) {
  void* address = NULL;
  OK(qpi_isv_slot_address(isv, slot, &address));
  return address;
}

static inline float* float_slot(const fixture* f, qpi_slot slot) { return (float*)slot_address(&f->isv, slot); }

static inline uint64_t counter(const fixture* f, qpi_slot slot) {
  const uint32_t* words = (const uint32_t*)slot_address(&f->isv, slot);
  return words[0] | (uint64_t)words[1] << 32;
}

/* Each row is the same: values -1, 0, 1 (to a part in 1e17), policy logits 1, 0, -1, so that with lam = tau = 1 the
 * gradient of a row is SMOKE_GRAD, 0, -SMOKE_GRAD and its KL is SMOKE_KL. */
#define SMOKE_GRAD 0.575210383
#define SMOKE_KL 1.150420765

static inline void fixture_fill(fixture* f) {
  int b, a;
  for (b = 0; b < ROWS; ++b) {
    for (a = 0; a < ACTIONS; ++a) {
      f->q_logits[(b * ACTIONS + a) * ATOMS + 0] = 0.0f;
      f->q_logits[(b * ACTIONS + a) * ATOMS + 1] = 40.0f * (float)(a - 1);
      f->pi_logits[b * ACTIONS + a] = (float)(1 - a);
      f->pi_grad[b * ACTIONS + a] = 0.0f;
      f->legal_actions[b * ACTIONS + a] = 1;
    }
    f->row_weights[b] = 1.0f;
  }
  f->support[0] = -1.0f;
  f->support[1] = 1.0f;
  *f->grad_scale = 1.0f;
}

/* The state as it is at first, with lam = 1. */
static inline void fixture_reset(const fixture* f) {
  OK(qpi_workspace_init(&f->isv, NULL));
  OK(qpi_isv_reset(&f->isv, NULL));
  *float_slot(f, QPI_SLOT_lam) = 1.0f;
}

static inline void fixture_open(fixture* f) {
  memset(f, 0, sizeof *f);
  f->capacity = ARRAY_BYTES + qpi_workspace_size();
  f->block = (unsigned char*)malloc(f->capacity);
  f->saved = (unsigned char*)malloc(f->capacity);
  if (!f->block || !f->saved) abort();
  memset(f->block, 0xA5, f->capacity);
  f->q_logits = (float*)carve(f, sizeof(float) * ROWS * ACTIONS * ATOMS);
  f->pi_logits = (float*)carve(f, sizeof(float) * ROWS * ACTIONS);
  f->support = (float*)carve(f, sizeof(float) * ATOMS);
  f->pi_grad = (float*)carve(f, sizeof(float) * ROWS * ACTIONS);
  f->row_weights = (float*)carve(f, sizeof(float) * ROWS);
  f->grad_scale = (float*)carve(f, sizeof(float));
  f->legal_actions = (uint8_t*)carve(f, ROWS * ACTIONS);
  f->record = (qpi_record*)carve(f, sizeof(qpi_record));

  qpi_isv_init(&f->isv);
  f->isv.words = qpi_layout_words(&f->isv.layout);
  f->isv.slots = carve(f, (size_t)f->isv.words * 4);
  f->isv.workspace = carve(f, qpi_workspace_size());
  fixture_reset(f);

  qpi_problem_init(&f->problem);
  f->problem.actions = ACTIONS;
  f->problem.atoms = ATOMS;
  f->problem.reduction = QPI_REDUCTION_SUM;
  f->problem.mode = QPI_MODE_ADD;
  f->problem.value_scale = QPI_VALUE_SCALE_NONE;
  OK(qpi_plan_create(&f->problem, &f->plan));

  qpi_batch_init(&f->batch);
  f->batch.rows = ROWS;
  f->batch.q_logits = f->q_logits;
  f->batch.pi_logits = f->pi_logits;
  f->batch.support = f->support;
  f->batch.pi_grad = f->pi_grad;
  fixture_fill(f);
  save(f);
}

static inline void fixture_close(fixture* f) {
  qpi_plan_destroy(f->plan);
  free(f->saved);
  free(f->block);
}

static inline int near(double value, double expected, double tolerance) {
  return value >= expected - tolerance && value <= expected + tolerance;
}

/* The last line of every program. */
static inline int report(void) {
  printf("%d checks, %d failed\n", checks_done, checks_failed);
  return checks_failed != 0;
}

#endif
