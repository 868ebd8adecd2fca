/* Bound calls: what the plain calls do, prepared once; immutable, and shared by threads. */
#include <pthread.h>

#include "harness.h"

enum { THREADS = 4, CALLS = 500 };

/* Every call in turn, on two fixtures: plain on one, bound on the other. */
static void same_results(void) {
  fixture plain, bound;
  qpi_bound* call = NULL;
  int i;
  fixture_open(&plain);
  fixture_open(&bound);
  plain.batch.row_weights = plain.row_weights;
  bound.batch.row_weights = bound.row_weights;
  plain.row_weights[1] = bound.row_weights[1] = 2;
  plain.batch.grad_scale = plain.grad_scale;
  bound.batch.grad_scale = bound.grad_scale;
  plain.batch.legal_actions = plain.legal_actions;
  bound.batch.legal_actions = bound.legal_actions;
  plain.legal_actions[4] = bound.legal_actions[4] = 0;
  OK(qpi_bind(bound.plan, &bound.isv, &bound.batch, &call));
  CHECK(call != NULL);
  for (i = 0; i < 3; ++i) {
    OK(qpi_step(plain.plan, &plain.isv, &plain.batch, NULL));
    OK(qpi_bound_step(call, NULL));
    OK(qpi_accumulate(plain.plan, &plain.isv, &plain.batch, NULL));
    OK(qpi_bound_accumulate(call, NULL));
    OK(qpi_distill_grad(plain.plan, &plain.isv, &plain.batch, NULL));
    OK(qpi_bound_distill_grad(call, NULL));
    OK(qpi_commit(&plain.isv, NULL));
    OK(qpi_commit(&bound.isv, NULL));
    *plain.grad_scale = *bound.grad_scale = 0.5f; /* memory is read at the call */
  }
  CHECK(plain.pi_grad[0] > 0);
  CHECK(counter(&plain, QPI_SLOT_observations) == 6); /* distill_grad uses up what was accumulated */
  CHECK(memcmp(plain.block, bound.block, plain.used) == 0);
  qpi_bound_destroy(call);
  fixture_close(&bound);
  fixture_close(&plain);
}

/* The structs are copied: what becomes of them afterwards is nothing to the bound call. */
static void structs_are_copied(void) {
  fixture f;
  qpi_isv isv;
  qpi_batch batch;
  qpi_bound* call = NULL;
  fixture_open(&f);
  isv = f.isv;
  batch = f.batch;
  OK(qpi_bind(f.plan, &isv, &batch, &call));
  memset(&isv, 0x5A, sizeof isv);
  memset(&batch, 0x5A, sizeof batch);
  OK(qpi_bound_step(call, NULL));
  CHECK(near(f.pi_grad[0], SMOKE_GRAD, 2e-6));
  CHECK(counter(&f, QPI_SLOT_rows_last) == ROWS);
  qpi_bound_destroy(call);
  fixture_close(&f);
}

static void no_rows(void) {
  fixture f;
  qpi_batch empty;
  qpi_bound* call = NULL;
  fixture_open(&f);
  qpi_batch_init(&empty);
  OK(qpi_bind(f.plan, &f.isv, &empty, &call));
  OK(qpi_bound_step(call, NULL));
  OK(qpi_bound_accumulate(call, NULL));
  OK(qpi_bound_distill_grad(call, NULL));
  CHECK(unchanged(&f));
  FAILS(&f, QPI_ERROR_VALUE, "stream", qpi_bound_step(call, (qpi_stream_t)f.block));
  qpi_bound_destroy(call);
  fixture_close(&f);
}

/* What qpi_bind refuses leaves NULL behind; what a bound call refuses changes nothing. */
static void refusals(void) {
  fixture f;
  qpi_batch batch;
  qpi_bound* call;
  qpi_plan* row0 = NULL;
  fixture_open(&f);

#define REFUSED(status, word, plan, isv, batch)                       \
  do {                                                                \
    call = (qpi_bound*)f.block;                                       \
    FAILS(&f, status, word, qpi_bind((plan), (isv), (batch), &call)); \
    CHECK(call == NULL);                                              \
  } while (0)
  FAILS(&f, QPI_ERROR_POINTER, "bound", qpi_bind(f.plan, &f.isv, &f.batch, NULL));
  REFUSED(QPI_ERROR_POINTER, "plan", NULL, &f.isv, &f.batch);
  REFUSED(QPI_ERROR_POINTER, "isv", f.plan, NULL, &f.batch);
  REFUSED(QPI_ERROR_POINTER, "batch", f.plan, &f.isv, NULL);
  batch = f.batch;
  batch.pi_grad = f.pi_logits;
  REFUSED(QPI_ERROR_POINTER, "overlaps pi_logits", f.plan, &f.isv, &batch);
  batch = f.batch;
  batch.rows = -1;
  REFUSED(QPI_ERROR_VALUE, "rows", f.plan, &f.isv, &batch);
  batch = f.batch;
  batch.pi_grad = NULL;
  REFUSED(QPI_ERROR_POINTER, "pi_grad", f.plan, &f.isv, &batch);
#undef REFUSED

  FAILS(&f, QPI_ERROR_POINTER, "bound", qpi_bound_step(NULL, NULL));
  FAILS(&f, QPI_ERROR_POINTER, "bound", qpi_bound_accumulate(NULL, NULL));
  FAILS(&f, QPI_ERROR_POINTER, "bound", qpi_bound_distill_grad(NULL, NULL));
  qpi_bound_destroy(NULL);

  f.problem.kl_stat = QPI_KL_STAT_ROW0;
  OK(qpi_plan_create(&f.problem, &row0));
  OK(qpi_bind(row0, &f.isv, &f.batch, &call));
  FAILS(&f, QPI_ERROR_UNSUPPORTED, "kl_stat", qpi_bound_accumulate(call, NULL));
  FAILS(&f, QPI_ERROR_VALUE, "stream", qpi_bound_step(call, (qpi_stream_t)f.block));
  OK(qpi_bound_step(call, NULL));
  CHECK(counter(&f, QPI_SLOT_rows_last) == 1);
  qpi_bound_destroy(call);
  qpi_plan_destroy(row0);
  fixture_close(&f);
}

typedef struct job {
  const qpi_bound* call; /* of this thread, or shared by all */
  int failures;
} job;

static void* many_calls(void* argument) {
  job* j = (job*)argument;
  int i;
  for (i = 0; i < CALLS; ++i) j->failures += qpi_bound_step(j->call, NULL) != QPI_SUCCESS;
  return NULL;
}

/* One plan, a bound call and an ISV for each thread: the calls do not get in each other's way. */
static void threads(void) {
  fixture fixtures[THREADS];
  qpi_bound* calls[THREADS];
  pthread_t ids[THREADS];
  job jobs[THREADS];
  int i;
  for (i = 0; i < THREADS; ++i) {
    fixture_open(&fixtures[i]);
    OK(qpi_bind(fixtures[0].plan, &fixtures[i].isv, &fixtures[i].batch, &calls[i]));
    jobs[i].call = calls[i];
    jobs[i].failures = 0;
  }
  for (i = 0; i < THREADS; ++i)
    if (pthread_create(&ids[i], NULL, many_calls, &jobs[i]) != 0) abort();
  for (i = 0; i < THREADS; ++i) {
    pthread_join(ids[i], NULL);
    CHECK(jobs[i].failures == 0);
    CHECK(counter(&fixtures[i], QPI_SLOT_observations) == CALLS);
    CHECK(memcmp(fixtures[i].pi_grad, fixtures[0].pi_grad, sizeof(float) * ROWS * ACTIONS) == 0);
  }
  for (i = THREADS - 1; i >= 0; --i) {
    qpi_bound_destroy(calls[i]);
    fixture_close(&fixtures[i]);
  }
}

/* One bound call that has nothing to do, called by every thread at once. */
static void shared(void) {
  fixture f;
  qpi_batch empty;
  qpi_bound* call = NULL;
  pthread_t ids[THREADS];
  job jobs[THREADS];
  int i;
  fixture_open(&f);
  qpi_batch_init(&empty);
  OK(qpi_bind(f.plan, &f.isv, &empty, &call));
  for (i = 0; i < THREADS; ++i) {
    jobs[i].call = call;
    jobs[i].failures = 0;
    if (pthread_create(&ids[i], NULL, many_calls, &jobs[i]) != 0) abort();
  }
  for (i = 0; i < THREADS; ++i) {
    pthread_join(ids[i], NULL);
    CHECK(jobs[i].failures == 0);
  }
  CHECK(unchanged(&f));
  qpi_bound_destroy(call);
  fixture_close(&f);
}

int main(void) {
  same_results();
  structs_are_copied();
  no_rows();
  refusals();
  threads();
  shared();
  return report();
}
