// exp and log as polynomials of our own, so that every instruction set and every GPU gives the same bits.
//
// Error against float64 (checked by tests/math): exp below 1.0 ulp, log below 1.0 ulp plus 1e-7 absolute.
// The coefficients are minimax fits for the relative error of the whole function on the reduced range.
#pragma once

#include "lanes.h"

namespace qpi {
inline namespace QPI_ISA {

// exp(x) for x <= 0. Below -87 (and for -inf) it is 0: next to a sum that is at least 1, nothing is lost.
template <class F>
QPI_FN F exp_nonpositive(F x) {
  constexpr float kLog2e = 0x1.715476p+0f;
  constexpr float kLn2High = 0x1.63p-1f;  // few bits, so that n * kLn2High is exact
  constexpr float kLn2Low = -0x1.bd0106p-13f;
  constexpr float kRound = 0x1.8p+23f;  // adding it leaves the nearest integer in the low bits of the significand

  const F shifted = lane_fma(x, splat<F>(kLog2e), splat<F>(kRound));
  const F n = shifted - kRound;
  F r = lane_fma(n, splat<F>(-kLn2High), x);
  r = lane_fma(n, splat<F>(-kLn2Low), r);

  F p = splat<F>(0x1.6a234ep-10f);
  p = lane_fma(p, r, splat<F>(0x1.123a6cp-7f));
  p = lane_fma(p, r, splat<F>(0x1.5558f4p-5f));
  p = lane_fma(p, r, splat<F>(0x1.555490p-3f));
  p = lane_fma(p, r, splat<F>(0x1.fffffcp-2f));
  p = lane_fma(p, r, splat<F>(1.0f));
  p = lane_fma(p, r, splat<F>(1.0f));

  const F scaled = lane_float(lane_bits(p) + (lane_bits(shifted) << 23));
  return x < -87.0f ? splat<F>(0.0f) : scaled;
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
