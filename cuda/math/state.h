// Plain data that crosses translation units: the ISV, the workspace. No code that depends on an instruction set.
#pragma once

#include <qpi_distill.h>

#ifdef __CUDACC__
#define QPI_CONSTEXPR __host__ __device__ constexpr
#else
#define QPI_CONSTEXPR constexpr
#endif

namespace qpi {

// First word of each slot in the native layout; the workspace keeps absent slots at the same places.
struct NativeLayout {
  int32_t first[QPI_SLOT_COUNT + 1];
};

constexpr int32_t slot_words(int type) { return type == QPI_SLOT_U64 ? 2 : 1; }

constexpr NativeLayout make_native_layout() {
  NativeLayout layout{};
  int32_t next = 0, slot = 0;
#define QPI_PLACE(name, type, role, def, low, high, unit, meaning) \
  layout.first[slot++] = next;                                     \
  next += slot_words(QPI_SLOT_##type);
  QPI_ISV_MANIFEST(QPI_PLACE)
#undef QPI_PLACE
  layout.first[slot] = next;
  return layout;
}

constexpr int32_t kNativeWords = make_native_layout().first[QPI_SLOT_COUNT];

// Where the flight recorder's records go; NULL: nowhere.
struct FlightRing {
  qpi_flight* records;
  uint64_t capacity;
};

// Where each word of the native layout is: in the caller's buffer, or in the workspace for slots that the layout lacks.
struct IsvWords {
  uint32_t* at[kNativeWords];
  uint64_t present;  // one bit per slot of the layout
  FlightRing flight;

  QPI_CONSTEXPR bool has(int slot) const { return (present >> slot & 1u) != 0; }
};
static_assert(QPI_SLOT_COUNT <= 64, "one bit per slot");

// The statistic's reduction tree (statistic.h). 12672 = 132 * 96 slots divide well over the warps of the large GPUs:
// each has several slots to itself, and few are left idle at the end.
constexpr int kTileRows = 8;
constexpr int kStatSlots = 12672;
constexpr int kFoldLanes = 1024;

// What the tiles of one slot add to the statistic. Counts fit: a slot has fewer than 2^40 / 12672 rows.
struct StatSlot {
  double weighted_kl;
  double weight;
  double weighted_variance;
  uint32_t rows, skipped, clipped, faults;
};

QPI_CONSTEXPR int64_t tile_count(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }
QPI_CONSTEXPR int slots_in_use(int64_t rows) {
  return tile_count(rows) < kStatSlots ? static_cast<int>(tile_count(rows)) : kStatSlots;
}

// Everything before `slots` is state.
struct Workspace {
  qpi_record record;
  uint64_t pad;
  uint32_t absent[(kNativeWords + 15) / 16 * 16];  // slots that the layout lacks
  StatSlot slots[kStatSlots];
};

// What a step needs from the ISV, checked (check_step_input).
struct StepNumbers {
  float tau;  // floored
  float std;  // what values are divided by; with `own_std`, its floor
  float kl_row_max;
  float gradient_scale;  // lam * reduction * grad_scale; 0: no gradient
  uint32_t faults;
  bool own_std;  // no observation yet: each row's own standard deviation serves
  bool halted;   // a fault after which nothing may be written
};

enum class CommitParts : uint32_t { kNone, kObserve, kObserveAndControl };
enum class ResetParts : uint32_t { kPresent, kAbsent };  // slots of the layout, or those it lacks

// One call's worth of work on the rows, for every backend.
struct RowsArgs {
  IsvWords isv;
  const void* q_logits;
  const void* pi_logits;
  const float* support;
  void* pi_grad;  // NULL: statistic only
  const uint8_t* legal_actions;
  const float* row_weights;
  const float* grad_scale;
  StatSlot* slots;  // slots_in_use(rows) of them are written
  int64_t rows;
  int64_t q_stride[3], pi_stride[2], grad_stride[2], legal_stride[2], support_stride[2], weight_stride;
  int32_t actions, atoms;
  qpi_dtype q_dtype, pi_dtype, grad_dtype;
  float reduction_scale;  // 1, or 1 / rows
  float illegal_below;
  bool write;        // overwrite pi_grad instead of adding to it
  bool running_std;  // divide values by a standard deviation
  bool row0;         // only row 0 of the call enters the statistic
};

// What follows the rows: fold the slots into the record (or into `measured`), then perhaps commit.
struct FinishArgs {
  IsvWords isv;
  qpi_record* record;
  qpi_record* measured;  // not NULL: the statistic goes there and nothing else changes
  const StatSlot* slots;
  const float* grad_scale;
  int64_t rows;
  bool running_std;
  CommitParts parts;
};

}  // namespace qpi
