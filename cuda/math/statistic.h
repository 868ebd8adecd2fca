// The statistic: what one row adds to it, and the tree that adds rows up.
//
// The tree is a function of the number of rows and of the shape alone. A tile is tile_rows_of(actions, atoms) rows;
// tile t goes to slot t mod kStatSlots. Row r of a tile has a lane of its own, in which a slot's tiles are added in
// order; then the lanes of a slot are added pairwise. Slot s goes to lane s mod kFoldLanes in order of s, and these
// lanes are added pairwise. Grid, kernel, thread count and device do not enter.
#pragma once

#include "isv_image.h"
#include "row_math.h"

namespace qpi {
inline namespace QPI_ISA {

QPI_FN void add_total(StatTotal& sum, const StatTotal& other) {
  sum.weighted_kl += other.weighted_kl;
  sum.weight += other.weight;
  sum.weighted_variance += other.weighted_variance;
  sum.rows += other.rows;
  sum.skipped += other.skipped;
  sum.clipped += other.clipped;
  sum.faults |= other.faults;
}

QPI_FN RecordHead head_of(const qpi_record& r) {
  return {{r.weighted_kl, r.weight, r.weighted_variance, r.rows, r.skipped, r.clipped, r.faults}, r.calls};
}
QPI_FN bool is_empty(const RecordHead& head) {
  const StatTotal& total = head.total;
  return head.calls == 0 && total.rows == 0 && total.skipped == 0 && total.faults == 0;
}
QPI_FN void store_head(qpi_record* to, const RecordHead& head) {
  to->weighted_kl = head.total.weighted_kl;
  to->weight = head.total.weight;
  to->weighted_variance = head.total.weighted_variance;
  to->rows = head.total.rows;
  to->skipped = head.total.skipped;
  to->clipped = head.total.clipped;
  to->faults = head.total.faults;
  to->calls = head.calls;
}

// Every kernel of a step computes these from the same words.
struct StepInput {
  float lam, tau, tau_min, kl_row_max, min_std, value_std;
  bool off;       // no gradient, whatever lam is
  bool observed;  // value_std has been
  bool has_scale;
  float grad_scale;
};

// From an IsvImage or an IsvMemory. All loads first: they are independent, and one trip to memory is most of the cost.
template <class Isv>
QPI_FN StepInput load_step_input(const Isv& isv, const float* grad_scale) {
  StepInput in;
  in.lam = isv.template number<QPI_SLOT_lam>();
  in.off = isv.template bits<QPI_SLOT_lam_off>() != 0;
  in.tau = isv.template number<QPI_SLOT_tau>();
  in.tau_min = isv.template number<QPI_SLOT_tau_min>();
  in.kl_row_max = isv.template number<QPI_SLOT_kl_row_max>();
  in.min_std = isv.template number<QPI_SLOT_min_std>();
  in.value_std = isv.template number<QPI_SLOT_value_std>();
  in.observed = isv.template count<QPI_SLOT_value_observations>() != 0;
  in.has_scale = grad_scale != nullptr;
  in.grad_scale = in.has_scale ? *grad_scale : 1.0f;
  return in;
}

QPI_FN StepNumbers check_step_input(const StepInput& in, bool running_std, float reduction_scale) {
  StepNumbers n{};
  if (!(in.lam >= 0.0f) || !is_finite(in.lam)) n.faults |= QPI_FAULT_LAM;
  if (!(in.tau >= 0.0f) || !(in.tau_min > 0.0f)) n.faults |= QPI_FAULT_TAU;
  if (!(in.kl_row_max > 0.0f)) n.faults |= QPI_FAULT_BOUND;
  if (running_std) {
    if (!(in.min_std > 0.0f)) n.faults |= QPI_FAULT_BOUND;
    if (in.observed && (!(in.value_std >= 0.0f) || !is_finite(in.value_std))) n.faults |= QPI_FAULT_BOUND;
  }
  n.halted = n.faults != 0;
  n.kl_row_max = in.kl_row_max;
  n.tau = lane_max(in.tau_min, in.tau);
  n.own_std = running_std && !in.observed;
  n.std = !running_std ? 1.0f : n.own_std ? in.min_std : lane_max(in.min_std, in.value_std);
  n.gradient_scale = in.off ? 0.0f : in.lam * reduction_scale;
  if (in.has_scale) {
    n.gradient_scale *= in.grad_scale;
  }
  if (!is_finite(n.gradient_scale)) {  // grad_scale, or its product with lam; a bad lam is a fault of its own
    if ((n.faults & QPI_FAULT_LAM) == 0) n.faults |= QPI_FAULT_GRAD_SCALE;
    n.gradient_scale = 0.0f;
  }
  return n;
}

enum class RowStatus : uint32_t {
  kCounted,        // gradient and statistic
  kAbsent,         // weight 0: not there
  kSkipped,        // left out whole: NaN, +inf, no finite atom, no legal action
  kSkippedWeight,  // left out whole: weight negative or not finite
  kSupportFault,   // left out whole: uses a support value that is not finite
};

// A weight decides first: an absent row is not looked at.
QPI_FN RowStatus row_status(bool usable, bool has_legal, bool support_usable, float weight, float gradient_scale) {
  if (weight == 0.0f) return RowStatus::kAbsent;
  if (!(weight > 0.0f) || !is_finite(weight) || !is_finite(weight * gradient_scale)) return RowStatus::kSkippedWeight;
  if (!usable || !has_legal) return RowStatus::kSkipped;
  if (!support_usable) return RowStatus::kSupportFault;
  return RowStatus::kCounted;
}

// What one row adds to the statistic.
struct RowShare {
  float weight;  // 0: the row adds nothing to the sums
  float kl;
  float variance;
  bool counted, skipped, clipped;
  uint32_t faults;
};

// A row that is not the one that `row0` looks at: it may still be skipped, and have faults.
QPI_FN RowShare out_of_statistic(RowShare share) {
  share.weight = share.kl = share.variance = 0.0f;
  share.counted = share.clipped = false;
  return share;
}

QPI_FN RowShare row_share(RowStatus status, float weight, float kl, float variance, float kl_row_max) {
  const bool valid = status == RowStatus::kCounted;
  const bool over = !(kl <= kl_row_max) || !is_finite(kl);  // a KL that is not finite has no share at all
  RowShare share;
  share.counted = valid && is_finite(kl);
  share.clipped = valid && over;
  share.skipped = status == RowStatus::kSkipped || status == RowStatus::kSkippedWeight;
  share.faults = status == RowStatus::kSkippedWeight  ? static_cast<uint32_t>(QPI_FAULT_WEIGHT)
                 : status == RowStatus::kSupportFault ? static_cast<uint32_t>(QPI_FAULT_SUPPORT)
                                                      : 0u;
  share.weight = share.counted ? weight : 0.0f;
  share.kl = share.counted ? (over ? kl_row_max : kl) : 0.0f;
  share.variance = share.counted ? variance : 0.0f;
  return share;
}

// What one row of every tile of a slot adds up to.
struct LaneSum {
  double weighted_kl = 0.0, weight = 0.0, weighted_variance = 0.0;
  uint32_t rows = 0, skipped = 0, clipped = 0, faults = 0;

  QPI_FN void add(const RowShare& row) {
    const double w = row.weight;
    weighted_kl += w * static_cast<double>(row.kl);
    weight += w;
    weighted_variance += w * static_cast<double>(row.variance);
    rows += row.counted;
    skipped += row.skipped;
    clipped += row.clipped;
    faults |= row.faults;
  }
  QPI_FN void merge(const LaneSum& other) {
    weighted_kl += other.weighted_kl;
    weight += other.weight;
    weighted_variance += other.weighted_variance;
    rows += other.rows;
    skipped += other.skipped;
    clipped += other.clipped;
    faults |= other.faults;
  }
};

// ---- the summary, in the same tree ----------------------------------------------------------------------------------

QPI_FN void add_summary(qpi_summary& sum, const qpi_summary& other) {
  sum.weight += other.weight;
  sum.loss += other.loss;
  sum.target_entropy += other.target_entropy;
  sum.policy_entropy += other.policy_entropy;
  sum.uniform_entropy += other.uniform_entropy;
  sum.agreement += other.agreement;
  sum.pi_at_qstar += other.pi_at_qstar;
  sum.overlap += other.overlap;
}

QPI_FN qpi_summary fold_summary_lane(const qpi_summary* slots, int in_use, int lane) {
  qpi_summary sum{};
  for (int i = lane; i < in_use; i += kFoldLanes) add_summary(sum, slots[i]);
  return sum;
}

// One lane's slots, in order.
QPI_FN StatTotal fold_lane(const StatSlot* slots, int in_use, int lane) {
  StatTotal sum{};
#ifdef __CUDA_ARCH__
#pragma unroll 4  // independent loads
#endif
  for (int i = lane; i < in_use; i += kFoldLanes) {
    const StatSlot slot = slots[i];
    add_total(sum, {slot.weighted_kl, slot.weight, slot.weighted_variance, slot.rows, slot.skipped, slot.clipped,
                    slot.faults});
  }
  return sum;
}

}  // namespace QPI_ISA
}  // namespace qpi
