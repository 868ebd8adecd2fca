// What a commit does: moving averages, then the control law. Pure functions of the ISV and a record.
#pragma once

#include "statistic.h"

namespace qpi {
inline namespace QPI_ISA {

struct LawInput {
  float lam, kl, target, lam_min, lam_max, tolerance, up, down;
};
struct LawOutput {
  float lam;
  qpi_reason reason;
};

// The seed's asymmetric bounded step (rl_q_distill_lambda_controller), with lam clamped into its bounds first, so that
// neither branch can move it the wrong way. kl = 0 is a low value like any other.
QPI_FN LawOutput bounded_step(const LawInput& in) {
  const float lam = in.lam < in.lam_min ? in.lam_min : in.lam > in.lam_max ? in.lam_max : in.lam;
  if (in.kl > in.target * in.tolerance) {
    const float raised = lam * in.up;
    if (raised < in.lam_max) return {raised, QPI_REASON_ABOVE};
    return {in.lam_max, lam < in.lam_max ? QPI_REASON_ABOVE : QPI_REASON_AT_MAX};
  }
  if (in.kl < in.target / in.tolerance) {
    const float lowered = lam * in.down;
    if (lowered > in.lam_min) return {lowered, QPI_REASON_BELOW};
    return {in.lam_min, lam > in.lam_min ? QPI_REASON_BELOW : QPI_REASON_AT_MIN};
  }
  return {lam, QPI_REASON_IN_BAND};
}

// Run the law on kl_ema as it stands. Returns the fault bits it found.
QPI_FN uint32_t control(const IsvImage& isv, uint32_t* reason) {
  LawInput in;
  in.lam = isv.number<QPI_SLOT_lam>();
  in.kl = isv.number<QPI_SLOT_kl_ema>();
  in.target = isv.number<QPI_SLOT_kl_target>();
  in.lam_min = isv.number<QPI_SLOT_lam_min>();
  in.lam_max = isv.number<QPI_SLOT_lam_max>();
  in.tolerance = isv.number<QPI_SLOT_kl_tolerance>();
  in.up = isv.number<QPI_SLOT_lam_up>();
  in.down = isv.number<QPI_SLOT_lam_down>();

  uint32_t faults = 0;
  if (!(in.lam >= 0.0f) || !is_finite(in.lam)) faults |= QPI_FAULT_LAM;
  if (!(in.target > 0.0f) || !is_finite(in.target)) faults |= QPI_FAULT_TARGET;
  if (!(in.lam_min > 0.0f) || !(in.lam_max >= in.lam_min) || !is_finite(in.lam_max) || !(in.tolerance >= 1.0f) ||
      !is_finite(in.tolerance) || !(in.up >= 1.0f) || !is_finite(in.up) || !(in.down > 0.0f) || !(in.down <= 1.0f) ||
      !(in.kl >= 0.0f) || !is_finite(in.kl))
    faults |= QPI_FAULT_LAW;
  if (faults != 0) {
    *reason = QPI_REASON_FAULT;
    return faults;
  }
  if (in.lam == 0.0f) {
    *reason = QPI_REASON_OFF;
    return 0;
  }
  // A layout without the counter keeps the seed's sentinel, so that the bus alone is the whole state.
  const bool observed = isv.counts_observations ? isv.count<QPI_SLOT_observations>() != 0 : in.kl != 0.0f;
  if (!observed) {
    *reason = QPI_REASON_TOO_FEW;
    return 0;
  }
  const LawOutput out = bounded_step(in);
  isv.set_number<QPI_SLOT_lam>(out.lam);
  *reason = out.reason;
  return 0;
}

// The first observation, else (1 - alpha) * average + alpha * observation; in float64, rounded once.
QPI_FN double blend(bool first, double average, double alpha, double observation) {
  return first ? observation : (1.0 - alpha) * average + alpha * observation;
}

// Moving averages from the record; false: nothing to observe, or a fault forbids it.
QPI_FN bool observe(const IsvImage& isv, const qpi_record& record, uint32_t* faults, uint32_t* reason) {
  isv.set_count<QPI_SLOT_rows_last>(static_cast<uint64_t>(record.rows));
  isv.set_count<QPI_SLOT_skipped_last>(static_cast<uint64_t>(record.skipped));
  isv.set_count<QPI_SLOT_clipped_last>(static_cast<uint64_t>(record.clipped));
  isv.set_count<QPI_SLOT_skipped_rows>(isv.count<QPI_SLOT_skipped_rows>() + static_cast<uint64_t>(record.skipped));
  isv.set_count<QPI_SLOT_clipped_rows>(isv.count<QPI_SLOT_clipped_rows>() + static_cast<uint64_t>(record.clipped));
  *faults |= record.faults;

  constexpr uint32_t kTainted = QPI_FAULT_TAU | QPI_FAULT_LAM | QPI_FAULT_SUPPORT | QPI_FAULT_BOUND;
  if ((record.faults & kTainted) != 0) {
    *reason = QPI_REASON_FAULT;
    return false;
  }
  if (!(record.weight > 0.0)) {
    *reason = QPI_REASON_NO_ROWS;
    return false;
  }
  const double inverse_weight = 1.0 / record.weight;  // divisions are slow where float64 is
  const double kl = record.weighted_kl * inverse_weight;
  const double variance = record.weighted_variance * inverse_weight;
  const float alpha = isv.number<QPI_SLOT_kl_alpha>();
  const float value_alpha = isv.number<QPI_SLOT_value_alpha>();
  if (!(alpha > 0.0f) || !(alpha <= 1.0f) || !(value_alpha > 0.0f) || !(value_alpha <= 1.0f)) {
    *faults |= QPI_FAULT_ALPHA;
    *reason = QPI_REASON_FAULT;
    return false;
  }
  const float average = isv.number<QPI_SLOT_kl_ema>();
  const uint64_t observations = isv.count<QPI_SLOT_observations>();
  const bool first = isv.counts_observations ? observations == 0 : average == 0.0f;
  if (!first && !is_finite(average)) {
    *faults |= QPI_FAULT_LAW;
    *reason = QPI_REASON_FAULT;
    return false;
  }
  isv.set_number<QPI_SLOT_kl_ema>(static_cast<float>(blend(first, average, alpha, kl)));
  isv.set_number<QPI_SLOT_kl_last>(static_cast<float>(kl));
  isv.set_count<QPI_SLOT_observations>(observations + 1);

  const uint64_t value_observations = isv.count<QPI_SLOT_value_observations>();
  const double std = isv.number<QPI_SLOT_value_std>();
  const float blended = static_cast<float>(blend(value_observations == 0, std * std, value_alpha, variance));
  if (is_finite(blended)) {
    isv.set_number<QPI_SLOT_value_std>(lane_sqrt(blended));
    isv.set_count<QPI_SLOT_value_observations>(value_observations + 1);
  } else {
    *faults |= QPI_FAULT_VALUE;
  }
  *reason = QPI_REASON_OBSERVED;
  return true;
}

QPI_FN void report(const IsvImage& isv, uint32_t faults, uint32_t reason) {
  if (faults != 0) isv.set_bits<QPI_SLOT_faults>(isv.bits<QPI_SLOT_faults>() | faults);
  isv.set_bits<QPI_SLOT_reason>(reason);
}

// Moving averages and, if asked for, the law; the record is empty afterwards.
QPI_FN void commit(const IsvImage& isv, qpi_record* record, CommitParts parts) {
  uint32_t faults = 0, reason = QPI_REASON_NONE;
  const bool observed = observe(isv, *record, &faults, &reason);
  if (observed && parts == CommitParts::kObserveAndControl) faults |= control(isv, &reason);
  report(isv, faults, reason);
  *record = qpi_record{};
}

QPI_FN void control_alone(const IsvImage& isv) {
  uint32_t reason = QPI_REASON_NONE;
  const uint32_t faults = control(isv, &reason);
  report(isv, faults, reason);
}

// The end of a call on rows, given what the rows were worked on with, the workspace's record as it was, and the sum of
// the call's slots.
QPI_FN void finish(const FinishArgs& args, const IsvImage& isv, const StepNumbers& numbers, qpi_record record,
                   qpi_record total) {
  if (numbers.halted) total = qpi_record{};  // the slots were not written
  total.faults |= numbers.faults;
  if (args.measured != nullptr) {
    *args.measured = total;
    return;
  }
  add_record(record, total);
  record.calls += 1;
  if (args.parts != CommitParts::kNone) commit(isv, &record, args.parts);
  *args.record = record;
}

}  // namespace QPI_ISA
}  // namespace qpi
