// What a commit does: moving averages, then the control laws. Pure functions of the ISV and a record.
#pragma once

#include "flight.h"
#include "lam_laws.h"
#include "statistic.h"
#include "tau_laws.h"

namespace qpi {
inline namespace QPI_ISA {

// Observations since the warm-up, in units of a schedule's length.
QPI_FN double schedule_progress(const IsvImage& isv, uint32_t steps) {
  const uint64_t count = isv.count<QPI_SLOT_observations>(), warmup = isv.bits<QPI_SLOT_law_warmup>();
  const uint64_t first = warmup > 1 ? warmup : 1;
  const uint64_t since = count > first ? count - first : 0;
  return since < steps ? static_cast<double>(since) / static_cast<double>(steps) : 1.0;
}

// Is it too early for a law? A layout without the counter keeps the seed's sentinel, so that the bus alone is the whole
// state of a loop without a warm-up.
QPI_FN bool too_few_observations(const IsvImage& isv) {
  const bool observed =
      isv.counts_observations ? isv.count<QPI_SLOT_observations>() != 0 : isv.number<QPI_SLOT_kl_ema>() != 0.0f;
  const uint64_t warmup = isv.bits<QPI_SLOT_law_warmup>();
  return !observed || (warmup > 1 && isv.count<QPI_SLOT_observations>() < warmup);
}

QPI_FN float clamp(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

// What lam's law starts from, checked: all that no observation changes, so that it can be had before there is one.
struct LamStart {
  uint32_t law;
  qpi_law_input input;
  LawInput in;  // but for the KL and the progress
  float lam;
  uint32_t faults;
};

QPI_FN LamStart start_lam(const IsvImage& isv) {
  LamStart start{};
  start.law = isv.bits<QPI_SLOT_lam_law>();
  start.input = lam_law_input(start.law);
  const float lam = start.lam = isv.number<QPI_SLOT_lam>();
  LawInput& in = start.in;
  in.low = isv.number<QPI_SLOT_lam_min>();
  in.high = isv.number<QPI_SLOT_lam_max>();
  in.value = clamp(lam, in.low, in.high);
  in.target = isv.number<QPI_SLOT_kl_target>();
  const bool has_band = set_band(in, isv.number<QPI_SLOT_kl_tolerance>());
  in.memory = isv.number<QPI_SLOT_lam_memory>();
  in.fresh = isv.number<QPI_SLOT_lam_left>() != lam;

  uint32_t& faults = start.faults;
  if (!(lam >= 0.0f) || !is_finite(lam)) faults |= QPI_FAULT_LAM;
  if (!(in.low > 0.0f) || !(in.high >= in.low) || !is_finite(in.high)) faults |= QPI_FAULT_LAW;
  if (start.input == QPI_LAW_INPUT_KL) {
    if (!is_positive(in.target)) faults |= QPI_FAULT_TARGET;
    if (!has_band) faults |= QPI_FAULT_LAW;
  }
  return start;
}

// Run lam's law. Returns the fault bits it found; with any, lam stays.
QPI_FN uint32_t control_lam(const IsvImage& isv, const LamStart& start, uint32_t* reason) {
  const qpi_law_input input = start.input;
  const float lam = start.lam;
  LawInput in = start.in;
  uint32_t faults = start.faults;
  in.kl = isv.number<QPI_SLOT_kl_ema>();
  if (input == QPI_LAW_INPUT_KL && !is_gain(in.kl)) faults |= QPI_FAULT_LAW;
  if (input == QPI_LAW_INPUT_OBSERVATIONS) {
    const uint32_t steps = isv.bits<QPI_SLOT_lam_steps>();
    if (steps == 0) faults |= QPI_FAULT_LAW;
    in.progress = schedule_progress(isv, steps);
  }
  const LawOutput out =
      run_lam_law(start.law, isv, in);  // even so: what its own numbers lack is reported with the rest
  if (!out.sensible) faults |= QPI_FAULT_LAW;
  if (faults != 0) {
    *reason = QPI_REASON_FAULT;
  } else if (lam == 0.0f || isv.bits<QPI_SLOT_lam_off>() != 0) {
    *reason = QPI_REASON_OFF;
  } else if (too_few_observations(isv)) {
    *reason = QPI_REASON_TOO_FEW;
  } else {
    isv.set_number<QPI_SLOT_lam>(out.value);
    if (out.remembers) {
      isv.set_number<QPI_SLOT_lam_memory>(out.memory);
      isv.set_number<QPI_SLOT_lam_left>(out.value);
    }
    *reason = out.reason;
  }
  return faults;
}

// Run tau's law, likewise. A fixed tau is not looked at: rows have checks of their own.
QPI_FN uint32_t control_tau(const IsvImage& isv, uint32_t* reason) {
  const uint32_t law = isv.bits<QPI_SLOT_tau_law>();
  const qpi_law_input input = tau_law_input(law);
  if (input == QPI_LAW_INPUT_NOTHING) {
    *reason = QPI_REASON_FIXED;
    return 0;
  }
  const float tau = isv.number<QPI_SLOT_tau>();
  LawInput in{};
  in.low = isv.number<QPI_SLOT_tau_min>();
  in.high = isv.number<QPI_SLOT_tau_max>();
  in.value = clamp(tau, in.low, in.high);
  in.kl = isv.number<QPI_SLOT_prior_kl>();
  in.target = isv.number<QPI_SLOT_mpo_epsilon>();
  const bool has_band = set_band(in, isv.number<QPI_SLOT_kl_tolerance>());

  uint32_t faults = 0;
  if (!(tau >= 0.0f)) faults |= QPI_FAULT_TAU;
  if (!(in.low > 0.0f) || !(in.high >= in.low) || !is_finite(in.high)) faults |= QPI_FAULT_TAU_LAW;
  if (input == QPI_LAW_INPUT_PRIOR_KL && (!is_positive(in.target) || !has_band)) faults |= QPI_FAULT_TAU_LAW;
  if (input == QPI_LAW_INPUT_OBSERVATIONS) {
    const uint32_t steps = isv.bits<QPI_SLOT_tau_steps>();
    if (steps == 0) faults |= QPI_FAULT_TAU_LAW;
    in.progress = schedule_progress(isv, steps);
  }
  const LawOutput out = run_tau_law(law, isv, in);
  if (!out.sensible) faults |= QPI_FAULT_TAU_LAW;
  if (faults != 0) {
    *reason = QPI_REASON_FAULT;
  } else if (too_few_observations(isv)) {
    *reason = QPI_REASON_TOO_FEW;
  } else {
    isv.set_number<QPI_SLOT_tau>(out.value);
    *reason = out.reason;
  }
  return faults;
}

// Both laws, on what drives them as it stands. Returns the fault bits they found.
QPI_FN uint32_t control(const IsvImage& isv, const LamStart& lam, uint32_t* reason, uint32_t* tau_reason) {
  uint32_t faults = 0;
  if (lam.law >= QPI_LAM_LAW_COUNT) faults |= QPI_FAULT_LAW;
  if (isv.bits<QPI_SLOT_tau_law>() >= QPI_TAU_LAW_COUNT) faults |= QPI_FAULT_TAU_LAW;
  if (faults != 0) {
    *reason = *tau_reason = QPI_REASON_FAULT;
    return faults;
  }
  faults = control_lam(isv, lam, reason);
  return faults | control_tau(isv, tau_reason);
}

// The first observation, else (1 - alpha) * average + alpha * observation; in float64, rounded once.
QPI_FN double blend(bool first, double average, double alpha, double observation) {
  return first ? observation : (1.0 - alpha) * average + alpha * observation;
}

// Moving averages from the record; false: nothing to observe, or a fault forbids it.
QPI_FN bool observe(const IsvImage& isv, const StatTotal& record, uint32_t* faults, uint32_t* reason) {
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

QPI_FN void report(const IsvImage& isv, uint32_t faults, uint32_t reason, uint32_t tau_reason) {
  if (faults != 0) isv.set_bits<QPI_SLOT_faults>(isv.bits<QPI_SLOT_faults>() | faults);
  isv.set_bits<QPI_SLOT_reason>(reason);
  isv.set_bits<QPI_SLOT_tau_reason>(tau_reason);
  if (isv.flight.records != nullptr) record_flight(isv);
}

// What the summary says of the batch; a commit without one leaves the last as it is.
QPI_COLD_FN void observe_summary(const IsvImage& isv, const qpi_summary& summary) {
  const auto mean = [&](double sum) { return static_cast<float>(sum / summary.weight); };
  isv.set_number<QPI_SLOT_loss_last>(mean(summary.loss));
  isv.set_number<QPI_SLOT_target_entropy>(mean(summary.target_entropy));
  isv.set_number<QPI_SLOT_policy_entropy>(mean(summary.policy_entropy));
  isv.set_number<QPI_SLOT_uniform_entropy>(mean(summary.uniform_entropy));
  isv.set_number<QPI_SLOT_agreement>(mean(summary.agreement));
  isv.set_number<QPI_SLOT_pi_at_qstar>(mean(summary.pi_at_qstar));
  isv.set_number<QPI_SLOT_overlap>(mean(summary.overlap));
}

// Moving averages and, if asked for, the laws. `summary` is NULL where the record has none.
QPI_FN void commit(const IsvImage& isv, const LamStart& lam, const StatTotal& record, const qpi_summary* summary,
                   CommitParts parts) {
  uint32_t faults = 0, reason = QPI_REASON_NONE;
  const bool observed = observe(isv, record, &faults, &reason);
  if (observed && summary != nullptr) observe_summary(isv, *summary);
  uint32_t tau_reason = reason;
  if (observed && parts == CommitParts::kObserveAndControl) faults |= control(isv, lam, &reason, &tau_reason);
  isv.set_count<QPI_SLOT_commits>(isv.count<QPI_SLOT_commits>() + 1);
  report(isv, faults, reason, tau_reason);
}

// From the workspace's record, which is empty afterwards.
QPI_FN void commit_record(const IsvImage& isv, qpi_record* record, CommitParts parts) {
  commit(isv, start_lam(isv), head_of(*record).total, record->summary.weight > 0.0 ? &record->summary : nullptr, parts);
  *record = qpi_record{};
}

QPI_FN void control_alone(const IsvImage& isv) {
  uint32_t reason = QPI_REASON_NONE, tau_reason = QPI_REASON_NONE;
  const uint32_t faults = control(isv, start_lam(isv), &reason, &tau_reason);
  report(isv, faults, reason, tau_reason);
}

// The end of a call on rows, given what the rows were worked on with, what the workspace's record was, the weight of
// its summary, and the sum of the call's slots. By one thread that everything waits for: a summary stays in memory.
QPI_FN void finish(const FinishArgs& args, const IsvImage& isv, const StepNumbers& numbers, const LamStart& lam,
                   RecordHead record, double summary_weight, StatTotal total) {
  if (numbers.halted) total = StatTotal{};  // the slots were not written
  total.faults |= numbers.faults;
  const bool summed = args.summary_slots != nullptr && !numbers.halted;
  if (args.measured != nullptr) {
    store_head(args.measured, {total, 0});
    args.measured->summary = summed ? *args.summary : qpi_summary{};
    return;
  }
  const bool was_empty = is_empty(record);
  add_total(record.total, total);
  record.calls += 1;
  qpi_summary* summary = summed || summary_weight > 0.0 ? &args.record->summary : nullptr;
  if (summed) add_summary(*summary, *args.summary);
  if (args.parts != CommitParts::kNone) {
    commit(isv, lam, record.total, summary != nullptr && summary->weight > 0.0 ? summary : nullptr, args.parts);
    if (summary != nullptr) *summary = qpi_summary{};
    if (was_empty) return;  // and is again
    record = RecordHead{};
  }
  store_head(args.record, record);
}

}  // namespace QPI_ISA
}  // namespace qpi
