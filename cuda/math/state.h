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
  uint32_t* slots;
  uint32_t* absent;
  uint64_t present;  // one bit per slot of the layout
  FlightRing flight;
  bool native;                  // `index` need not be looked at
  int32_t index[kNativeWords];  // in `slots`; -1: in `absent`, at the word's native place

  QPI_CONSTEXPR uint32_t* at(int word) const {
    return native ? slots + word : index[word] >= 0 ? slots + index[word] : absent + word;
  }
  QPI_CONSTEXPR bool has(int slot) const { return (present >> slot & 1u) != 0; }
};
static_assert(QPI_SLOT_COUNT <= 64, "one bit per slot");

// The statistic's reduction tree (statistic.h). 3168 = 132 * 24 slots: large GPUs have 24, 12 or 8 warps a
// multiprocessor at work, and every warp then has as many slots as any other.
constexpr int kMaxTileRows = 32;
constexpr int kStatSlots = 3168;
constexpr int kFoldLanes = 1024;

// Rows of a tile: as many as make about 40 kB of float32 logits, but 1, 2, 4, 8 or 32, whatever the dtype.
QPI_CONSTEXPR int tile_rows_of(int64_t actions, int64_t atoms) {
  const int64_t most = 10240 / (actions * atoms);
  return most >= 32 ? 32 : most >= 8 ? 8 : most >= 4 ? 4 : most >= 2 ? 2 : 1;
}

// What the tiles of one slot add to the statistic. Counts fit: a slot has fewer than 2^40 / 3168 rows.
struct StatSlot {
  double weighted_kl;
  double weight;
  double weighted_variance;
  uint32_t rows, skipped, clipped, faults;
};

QPI_CONSTEXPR int64_t tile_count(int64_t rows, int tile_rows) { return (rows + tile_rows - 1) / tile_rows; }
QPI_CONSTEXPR int slots_in_use(int64_t rows, int tile_rows) {
  return tile_count(rows, tile_rows) < kStatSlots ? static_cast<int>(tile_count(rows, tile_rows)) : kStatSlots;
}

// Everything before `slots` is state.
struct Workspace {
  qpi_record record;
  uint64_t pad;
  uint32_t absent[(kNativeWords + 15) / 16 * 16];  // slots that the layout lacks
  StatSlot slots[kStatSlots];
  qpi_summary summary;                    // of one call
  qpi_summary summary_slots[kStatSlots];  // what the tiles of each slot add up to, on request
};

// Slots added up: what a call adds to the record.
struct StatTotal {
  double weighted_kl;
  double weight;
  double weighted_variance;
  int64_t rows, skipped, clipped;
  uint32_t faults;
};

// A record without its summary, which few steps have.
struct RecordHead {
  StatTotal total;
  uint32_t calls;
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

// Which member of the family a problem is (family.h).
struct RowFamily {
  qpi_critic critic;
  qpi_target target;
  qpi_divergence divergence;
  qpi_control_stat control_stat;
  float epsilon, beta;
  float cool;  // 1 / temperature of the policy
  bool plain;  // the step that every fast path is for
};

inline RowFamily family_of(const qpi_problem& p) {
  const bool plain = p.critic == QPI_CRITIC_CATEGORICAL && p.target == QPI_TARGET_BOLTZMANN &&
                     p.divergence == QPI_DIVERGENCE_FORWARD_KL && p.policy_temperature == 1.0f &&
                     (p.flags & QPI_SUMMARY) == 0;
  return {p.critic,
          p.target,
          p.divergence,
          p.control_stat,
          p.target_epsilon,
          p.divergence_beta,
          1.0f / p.policy_temperature,
          plain};
}

enum class CommitParts : uint32_t { kNone, kObserve, kObserveAndControl };
enum class ResetParts : uint32_t { kPresent, kAbsent };  // slots of the layout, or those it lacks

// One call's worth of work on the rows, for every backend. What the plain step on packed arrays looks at comes first: a
// kernel's arguments reach it 64 bytes at a time, and small batches wait for each of these.
struct RowsArgs {
  const void* q_logits;
  const void* pi_logits;
  const float* support;
  void* pi_grad;  // NULL: statistic only
  const uint8_t* legal_actions;
  const float* row_weights;
  const float* grad_scale;
  StatSlot* slots;             // those in use are written
  qpi_summary* summary_slots;  // likewise; NULL: no summary
  int64_t rows;
  int32_t actions, atoms, tile_rows;
  qpi_dtype q_dtype, pi_dtype, grad_dtype;
  float reduction_scale;  // 1, or 1 / rows
  float illegal_below;
  bool write;        // overwrite pi_grad instead of adding to it
  bool running_std;  // divide values by a standard deviation
  bool row0;         // only row 0 of the call enters the statistic
  int64_t support_stride[2];
  IsvWords isv;
  int64_t q_stride[3], pi_stride[2], grad_stride[2], legal_stride[2], weight_stride;
  RowFamily family;
};

// What follows the rows: fold the slots into the record (or into `measured`), then perhaps commit.
struct FinishArgs {
  qpi_record* record;
  qpi_record* measured;  // not NULL: the statistic goes there and nothing else changes
  const StatSlot* slots;
  const qpi_summary* summary_slots;  // NULL: no summary
  qpi_summary* summary;              // where their sum is
  const float* grad_scale;
  int32_t slots_in_use;
  float reduction_scale;
  bool running_std;
  CommitParts parts;
};

}  // namespace qpi
