// Plain data that crosses translation units: the ISV, the workspace. No code that depends on an instruction set.
#pragma once

#include <qpi_distill.h>

#ifdef __CUDACC__
#define QPI_CONSTEXPR __host__ __device__ constexpr
#else
#define QPI_CONSTEXPR constexpr
#endif

namespace qpi {

// First word of each slot in the native layout; the workspace mirrors absent slots there.
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

struct IsvSpan {
  uint32_t* slots;   // the caller's buffer
  uint32_t* mirror;  // kNativeWords words of the workspace, for STATE and OUTPUT slots that the layout lacks
  int32_t index[QPI_SLOT_COUNT];
};

// Leaves of the statistic's reduction tree (statistic.h). 4224 = 132 * 32 divides well over the multiprocessors of the
// large GPUs, and the workspace stays small.
constexpr int kTileRows = 8;
constexpr int kStatSlots = 4224;
constexpr int kFoldLanes = 256;

QPI_CONSTEXPR int64_t tile_count(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }
QPI_CONSTEXPR int slots_in_use(int64_t rows) {
  return tile_count(rows) < kStatSlots ? static_cast<int>(tile_count(rows)) : kStatSlots;
}

// Everything before `slots` is state.
struct Workspace {
  qpi_record record;
  uint64_t pad;
  uint32_t mirror[(kNativeWords + 15) / 16 * 16];
  qpi_record slots[kStatSlots];
};

// What a step needs from the ISV, checked (read_step_numbers).
struct StepNumbers {
  float lam;
  float tau;             // floored
  float std;             // what values are divided by; with `own_std`, its floor
  float kl_row_max;
  float gradient_scale;  // lam * reduction * grad_scale; 0: no gradient
  uint32_t faults;
  bool own_std;          // no observation yet: each row's own standard deviation serves
  bool halted;           // a fault after which nothing may be written
};

enum class CommitParts : uint32_t { kNone, kObserve, kObserveAndControl };
enum class ResetParts : uint32_t { kSlots, kWorkspace };

// One call's worth of work on the rows, for every backend.
struct RowsArgs {
  IsvSpan isv;
  const void* q_logits;
  const void* pi_logits;
  const float* support;
  void* pi_grad;  // NULL: statistic only
  const uint8_t* legal_actions;
  const float* row_weights;
  const float* grad_scale;
  qpi_record* slots;  // slots_in_use(rows) of them are written
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
  IsvSpan isv;
  qpi_record* record;
  qpi_record* measured;  // not NULL: the statistic goes there and nothing else changes
  const qpi_record* slots;
  const float* grad_scale;
  int64_t rows;
  bool running_std;
  CommitParts parts;
};

}  // namespace qpi
