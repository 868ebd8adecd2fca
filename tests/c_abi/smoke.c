/* One step, its numbers, and that the parts add up to it. */
#include "harness.h"

static void check_gradient(const fixture* f, double factor) {
  int b;
  for (b = 0; b < ROWS; ++b) {
    CHECK(near(f->pi_grad[b * ACTIONS + 0], factor * SMOKE_GRAD, 2e-6));
    CHECK(near(f->pi_grad[b * ACTIONS + 1], 0, 2e-6));
    CHECK(near(f->pi_grad[b * ACTIONS + 2], -factor * SMOKE_GRAD, 2e-6));
  }
}

static void one_step(void) {
  fixture f;
  fixture_open(&f);
  OK(qpi_batch_check(f.plan, &f.isv, &f.batch));
  CHECK(unchanged(&f));
  OK(qpi_step(f.plan, &f.isv, &f.batch, NULL));
  check_gradient(&f, 1.0);
  CHECK(near(*float_slot(&f, QPI_SLOT_kl_ema), SMOKE_KL, 3e-6));
  CHECK(near(*float_slot(&f, QPI_SLOT_kl_last), SMOKE_KL, 3e-6));
  CHECK(counter(&f, QPI_SLOT_observations) == 1);
  CHECK(counter(&f, QPI_SLOT_rows_last) == ROWS);
  CHECK(*(uint32_t*)slot_address(&f.isv, QPI_SLOT_faults) == 0);
  /* It adds: the same step again doubles the gradient but for the new lam, which was at its ceiling already. */
  OK(qpi_step(f.plan, &f.isv, &f.batch, NULL));
  check_gradient(&f, 2.0);
  CHECK(counter(&f, QPI_SLOT_observations) == 2);
  fixture_close(&f);
}

/* step = accumulate + commit = distill_grad + control, bit for bit. */
static void parts(void) {
  fixture whole, two, seed_like;
  fixture_open(&whole);
  fixture_open(&two);
  fixture_open(&seed_like);
  *float_slot(&whole, QPI_SLOT_lam) = *float_slot(&two, QPI_SLOT_lam) = *float_slot(&seed_like, QPI_SLOT_lam) = 0.25f;
  OK(qpi_step(whole.plan, &whole.isv, &whole.batch, NULL));
  OK(qpi_accumulate(two.plan, &two.isv, &two.batch, NULL));
  CHECK(near(*float_slot(&two, QPI_SLOT_lam), 0.25, 0));
  OK(qpi_commit(&two.isv, NULL));
  OK(qpi_distill_grad(seed_like.plan, &seed_like.isv, &seed_like.batch, NULL));
  CHECK(near(*float_slot(&seed_like, QPI_SLOT_lam), 0.25, 0));
  OK(qpi_control(&seed_like.isv, NULL));
  CHECK(near(*float_slot(&whole, QPI_SLOT_lam), 0.3, 1e-7));
  CHECK(memcmp(whole.block, two.block, whole.used) == 0);
  CHECK(memcmp(whole.pi_grad, seed_like.pi_grad, sizeof(float) * ROWS * ACTIONS) == 0);
  CHECK(memcmp(whole.isv.slots, seed_like.isv.slots, (size_t)whole.isv.words * 4) == 0);
  fixture_close(&whole);
  fixture_close(&two);
  fixture_close(&seed_like);
}

/* What was accumulated can be dropped, and measuring leaves no trace. */
static void discard_and_measure(void) {
  fixture f;
  qpi_batch batch;
  fixture_open(&f);
  OK(qpi_accumulate(f.plan, &f.isv, &f.batch, NULL));
  CHECK(((const qpi_record*)f.isv.workspace)->rows == ROWS);
  OK(qpi_discard(&f.isv, NULL));
  CHECK(((const qpi_record*)f.isv.workspace)->rows == 0);
  OK(qpi_commit(&f.isv, NULL));
  CHECK(counter(&f, QPI_SLOT_observations) == 0);
  CHECK(*(uint32_t*)slot_address(&f.isv, QPI_SLOT_reason) == QPI_REASON_NO_ROWS);

  fixture_fill(&f);
  batch = f.batch;
  batch.pi_grad = NULL;
  save(&f);
  OK(qpi_measure(f.plan, &f.isv, &batch, f.record, NULL));
  CHECK(f.record->rows == ROWS && near(f.record->weight, ROWS, 0));
  CHECK(near(f.record->weighted_kl, (double)ROWS * SMOKE_KL, 1e-5));
  memcpy(f.record, f.saved + ((unsigned char*)f.record - f.block), sizeof *f.record);
  CHECK(unchanged(&f));
  fixture_close(&f);
}

/* With 0 rows nothing changes, and no pointer is needed. */
static void no_rows(void) {
  fixture f;
  qpi_batch empty;
  fixture_open(&f);
  OK(qpi_step(f.plan, &f.isv, &f.batch, NULL));
  save(&f);
  qpi_batch_init(&empty);
  CHECK(empty.rows == 0 && empty.q_logits == NULL);
  OK(qpi_step(f.plan, &f.isv, &empty, NULL));
  CHECK(unchanged(&f));
  OK(qpi_distill_grad(f.plan, &f.isv, &empty, NULL));
  CHECK(unchanged(&f));
  OK(qpi_batch_check(f.plan, &f.isv, &empty));
  CHECK(unchanged(&f));
  OK(qpi_accumulate(f.plan, &f.isv, &empty, NULL));
  CHECK(((const qpi_record*)f.isv.workspace)->rows == 0);
  OK(qpi_commit(&f.isv, NULL));
  CHECK(counter(&f, QPI_SLOT_observations) == 1);
  CHECK(near(*float_slot(&f, QPI_SLOT_lam), 1, 0));
  OK(qpi_measure(f.plan, &f.isv, &empty, f.record, NULL));
  CHECK(f.record->rows == 0 && near(f.record->weight, 0, 0));
  fixture_close(&f);
}

static void options(void) {
  fixture f;
  qpi_problem problem;
  qpi_plan* plan = NULL;
  int b;
  fixture_open(&f);

  /* mean: 1/B; write: what was there is gone; grad_scale: one more factor. */
  problem = f.problem;
  problem.reduction = QPI_REDUCTION_MEAN;
  problem.mode = QPI_MODE_WRITE;
  OK(qpi_plan_create(&problem, &plan));
  for (b = 0; b < ROWS * ACTIONS; ++b) f.pi_grad[b] = 77;
  *f.grad_scale = 8;
  f.batch.grad_scale = f.grad_scale;
  OK(qpi_step(plan, &f.isv, &f.batch, NULL));
  check_gradient(&f, 8.0 / (double)ROWS);
  CHECK(near(*float_slot(&f, QPI_SLOT_kl_last), SMOKE_KL, 3e-6));
  qpi_plan_destroy(plan);
  f.batch.grad_scale = NULL;

  /* A weight of 0 and a row without a legal action: not in the statistic, gradient untouched. */
  fixture_fill(&f);
  f.row_weights[0] = 0;
  for (b = 0; b < ACTIONS; ++b) f.legal_actions[ACTIONS + b] = 0;
  f.batch.row_weights = f.row_weights;
  f.batch.legal_actions = f.legal_actions;
  OK(qpi_step(f.plan, &f.isv, &f.batch, NULL));
  for (b = 0; b < 2 * ACTIONS; ++b) CHECK(near(f.pi_grad[b], 0, 0));
  CHECK(near(f.pi_grad[2 * ACTIONS], SMOKE_GRAD, 2e-6));
  CHECK(counter(&f, QPI_SLOT_skipped_last) == 1);
  CHECK(near(*float_slot(&f, QPI_SLOT_kl_last), SMOKE_KL, 3e-6));
  fixture_close(&f);
}

/* A fault is sticky until it is cleared, and what depends on the value is not done. */
static void faults(void) {
  fixture f;
  int b;
  fixture_open(&f);
  *float_slot(&f, QPI_SLOT_tau) = -1.0f;
  OK(qpi_step(f.plan, &f.isv, &f.batch, NULL));
  CHECK(*(uint32_t*)slot_address(&f.isv, QPI_SLOT_faults) == QPI_FAULT_TAU);
  for (b = 0; b < ROWS * ACTIONS; ++b) CHECK(near(f.pi_grad[b], 0, 0));
  CHECK(counter(&f, QPI_SLOT_observations) == 0);
  *float_slot(&f, QPI_SLOT_tau) = 1.0f;
  OK(qpi_step(f.plan, &f.isv, &f.batch, NULL));
  CHECK(*(uint32_t*)slot_address(&f.isv, QPI_SLOT_faults) == QPI_FAULT_TAU);
  check_gradient(&f, 1.0);
  OK(qpi_clear_faults(&f.isv, NULL));
  CHECK(*(uint32_t*)slot_address(&f.isv, QPI_SLOT_faults) == 0);
  fixture_close(&f);
}

int main(void) {
  CHECK(qpi_abi() == QPI_ABI);
  CHECK(qpi_version() == QPI_VERSION_CODE);
  one_step();
  parts();
  discard_and_measure();
  no_rows();
  options();
  faults();
  return report();
}
