/* The registry of control laws at run time is the registry of the header, and what it names can be chosen. */
#include "harness.h"

static void law_info(void) {
  /* The lists are expanded here a second time, independently of the library. */
  static const qpi_law_info lam[] = {
#define ROW(name, input, formula, source) {#name, QPI_LAW_INPUT_##input, formula, source},
      QPI_LAM_LAWS(ROW)};
  static const qpi_law_info tau[] = {QPI_TAU_LAWS(ROW)
#undef ROW
  };
  qpi_law_info info;
  int law;
  CHECK(sizeof lam / sizeof lam[0] == QPI_LAM_LAW_COUNT);
  CHECK(sizeof tau / sizeof tau[0] == QPI_TAU_LAW_COUNT);
  for (law = 0; law < QPI_LAM_LAW_COUNT; ++law) {
    OK(qpi_lam_law_info(law, &info));
    CHECK(strcmp(info.name, lam[law].name) == 0 && info.input == lam[law].input);
    CHECK(strcmp(info.formula, lam[law].formula) == 0 && strcmp(info.source, lam[law].source) == 0);
  }
  for (law = 0; law < QPI_TAU_LAW_COUNT; ++law) {
    OK(qpi_tau_law_info(law, &info));
    CHECK(strcmp(info.name, tau[law].name) == 0 && info.input == tau[law].input);
    CHECK(strcmp(info.formula, tau[law].formula) == 0 && strcmp(info.source, tau[law].source) == 0);
  }
  /* What is there by default is what was there before there was a choice. */
  CHECK(QPI_LAM_LAW_bounded_step == 0 && QPI_TAU_LAW_fixed == 0);
  FAILS(NULL, QPI_ERROR_VALUE, "law", qpi_lam_law_info(QPI_LAM_LAW_COUNT, &info));
  FAILS(NULL, QPI_ERROR_VALUE, "law", qpi_lam_law_info(-1, &info));
  FAILS(NULL, QPI_ERROR_VALUE, "law", qpi_tau_law_info(QPI_TAU_LAW_COUNT, &info));
  FAILS(NULL, QPI_ERROR_POINTER, "info", qpi_tau_law_info(0, NULL));
}

static void preset_info(void) {
  qpi_preset_info preset;
  qpi_slot_info slot;
  int32_t i, k;
  CHECK(qpi_preset_count() >= 6);
  for (i = 0; i < qpi_preset_count(); ++i) {
    OK(qpi_preset_get(i, &preset));
    CHECK(preset.lam_law >= 0 && preset.lam_law < QPI_LAM_LAW_COUNT);
    CHECK(preset.count >= 2 && preset.count <= QPI_PRESET_VALUES);
    for (k = 0; k < preset.count; ++k) {
      OK(qpi_isv_slot_info((int32_t)preset.values[k].slot, &slot));
      CHECK(slot.role == QPI_SLOT_PARAM && slot.type == QPI_SLOT_F32);
      CHECK(preset.values[k].value >= slot.low && preset.values[k].value <= slot.high);
    }
  }
  OK(qpi_preset_get(1, &preset));
  CHECK(strcmp(preset.name, "symmetric") == 0 && preset.count == 5);
  CHECK(preset.values[0].slot == QPI_SLOT_lam_up && near(preset.values[0].value, 1.2, 0));
  CHECK(preset.values[1].slot == QPI_SLOT_lam_down && near(preset.values[1].value, 1 / 1.2, 1e-15));
  FAILS(NULL, QPI_ERROR_VALUE, "preset", qpi_preset_get(qpi_preset_count(), &preset));
  FAILS(NULL, QPI_ERROR_POINTER, "info", qpi_preset_get(0, NULL));
}

/* Every law runs when its number is in the slot; the number after the last is a fault that moves nothing. */
static void chosen_by_number(void) {
  fixture f;
  int law;
  fixture_open(&f);
  for (law = 0; law <= QPI_LAM_LAW_COUNT; ++law) {
    const uint32_t* faults = (const uint32_t*)slot_address(&f.isv, QPI_SLOT_faults);
    const uint32_t* reason = (const uint32_t*)slot_address(&f.isv, QPI_SLOT_reason);
    fixture_fill(&f);
    fixture_reset(&f);
    *(uint32_t*)slot_address(&f.isv, QPI_SLOT_lam_law) = (uint32_t)law;
    OK(qpi_step(f.plan, &f.isv, &f.batch, NULL));
    CHECK(near(*float_slot(&f, QPI_SLOT_kl_ema), SMOKE_KL, 3e-6));
    if (law < QPI_LAM_LAW_COUNT) {
      CHECK(*faults == 0 && *reason != QPI_REASON_FAULT && *reason != QPI_REASON_NONE);
    } else {
      CHECK(*faults == QPI_FAULT_LAW && *reason == QPI_REASON_FAULT);
      CHECK(near(*float_slot(&f, QPI_SLOT_lam), 1, 0));
    }
  }
  fixture_close(&f);
}

int main(void) {
  law_info();
  preset_info();
  chosen_by_number();
  return report();
}
