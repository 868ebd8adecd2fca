/* The manifest at run time is the manifest of the header, and the layouts follow it. */
#include "harness.h"

static void slot_info(void) {
  /* The list is expanded here a second time, independently of the library. */
  static const struct {
    const char* name;
    qpi_slot_type type;
    qpi_slot_role role;
    double value, low, high;
    const char *unit, *meaning;
  } expected[] = {
#define ROW(name, type, role, value, low, high, unit, meaning) \
  {#name, QPI_SLOT_##type, QPI_SLOT_##role, value, low, high, unit, meaning},
      QPI_ISV_MANIFEST(ROW)
#undef ROW
  };
  qpi_slot_info info;
  int slot;
  CHECK(sizeof expected / sizeof expected[0] == QPI_SLOT_COUNT);
  for (slot = 0; slot < QPI_SLOT_COUNT; ++slot) {
    memset(&info, 0, sizeof info);
    OK(qpi_isv_slot_info(slot, &info));
    CHECK(strcmp(info.name, expected[slot].name) == 0);
    CHECK(info.type == expected[slot].type && info.role == expected[slot].role);
    CHECK(info.words == (info.type == QPI_SLOT_U64 ? 2 : 1));
    CHECK(info.default_value >= expected[slot].value && info.default_value <= expected[slot].value);
    CHECK(info.low >= expected[slot].low && info.low <= expected[slot].low);
    CHECK(info.high >= expected[slot].high && info.high <= expected[slot].high);
    CHECK(info.default_value >= info.low || info.role != QPI_SLOT_PARAM);
    CHECK(info.default_value <= info.high);
    CHECK(strcmp(info.unit, expected[slot].unit) == 0 && strcmp(info.meaning, expected[slot].meaning) == 0);
  }
  FAILS(NULL, QPI_ERROR_VALUE, "slot", qpi_isv_slot_info(-1, &info));
  FAILS(NULL, QPI_ERROR_VALUE, "slot", qpi_isv_slot_info(QPI_SLOT_COUNT, &info));
  FAILS(NULL, QPI_ERROR_VALUE, "slot", qpi_isv_slot_info(INT32_MIN, &info));
  FAILS(NULL, QPI_ERROR_POINTER, "info", qpi_isv_slot_info(0, NULL));
}

static void native_layout(void) {
  qpi_layout layout;
  qpi_slot_info info;
  int32_t next = 0;
  int slot;
  qpi_layout_native(&layout);
  CHECK(layout.size == sizeof layout);
  for (slot = 0; slot < QPI_SLOT_COUNT; ++slot) {
    OK(qpi_isv_slot_info(slot, &info));
    CHECK(layout.index[slot] == next);
    next += info.words;
  }
  CHECK(qpi_layout_words(&layout) == next);
}

static void bus_layout(void) {
  qpi_layout layout;
  int slot, present = 0;
  qpi_layout_bus(&layout);
  CHECK(layout.size == sizeof layout);
  CHECK(layout.index[QPI_SLOT_lam] == 486);
  CHECK(layout.index[QPI_SLOT_tau] == 487);
  CHECK(layout.index[QPI_SLOT_kl_ema] == 488);
  CHECK(layout.index[QPI_SLOT_kl_target] == 491);
  CHECK(layout.index[QPI_SLOT_kl_alpha] == 493);
  for (slot = 0; slot < QPI_SLOT_COUNT; ++slot) present += layout.index[slot] != -1;
  CHECK(present == 5);
  CHECK(qpi_layout_words(&layout) == QPI_SEED_BUS_WORDS);
  /* A free place for one more slot, and for one that takes two words. */
  layout.index[QPI_SLOT_faults] = 600;
  CHECK(qpi_layout_words(&layout) == 601);
  layout.index[QPI_SLOT_skipped_rows] = 600;
  CHECK(qpi_layout_words(&layout) == -1);
  layout.index[QPI_SLOT_skipped_rows] = 601;
  CHECK(qpi_layout_words(&layout) == 603);
}

static void impossible_layouts(void) {
  qpi_layout layout;
  CHECK(qpi_layout_words(NULL) == -1);
  qpi_layout_native(&layout);
  layout.size = 0;
  CHECK(qpi_layout_words(&layout) == -1);
  qpi_layout_native(&layout);
  layout.index[QPI_SLOT_tau] = -2;
  CHECK(qpi_layout_words(&layout) == -1);
  qpi_layout_native(&layout);
  layout.index[QPI_SLOT_tau] = layout.index[QPI_SLOT_lam];
  CHECK(qpi_layout_words(&layout) == -1);
  CHECK(strstr(qpi_last_error_message(), "tau") != NULL);
  /* The second word of a counter is taken as well. */
  qpi_layout_native(&layout);
  layout.index[QPI_SLOT_tau] = layout.index[QPI_SLOT_observations] + 1;
  CHECK(qpi_layout_words(&layout) == -1);
  /* The largest index does not wrap. */
  qpi_layout_native(&layout);
  layout.index[QPI_SLOT_observations] = INT32_MAX;
  CHECK(qpi_layout_words(&layout) == (int64_t)INT32_MAX + 2);
}

/* Defaults are written where the layout has a slot, and nowhere else. */
static void reset_on_the_bus(void) {
  enum { WORDS = QPI_SEED_BUS_WORDS + 6 };
  fixture f;
  float* bus;
  int word, slot;
  fixture_open(&f);
  bus = (float*)carve(&f, WORDS * sizeof(float));
  for (word = 0; word < WORDS; ++word) bus[word] = -7.0f;
  qpi_layout_bus(&f.isv.layout);
  f.isv.slots = bus;
  f.isv.words = WORDS;
  OK(qpi_workspace_init(&f.isv, NULL));
  OK(qpi_isv_reset(&f.isv, NULL));
  for (word = 0; word < WORDS; ++word) {
    const double expected = word == 486   ? 0.1f
                            : word == 487 ? 1
                            : word == 488 ? 0
                            : word == 491 ? 0.05f
                            : word == 493 ? 0.05f
                                          : -7;
    CHECK(near(bus[word], expected, 0));
  }
  CHECK(slot_address(&f.isv, QPI_SLOT_lam) == bus + 486);
  /* What the bus lacks lives in the part of the workspace that a checkpoint saves, from its default on. */
  for (slot = 0; slot < QPI_SLOT_COUNT; ++slot) {
    const unsigned char* address = (const unsigned char*)slot_address(&f.isv, (qpi_slot)slot);
    if (f.isv.layout.index[slot] >= 0) {
      CHECK(address == (unsigned char*)(bus + f.isv.layout.index[slot]));
    } else {
      CHECK(address > (unsigned char*)f.isv.workspace);
      CHECK(address < (unsigned char*)f.isv.workspace + qpi_workspace_state_size());
    }
  }
  CHECK(near(*float_slot(&f, QPI_SLOT_lam_max), 1, 0));
  CHECK(near(*float_slot(&f, QPI_SLOT_lam_up), 1.2f, 0));
  CHECK(counter(&f, QPI_SLOT_observations) == 0);
  fixture_close(&f);
}

static void native_defaults(void) {
  fixture f;
  qpi_slot_info info;
  int slot;
  fixture_open(&f);
  OK(qpi_isv_reset(&f.isv, NULL));
  for (slot = 0; slot < QPI_SLOT_COUNT; ++slot) {
    const uint32_t* words = (const uint32_t*)slot_address(&f.isv, (qpi_slot)slot);
    OK(qpi_isv_slot_info(slot, &info));
    CHECK(words == (uint32_t*)f.isv.slots + f.isv.layout.index[slot]);
    if (info.type == QPI_SLOT_F32) {
      float value;
      memcpy(&value, words, sizeof value);
      CHECK(near(value, (float)info.default_value, 0));
    } else {
      CHECK(words[0] == (uint32_t)info.default_value);
      CHECK(info.words == 1 || words[1] == 0);
    }
  }
  fixture_close(&f);
}

int main(void) {
  slot_info();
  native_layout();
  bus_layout();
  impossible_layouts();
  reset_on_the_bus();
  native_defaults();
  CHECK(qpi_workspace_size() > qpi_workspace_state_size());
  CHECK(qpi_workspace_state_size() >= sizeof(qpi_record));
  return report();
}
