// exp and log as polynomials of our own, so that every instruction set and every GPU gives the same bits.
//
// Error against float64 (tests/math): exp(x) within 1e-7 + 1.4e-8 |x| of its value, log within 1e-7.
// The coefficients are minimax fits for the relative error on the reduced range.
#pragma once

#include "lanes.h"

namespace qpi {
inline namespace QPI_ISA {

constexpr float kLog2e = 0x1.715476p+0f;

// exp(x) for -87 <= x <= 87. Anything else may give anything.
template <class F>
QPI_FN F exp_in_range(F x) {
  constexpr float kRound = 0x1.8p+23f;  // adding it leaves the nearest integer in the low bits of the significand
  const F shifted = lane_fma(x, splat<F>(kLog2e), splat<F>(kRound));
  const F n = shifted - kRound;
  const F f = lane_fma(x, splat<F>(kLog2e), -n);  // exp(x) = 2^n * 2^f, |f| <= 1/2

  F p = splat<F>(0x1.41fba0p-13f);
  p = lane_fma(p, f, splat<F>(0x1.5f3e80p-10f));
  p = lane_fma(p, f, splat<F>(0x1.3b2d4ep-7f));
  p = lane_fma(p, f, splat<F>(0x1.c6aee8p-5f));
  p = lane_fma(p, f, splat<F>(0x1.ebfbdcp-3f));
  p = lane_fma(p, f, splat<F>(0x1.62e430p-1f));
  p = lane_fma(p, f, splat<F>(1.0f));
  return lane_float(lane_bits(p) + (lane_bits(shifted) << 23));
}

// exp(x) for x <= 0, and exp(-87) = 1.6e-38 for everything below that: next to a sum that is at least 1 nothing is
// lost. A NaN may give anything.
template <class F>
QPI_FN F exp_clamped(F x) {
  return exp_in_range(lane_max(splat<F>(-87.0f), x));
}

// exp(x) for x <= 0, exactly 0 below -87.
template <class F>
QPI_FN F exp_nonpositive(F x) {
  return x < -87.0f ? splat<F>(0.0f) : exp_in_range(x);
}

// log(x) for finite x >= 1.
template <class F>
QPI_FN F log_at_least_one(F x) {
  constexpr uint32_t kSqrtHalfBits = 0x3f3504f3u;
  const Bits<F> shifted = lane_bits(x) - kSqrtHalfBits;
  const Bits<F> exponent = shifted >> 23;
  const F m = lane_float((shifted & 0x007fffffu) + kSqrtHalfBits);  // in [sqrt(1/2), sqrt(2))
  // The exponent as a float: it is small, so it sits exactly in the low bits of 2^23.
  const F e = lane_float(exponent | 0x4b000000u) - 0x1p+23f;
  const F f = m - 1.0f;

  F p = splat<F>(-0x1.38c0f2p-4f);
  p = lane_fma(p, f, splat<F>(0x1.056474p-3f));
  p = lane_fma(p, f, splat<F>(-0x1.0d876cp-3f));
  p = lane_fma(p, f, splat<F>(0x1.22d910p-3f));
  p = lane_fma(p, f, splat<F>(-0x1.5471f4p-3f));
  p = lane_fma(p, f, splat<F>(0x1.99a010p-3f));
  p = lane_fma(p, f, splat<F>(-0x1.000228p-2f));
  p = lane_fma(p, f, splat<F>(0x1.555554p-2f));

  const F square = f * f;
  F low = lane_fma(p, square * f, e * -0x1.bd0106p-13f);
  low = lane_fma(square, splat<F>(-0.5f), low);
  return lane_fma(e, splat<F>(0x1.63p-1f), f + low);
}

}  // namespace QPI_ISA
}  // namespace qpi
