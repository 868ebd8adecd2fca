// What every control law is given and gives back.
#pragma once

#include "isv_image.h"
#include "wide_math.h"

namespace qpi {
inline namespace QPI_ISA {

// Of lam: the moving average of the KL, its goal and dead zone. Of tau: the batch's entropies, or KL(target || prior).
struct LawInput {
  float value;                // clamped into [low, high]
  float low, high;            // lam_min, lam_max or tau_min, tau_max
  float kl, target;           // laws driven by a KL
  float band_low, band_high;  // the dead zone
  double progress;            // schedules: observations since the warm-up, in units of the schedule's length, at most 1
  float memory;               // what the law asked to be remembered; valid unless `fresh`
  bool fresh;                 // somebody else has moved the value since: start anew from it
};

struct LawOutput {
  float value;
  qpi_reason reason;
  bool sensible;   // of the law's own numbers; else nothing is changed
  bool remembers;  // `memory` is to be kept
  float memory;
};

QPI_FN LawOutput law_output(float value, qpi_reason reason, bool sensible) {
  return {value, reason, sensible, false, 0.0f};
}

// The dead zone is target / tolerance to target * tolerance; a tolerance is at least 1 and finite.
QPI_FN bool set_band(LawInput& in, float tolerance) {
  in.band_low = in.target / tolerance;
  in.band_high = in.target * tolerance;
  return tolerance >= 1.0f && is_finite(tolerance);
}

// A law's result, rounded once, inside its bounds.
QPI_FN float bounded(const LawInput& in, double value) {
  if (value >= in.high) return in.high;
  return value > in.low ? static_cast<float>(value) : in.low;
}

QPI_FN double clip(double x, double bound) { return x < -bound ? -bound : x > bound ? bound : x; }

QPI_FN double relative_error(const LawInput& in) {
  return static_cast<double>(in.kl) / static_cast<double>(in.target) - 1.0;
}

QPI_FN bool is_gain(float x) { return x >= 0.0f && is_finite(x); }
QPI_FN bool is_positive(float x) { return x > 0.0f && is_finite(x); }

// Where a law that moves inside the dead zone too stands, seen from the value it starts from.
QPI_FN qpi_reason band_reason(const LawInput& in) {
  if (in.kl > in.band_high) return in.value >= in.high ? QPI_REASON_AT_MAX : QPI_REASON_ABOVE;
  if (in.kl < in.band_low) return in.value <= in.low ? QPI_REASON_AT_MIN : QPI_REASON_BELOW;
  return QPI_REASON_IN_BAND;
}

// A value that goes from `from` to `to`; `share` of the way is behind it.
QPI_FN LawOutput scheduled(const LawInput& in, float from, float to, double share) {
  const double start = from, end = to;
  return law_output(bounded(in, start + (end - start) * share),
                    in.progress < 1.0 ? QPI_REASON_SCHEDULED : QPI_REASON_ENDED, is_gain(from) && is_gain(to));
}

QPI_FN double cosine_share(double progress) {
  constexpr double kPi = 0x1.921fb54442d18p+1;
  return 0.5 + 0.5 * wide_sin(kPi * (progress - 0.5));  // (1 - cos(pi t)) / 2
}

}  // namespace QPI_ISA
}  // namespace qpi
