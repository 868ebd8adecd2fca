// The control laws of lam, one function each; qpi_distill/laws.h lists them with formula and source.
#pragma once

#include "law.h"

namespace qpi {
inline namespace QPI_ISA {
namespace lam_law {

// lam is clamped into its bounds before it is stepped, so that neither branch can move it the wrong way. kl = 0 is a
// low value like any other.
QPI_FN LawOutput bounded_step(const IsvImage& isv, const LawInput& in) {
  const float up = isv.number<QPI_SLOT_lam_up>(), down = isv.number<QPI_SLOT_lam_down>();
  const bool sensible = up >= 1.0f && is_finite(up) && down > 0.0f && down <= 1.0f;
  if (in.kl > in.band_high) {
    const float raised = in.value * up;
    if (raised < in.high) return law_output(raised, QPI_REASON_ABOVE, sensible);
    return law_output(in.high, in.value < in.high ? QPI_REASON_ABOVE : QPI_REASON_AT_MAX, sensible);
  }
  if (in.kl < in.band_low) {
    const float lowered = in.value * down;
    if (lowered > in.low) return law_output(lowered, QPI_REASON_BELOW, sensible);
    return law_output(in.low, in.value > in.low ? QPI_REASON_BELOW : QPI_REASON_AT_MIN, sensible);
  }
  return law_output(in.value, QPI_REASON_IN_BAND, sensible);
}

QPI_FN LawOutput fixed(const IsvImage&, const LawInput& in) { return law_output(in.value, QPI_REASON_FIXED, true); }

QPI_FN LawOutput ziegler(const IsvImage& isv, const LawInput& in) {
  const float gain = isv.number<QPI_SLOT_ziegler_gain>(), limit = isv.number<QPI_SLOT_ziegler_clip>();
  const double factor = 1.0 + static_cast<double>(gain) * clip(relative_error(in), limit);
  return law_output(bounded(in, in.value * factor), band_reason(in), is_gain(gain) && is_positive(limit));
}

QPI_FN LawOutput log_dual(const IsvImage& isv, const LawInput& in) {
  const float rate = isv.number<QPI_SLOT_dual_rate>(), limit = isv.number<QPI_SLOT_dual_clip>();
  const double step = static_cast<double>(rate) * clip(relative_error(in), limit);
  return law_output(bounded(in, in.value * wide_exp(step)), band_reason(in), is_gain(rate) && is_positive(limit));
}

// PI on log lam. The integral follows the error only as far as bounds and slew limit let lam go, and starts from log
// lam where somebody else has moved lam: neither leaves anything to unwind.
QPI_FN LawOutput log_pi(const IsvImage& isv, const LawInput& in) {
  const float gain = isv.number<QPI_SLOT_pi_gain>(), rate = isv.number<QPI_SLOT_pi_rate>();
  const float limit = isv.number<QPI_SLOT_pi_clip>(), slew = isv.number<QPI_SLOT_pi_slew>();
  const double now = wide_log(in.value);
  const double error = in.kl > 0.0f ? clip(wide_log(in.kl) - wide_log(in.target), limit) : -static_cast<double>(limit);
  double low = wide_log(in.low), high = wide_log(in.high);
  if (now - slew > low) low = now - slew;
  if (now + slew < high) high = now + slew;

  const double proportional = static_cast<double>(gain) * error;
  const double before = in.fresh || !is_finite(in.memory) ? now : in.memory;  // absurd gains may have made it infinite
  double integral = before + static_cast<double>(rate) * error;
  if (error > 0.0) {
    if (integral > high - proportional) integral = before > high - proportional ? before : high - proportional;
  } else {
    if (integral < low - proportional) integral = before < low - proportional ? before : low - proportional;
  }
  double aim = integral + proportional;
  if (aim < low) aim = low;
  if (aim > high) aim = high;

  LawOutput out = law_output(bounded(in, wide_exp(aim)), band_reason(in),
                             is_gain(gain) && is_gain(rate) && is_positive(limit) && is_positive(slew));
  out.remembers = true;
  out.memory = static_cast<float>(integral);
  return out;
}

QPI_FN LawOutput linear(const IsvImage& isv, const LawInput& in) {
  return scheduled(in, isv.number<QPI_SLOT_lam_from>(), isv.number<QPI_SLOT_lam_to>(), in.progress);
}

QPI_FN LawOutput cosine(const IsvImage& isv, const LawInput& in) {
  return scheduled(in, isv.number<QPI_SLOT_lam_from>(), isv.number<QPI_SLOT_lam_to>(), cosine_share(in.progress));
}

}  // namespace lam_law

QPI_FN qpi_law_input lam_law_input(uint32_t law) {
  switch (law) {
#define QPI_CASE(name, input, formula, source) \
  case QPI_LAM_LAW_##name:                     \
    return QPI_LAW_INPUT_##input;
    QPI_LAM_LAWS(QPI_CASE)
#undef QPI_CASE
    default:
      return QPI_LAW_INPUT_NOTHING;
  }
}

QPI_COLD_FN LawOutput run_other_lam_law(uint32_t law, const IsvImage& isv, const LawInput& in) {
  switch (law) {
#define QPI_CASE(name, input, formula, source) \
  case QPI_LAM_LAW_##name:                     \
    return lam_law::name(isv, in);
    QPI_LAM_LAWS(QPI_CASE)
#undef QPI_CASE
    default:
      return law_output(in.value, QPI_REASON_FAULT, false);
  }
}

QPI_FN LawOutput run_lam_law(uint32_t law, const IsvImage& isv, const LawInput& in) {
  return law == QPI_LAM_LAW_bounded_step ? lam_law::bounded_step(isv, in) : run_other_lam_law(law, isv, in);
}

}  // namespace QPI_ISA
}  // namespace qpi
