// The control laws of tau, one function each; qpi_distill/laws.h lists them with formula and source.
#pragma once

#include "law.h"

namespace qpi {
inline namespace QPI_ISA {
namespace tau_law {

QPI_FN LawOutput fixed(const IsvImage&, const LawInput& in) { return law_output(in.value, QPI_REASON_FIXED, true); }

QPI_FN LawOutput linear(const IsvImage& isv, const LawInput& in) {
  return scheduled(in, isv.number<QPI_SLOT_tau_from>(), isv.number<QPI_SLOT_tau_to>(), in.progress);
}

QPI_FN LawOutput cosine(const IsvImage& isv, const LawInput& in) {
  return scheduled(in, isv.number<QPI_SLOT_tau_from>(), isv.number<QPI_SLOT_tau_to>(), cosine_share(in.progress));
}

// As a share of the uniform policy's entropy: rows with one legal action add nothing to either mean, and the rate does
// not depend on the number of actions. The entropy rises with tau, so too little of it raises tau.
QPI_FN LawOutput target_entropy(const IsvImage& isv, const LawInput& in) {
  const float entropy = isv.number<QPI_SLOT_target_entropy>(), most = isv.number<QPI_SLOT_uniform_entropy>();
  const float goal = isv.number<QPI_SLOT_entropy_goal>(), rate = isv.number<QPI_SLOT_entropy_rate>();
  const float tolerance = isv.number<QPI_SLOT_entropy_tolerance>();
  const bool sensible =
      goal >= 0.0f && goal <= 1.0f && is_gain(rate) && tolerance >= 0.0f && is_finite(entropy) && is_finite(most);
  if (entropy < 0.0f || most <= 0.0f) return law_output(in.value, QPI_REASON_UNMEASURED, sensible);
  const double error = static_cast<double>(goal) - static_cast<double>(entropy) / static_cast<double>(most);
  qpi_reason reason = QPI_REASON_IN_BAND;
  if (error > tolerance) reason = in.value >= in.high ? QPI_REASON_AT_MAX : QPI_REASON_BELOW;
  if (-error > tolerance) reason = in.value <= in.low ? QPI_REASON_AT_MIN : QPI_REASON_ABOVE;
  return law_output(bounded(in, in.value * wide_exp(static_cast<double>(rate) * error)), reason, sensible);
}

// The dual's slope is mpo_epsilon - KL(target || prior): a KL above epsilon raises tau. On log tau, with the error
// relative to epsilon, so that the rate depends on the scale of neither.
QPI_FN LawOutput mpo_dual(const IsvImage& isv, const LawInput& in) {
  const float rate = isv.number<QPI_SLOT_mpo_rate>(), limit = isv.number<QPI_SLOT_mpo_clip>();
  const bool sensible = is_gain(rate) && is_positive(limit) && is_finite(in.kl);
  if (in.kl < 0.0f) return law_output(in.value, QPI_REASON_UNMEASURED, sensible);
  const double step = static_cast<double>(rate) * clip(relative_error(in), limit);
  return law_output(bounded(in, in.value * wide_exp(step)), band_reason(in), sensible);
}

}  // namespace tau_law

QPI_FN qpi_law_input tau_law_input(uint32_t law) {
  switch (law) {
#define QPI_CASE(name, input, formula, source) \
  case QPI_TAU_LAW_##name:                     \
    return QPI_LAW_INPUT_##input;
    QPI_TAU_LAWS(QPI_CASE)
#undef QPI_CASE
    default:
      return QPI_LAW_INPUT_NOTHING;
  }
}

QPI_COLD_FN LawOutput run_tau_law(uint32_t law, const IsvImage& isv, const LawInput& in) {
  switch (law) {
#define QPI_CASE(name, input, formula, source) \
  case QPI_TAU_LAW_##name:                     \
    return tau_law::name(isv, in);
    QPI_TAU_LAWS(QPI_CASE)
#undef QPI_CASE
    default:
      return law_output(in.value, QPI_REASON_FAULT, false);
  }
}

}  // namespace QPI_ISA
}  // namespace qpi
