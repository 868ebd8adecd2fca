/* One plan shared by many threads: each has its own last message, and its own results. */
#include <pthread.h>

#include "harness.h"

enum { CALLS = 100000, STEPS = 2000, BIG = 50000 };

typedef struct job {
  const qpi_plan* plan; /* shared by all */
  fixture f;            /* this thread's state and arrays */
  int failures;
} job;

/* Calls that fail for want of an argument; each message is read straight away. */
static void* no_pi_logits(void* argument) {
  job* j = (job*)argument;
  qpi_batch batch = j->f.batch;
  int i;
  batch.rows = 1;
  batch.pi_logits = NULL;
  for (i = 0; i < CALLS; ++i) {
    const qpi_status status = qpi_step(j->plan, &j->f.isv, &batch, NULL);
    const char* message = qpi_last_error_message();
    j->failures += status != QPI_ERROR_POINTER || !strstr(message, "pi_logits") || strstr(message, "actions") != NULL;
  }
  return NULL;
}

static void* no_actions(void* argument) {
  job* j = (job*)argument;
  qpi_problem problem = j->f.problem;
  int i;
  problem.actions = 0;
  for (i = 0; i < CALLS; ++i) {
    qpi_plan* plan = NULL;
    const qpi_status status = qpi_plan_create(&problem, &plan);
    const char* message = qpi_last_error_message();
    j->failures += status != QPI_ERROR_VALUE || !strstr(message, "actions") || strstr(message, "pi_logits") != NULL ||
                   plan != NULL;
  }
  return NULL;
}

/* Meanwhile: calls that succeed, on the same plan. */
static void* steps(void* argument) {
  job* j = (job*)argument;
  int i;
  for (i = 0; i < STEPS; ++i) {
    fixture_fill(&j->f);
    j->failures += qpi_step(j->plan, &j->f.isv, &j->f.batch, NULL) != QPI_SUCCESS;
    j->failures += !near(j->f.pi_grad[0], SMOKE_GRAD, 2e-6);
  }
  j->failures += qpi_last_error_message()[0] != '\0';
  return NULL;
}

/* Large enough for the library to use threads of its own. */
static void* many_rows(void* argument) {
  job* j = (job*)argument;
  qpi_batch batch = j->f.batch;
  float* memory = (float*)calloc((size_t)BIG * ACTIONS * (ATOMS + 2), sizeof(float));
  int i;
  if (!memory) abort();
  batch.rows = BIG;
  batch.q_logits = memory;
  batch.pi_logits = memory + (size_t)BIG * ACTIONS * ATOMS;
  batch.pi_grad = memory + (size_t)BIG * ACTIONS * (ATOMS + 1);
  for (i = 0; i < 5; ++i) j->failures += qpi_step(j->plan, &j->f.isv, &batch, NULL) != QPI_SUCCESS;
  j->failures += qpi_last_error_message()[0] != '\0';
  free(memory);
  return NULL;
}

int main(void) {
  static void* (*const bodies[])(void*) = {no_pi_logits, no_actions, steps, steps, many_rows, many_rows};
  enum { THREADS = sizeof bodies / sizeof bodies[0] };
  pthread_t threads[THREADS];
  job jobs[THREADS];
  int i;
  for (i = 0; i < THREADS; ++i) {
    fixture_open(&jobs[i].f);
    jobs[i].plan = jobs[0].f.plan;
    jobs[i].failures = 0;
  }
  for (i = 0; i < THREADS; ++i)
    if (pthread_create(&threads[i], NULL, bodies[i], &jobs[i]) != 0) abort();
  for (i = 0; i < THREADS; ++i) {
    pthread_join(threads[i], NULL);
    CHECK(jobs[i].failures == 0);
    if (bodies[i] == many_rows) CHECK(counter(&jobs[i].f, QPI_SLOT_rows_last) == BIG);
  }
  CHECK(qpi_last_error_message()[0] == '\0'); /* this thread has not failed */
  for (i = 0; i < THREADS; ++i) fixture_close(&jobs[i].f);
  return report();
}
