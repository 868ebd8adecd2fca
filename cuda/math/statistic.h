// The statistic: what one row adds to it, and the tree that adds rows up.
//
// The tree is a function of the number of rows alone. Tile t holds rows 8t .. 8t+7 and is added up pairwise; it goes to
// slot t mod kStatSlots; a slot's tiles are added in order; slot s goes to lane s mod kFoldLanes in order of s; lanes
// are added up pairwise. Grid, kernel, thread count and device do not enter.
#pragma once

#include "isv_view.h"
#include "row_math.h"

namespace qpi {
inline namespace QPI_ISA {

QPI_FN void add_record(qpi_record& sum, const qpi_record& other) {
  sum.weighted_kl += other.weighted_kl;
  sum.weight += other.weight;
  sum.weighted_variance += other.weighted_variance;
  sum.rows += other.rows;
  sum.skipped += other.skipped;
  sum.clipped += other.clipped;
  sum.faults |= other.faults;
}

// Every kernel of a step computes these from the same words.
QPI_FN StepNumbers read_step_numbers(const IsvView& isv, bool running_std, float reduction_scale,
                                     const float* grad_scale) {
  StepNumbers n{};
  n.lam = isv.number<QPI_SLOT_lam>();
  const float tau = isv.number<QPI_SLOT_tau>();
  const float tau_min = isv.number<QPI_SLOT_tau_min>();
  n.kl_row_max = isv.number<QPI_SLOT_kl_row_max>();

  if (!(n.lam >= 0.0f) || !is_finite(n.lam)) n.faults |= QPI_FAULT_LAM;
  if (!(tau >= 0.0f) || !(tau_min > 0.0f)) n.faults |= QPI_FAULT_TAU;
  if (!(n.kl_row_max > 0.0f)) n.faults |= QPI_FAULT_BOUND;
  n.tau = lane_max(tau_min, tau);

  n.std = 1.0f;
  if (running_std) {
    const float min_std = isv.number<QPI_SLOT_min_std>();
    if (!(min_std > 0.0f)) n.faults |= QPI_FAULT_BOUND;
    n.own_std = isv.count<QPI_SLOT_value_observations>() == 0;
    const float value_std = isv.number<QPI_SLOT_value_std>();
    if (!n.own_std && (!(value_std >= 0.0f) || !is_finite(value_std))) n.faults |= QPI_FAULT_BOUND;
    n.std = n.own_std ? min_std : lane_max(min_std, value_std);
  }

  n.halted = n.faults != 0;
  n.gradient_scale = n.lam * reduction_scale;
  if (grad_scale != nullptr) {
    const float scale = *grad_scale;
    if (!is_finite(scale)) n.faults |= QPI_FAULT_GRAD_SCALE;
    n.gradient_scale = is_finite(scale) ? n.gradient_scale * scale : 0.0f;
  }
  return n;
}

enum class RowStatus : uint32_t {
  kCounted,         // gradient and statistic
  kAbsent,          // weight 0: not there
  kSkipped,         // left out whole: NaN, +inf, no finite atom, no legal action
  kSkippedWeight,   // left out whole: weight negative or not finite
  kSupportFault,    // left out whole: uses a support value that is not finite
};

// A weight decides first: an absent row is not looked at.
QPI_FN RowStatus row_status(bool usable, bool has_legal, bool support_usable, float weight) {
  if (weight == 0.0f) return RowStatus::kAbsent;
  if (!(weight > 0.0f) || !is_finite(weight)) return RowStatus::kSkippedWeight;
  if (!usable || !has_legal) return RowStatus::kSkipped;
  if (!support_usable) return RowStatus::kSupportFault;
  return RowStatus::kCounted;
}

QPI_FN qpi_record row_share(RowStatus status, float weight, float kl, float variance, float kl_row_max) {
  qpi_record share{};
  switch (status) {
    case RowStatus::kAbsent:
      break;
    case RowStatus::kSkipped:
      share.skipped = 1;
      break;
    case RowStatus::kSkippedWeight:
      share.skipped = 1;
      share.faults = QPI_FAULT_WEIGHT;
      break;
    case RowStatus::kSupportFault:
      share.faults = QPI_FAULT_SUPPORT;
      break;
    case RowStatus::kCounted: {
      const bool over = !(kl <= kl_row_max);  // a KL that is not finite too
      share.clipped = over ? 1 : 0;
      if (!is_finite(kl)) break;
      share.weighted_kl = static_cast<double>(weight) * static_cast<double>(over ? kl_row_max : kl);
      share.weight = static_cast<double>(weight);
      share.weighted_variance = static_cast<double>(weight) * static_cast<double>(variance);
      share.rows = 1;
      break;
    }
  }
  return share;
}

// One lane's slots, in order.
QPI_FN qpi_record fold_lane(const qpi_record* slots, int in_use, int lane) {
  qpi_record sum{};
  for (int slot = lane; slot < in_use; slot += kFoldLanes) add_record(sum, slots[slot]);
  return sum;
}

}  // namespace QPI_ISA
}  // namespace qpi
