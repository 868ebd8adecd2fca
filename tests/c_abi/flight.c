/* The flight recorder from C: the ring and its records, what is refused, and callers that do not know of it. */
#include "harness.h"

enum { CAPACITY = 3 };

static void fields(void) {
  static const char* const names[] = {
#define ROW(name, type) #name,
      QPI_FLIGHT_MANIFEST(ROW)
#undef ROW
  };
  qpi_flight_field field;
  int32_t i, offset = 0;
  CHECK(qpi_flight_field_count() == (int32_t)(sizeof names / sizeof names[0]));
  for (i = 0; i < qpi_flight_field_count(); ++i) {
    OK(qpi_flight_field_info(i, &field));
    CHECK(strcmp(field.name, names[i]) == 0);
    CHECK(field.offset == offset);
    offset += field.type == QPI_SLOT_U64 ? 8 : 4;
  }
  CHECK(offset == (int32_t)sizeof(qpi_flight));
  FAILS(NULL, QPI_ERROR_VALUE, "field", qpi_flight_field_info(qpi_flight_field_count(), &field));
  FAILS(NULL, QPI_ERROR_POINTER, "info", qpi_flight_field_info(0, NULL));
}

/* A ring in the fixture's block, with a record's room before and behind it that nobody may touch. */
static qpi_flight* ring_of(fixture* f) {
  qpi_flight* ring = (qpi_flight*)carve(f, sizeof(qpi_flight) * (CAPACITY + 2)) + 1;
  memset(ring - 1, 0xA5, sizeof(qpi_flight) * (CAPACITY + 2));
  memset(ring, 0, sizeof(qpi_flight) * CAPACITY);
  f->isv.flight = ring;
  f->isv.flight_capacity = CAPACITY;
  return ring;
}

static void commits_are_recorded(void) {
  fixture f;
  qpi_flight *ring, guard;
  int i;
  memset(&guard, 0xA5, sizeof guard);
  fixture_open(&f);
  ring = ring_of(&f);
  OK(qpi_control(&f.isv, NULL)); /* before any commit there is no record to bring up to date */
  CHECK(ring[0].commits == 0 && ring[CAPACITY - 1].commits == 0);
  for (i = 1; i <= 5; ++i) {
    OK(qpi_step(f.plan, &f.isv, &f.batch, NULL));
    CHECK(ring[(i - 1) % CAPACITY].commits == (uint64_t)i);
    CHECK(ring[(i - 1) % CAPACITY].rows_last == ROWS);
    CHECK(near(ring[(i - 1) % CAPACITY].kl_last, SMOKE_KL, 3e-6));
    CHECK(near(ring[(i - 1) % CAPACITY].lam, *float_slot(&f, QPI_SLOT_lam), 0));
  }
  CHECK(ring[0].commits == 4 && ring[1].commits == 5 && ring[2].commits == 3);
  CHECK(counter(&f, QPI_SLOT_commits) == 5);
  CHECK(memcmp(ring - 1, &guard, sizeof guard) == 0 && memcmp(ring + CAPACITY, &guard, sizeof guard) == 0);

  /* Gradient, then law: the record of the one commit ends up as that of a step. */
  OK(qpi_distill_grad(f.plan, &f.isv, &f.batch, NULL));
  CHECK(ring[2].commits == 6 && ring[2].reason == QPI_REASON_OBSERVED);
  OK(qpi_control(&f.isv, NULL));
  CHECK(ring[2].commits == 6 && ring[2].reason == QPI_REASON_AT_MAX);
  CHECK(ring[0].commits == 4 && ring[1].commits == 5);

  /* A commit without rows is a record too; accumulate, measure and discard are none. */
  OK(qpi_accumulate(f.plan, &f.isv, &f.batch, NULL));
  OK(qpi_measure(f.plan, &f.isv, &f.batch, f.record, NULL));
  OK(qpi_discard(&f.isv, NULL));
  CHECK(ring[0].commits == 4);
  OK(qpi_commit(&f.isv, NULL));
  CHECK(ring[0].commits == 7 && ring[0].reason == QPI_REASON_NO_ROWS && ring[0].rows_last == 0);
  fixture_close(&f);
}

static void impossible_rings(void) {
  fixture f;
  qpi_flight* ring;
  fixture_open(&f);
  ring = ring_of(&f);
  save(&f);
  f.isv.flight_capacity = 0;
  FAILS(&f, QPI_ERROR_VALUE, "flight_capacity", qpi_commit(&f.isv, NULL));
  f.isv.flight_capacity = -1;
  FAILS(&f, QPI_ERROR_VALUE, "flight_capacity", qpi_commit(&f.isv, NULL));
  f.isv.flight_capacity = QPI_FLIGHT_MAX + 1;
  FAILS(&f, QPI_ERROR_VALUE, "flight_capacity", qpi_step(f.plan, &f.isv, &f.batch, NULL));
  f.isv.flight_capacity = CAPACITY;
  f.isv.flight = (qpi_flight*)((char*)ring + 4);
  FAILS(&f, QPI_ERROR_POINTER, "flight", qpi_commit(&f.isv, NULL));
  f.isv.flight = (qpi_flight*)f.isv.workspace;
  FAILS(&f, QPI_ERROR_POINTER, "overlaps isv.workspace", qpi_commit(&f.isv, NULL));
  f.isv.flight = (qpi_flight*)f.isv.slots;
  FAILS(&f, QPI_ERROR_POINTER, "overlaps isv.slots", qpi_commit(&f.isv, NULL));
  f.isv.flight = (qpi_flight*)f.pi_grad;
  FAILS(&f, QPI_ERROR_POINTER, "pi_grad overlaps flight", qpi_step(f.plan, &f.isv, &f.batch, NULL));
  f.isv.flight = ring;
  FAILS(&f, QPI_ERROR_POINTER, "record overlaps flight",
        qpi_measure(f.plan, &f.isv, &f.batch, (qpi_record*)ring, NULL));
  f.isv.flight = NULL;
  FAILS(&f, QPI_ERROR_POINTER, "flight", qpi_commit(&f.isv, NULL));
  f.isv.flight_capacity = 0;
  OK(qpi_commit(&f.isv, NULL));
  fixture_close(&f);
}

/* Compiled before there was a recorder: the members are not there, whatever lies behind the struct. */
static void smaller_struct(void) {
  fixture f;
  fixture_open(&f);
  f.isv.size = offsetof(qpi_isv, flight);
  f.isv.flight = (qpi_flight*)(uintptr_t)3;
  f.isv.flight_capacity = -77;
  OK(qpi_step(f.plan, &f.isv, &f.batch, NULL));
  CHECK(counter(&f, QPI_SLOT_commits) == 1);
  f.isv.size += 8;
  FAILS(NULL, QPI_ERROR_VALUE, "isv.size", qpi_step(f.plan, &f.isv, &f.batch, NULL));
  fixture_close(&f);
}

int main(void) {
  fields();
  commits_are_recorded();
  impossible_rings();
  smaller_struct();
  return report();
}
