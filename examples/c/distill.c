/* Distil a fixed critic into a table of policy logits, on the CPU. On a GPU the calls are the same: `device` is its
 * ordinal, every array is device memory, and the stream is a cudaStream_t. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qpi_distill.h"

enum { ROWS = 8, ACTIONS = 3, ATOMS = 5, STEPS = 200 };

static void check(qpi_status status) {
  if (status == QPI_SUCCESS) return;
  fprintf(stderr, "%s: %s\n", qpi_status_name(status), qpi_last_error_message());
  exit(1);
}

/* A slot of the state vector. Host memory here, so it can be read and written in place. */
static float* slot(const qpi_isv* isv, qpi_slot which) {
  void* address;
  check(qpi_isv_slot_address(isv, which, &address));
  return address;
}

static int argmax(const float* values) {
  int best = 0;
  for (int a = 1; a < ACTIONS; ++a)
    if (values[a] > values[best]) best = a;
  return best;
}

int main(void) {
  if (qpi_abi() != QPI_ABI) {
    fprintf(stderr, "the library has another ABI than the header\n");
    return 1;
  }

  /* The critic: in state b, action b % 3 most likely returns +1, the others -1. The policy starts uniform. */
  static const float support[ATOMS] = {-2, -1, 0, 1, 2};
  static float q_logits[ROWS][ACTIONS][ATOMS], pi_logits[ROWS][ACTIONS], pi_grad[ROWS][ACTIONS];
  for (int b = 0; b < ROWS; ++b)
    for (int a = 0; a < ACTIONS; ++a) q_logits[b][a][a == b % ACTIONS ? 3 : 1] = 4;

  /* The state vector and its workspace. malloc aligns to 16 bytes here, which is what the workspace asks for. */
  qpi_isv isv;
  qpi_isv_init(&isv);
  isv.words = qpi_layout_words(&isv.layout);
  isv.slots = malloc((size_t)isv.words * 4);
  isv.workspace = malloc(qpi_workspace_size());
  if (!isv.slots || !isv.workspace) return 1;
  check(qpi_workspace_init(&isv, NULL));
  check(qpi_isv_reset(&isv, NULL));
  *slot(&isv, QPI_SLOT_lam) = 0.5f;
  *slot(&isv, QPI_SLOT_tau) = 0.5f;

  qpi_problem problem;
  qpi_problem_init(&problem);
  problem.actions = ACTIONS;
  problem.atoms = ATOMS;
  problem.reduction = QPI_REDUCTION_SUM;
  problem.value_scale = QPI_VALUE_SCALE_NONE;
  qpi_plan* plan;
  check(qpi_plan_create(&problem, &plan));

  qpi_batch batch;
  qpi_batch_init(&batch);
  batch.rows = ROWS;
  batch.q_logits = q_logits;
  batch.pi_logits = pi_logits;
  batch.support = support;
  batch.pi_grad = pi_grad;

  /* The arrays stay where they are: their checks and the preparation are paid once. With arrays that move, fill the
   * batch anew and call qpi_step(plan, &isv, &batch, stream). */
  qpi_bound* bound;
  check(qpi_bind(plan, &isv, &batch, &bound));

  for (int step = 0; step < STEPS; ++step) {
    memset(pi_grad, 0, sizeof pi_grad); /* in a real agent: the policy gradient is already in it */
    check(qpi_bound_step(bound, NULL));
    for (int b = 0; b < ROWS; ++b)
      for (int a = 0; a < ACTIONS; ++a) pi_logits[b][a] -= 0.5f * pi_grad[b][a];
    if (step % 40 == 0)
      printf("step %3d  kl %.4f  lam %.3f\n", step, *slot(&isv, QPI_SLOT_kl_last), *slot(&isv, QPI_SLOT_lam));
  }

  int agree = 0;
  for (int b = 0; b < ROWS; ++b) agree += argmax(pi_logits[b]) == b % ACTIONS;
  printf("critic and policy agree on %d of %d states\n", agree, (int)ROWS);

  qpi_bound_destroy(bound);
  qpi_plan_destroy(plan);
  free(isv.workspace);
  free(isv.slots);
  return agree == ROWS ? 0 : 1;
}
