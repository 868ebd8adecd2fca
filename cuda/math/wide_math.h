// exp, log and sin in float64, for the one thread that runs a control law. Plain additions, products and divisions, so
// that CPU and GPU give the same bits. Error against the exact value: a few units in the last place (tests/math).
#pragma once

#include "lanes.h"

// A function that stays out of its caller: few commits need it, and the common path must not pay in registers.
#ifdef __CUDACC__
#define QPI_COLD_FN __host__ __device__ __noinline__ inline
#else
#define QPI_COLD_FN inline __attribute__((noinline))
#endif

namespace qpi {
inline namespace QPI_ISA {

QPI_FN uint64_t wide_bits(double a) {
#ifdef __CUDA_ARCH__
  return static_cast<uint64_t>(__double_as_longlong(a));
#else
  uint64_t bits;
  std::memcpy(&bits, &a, sizeof bits);
  return bits;
#endif
}

QPI_FN double wide_float(uint64_t bits) {
#ifdef __CUDA_ARCH__
  return __longlong_as_double(static_cast<long long>(bits));
#else
  double a;
  std::memcpy(&a, &bits, sizeof a);
  return a;
#endif
}

// exp(x); beyond +-700 its value there, so that nothing is infinite or subnormal.
QPI_FN double wide_exp(double x) {
  constexpr double kLog2e = 0x1.71547652b82fep+0;
  constexpr double kLn2High = 0x1.62e42fee00000p-1;  // 33 bits: its product with an exponent is exact
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  constexpr double kRound = 0x1.8p+52;  // adding it leaves the nearest integer in the low bits of the significand
  x = x < -700.0 ? -700.0 : x > 700.0 ? 700.0 : x;
  const double shifted = x * kLog2e + kRound;
  const double n = shifted - kRound;
  const double r = (x - n * kLn2High) - n * kLn2Low;  // |r| <= ln(2) / 2

  double p = 1.0 / 6227020800.0;  // Taylor's series
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 1.0 / 2.0;
  p = (p * r + 1.0) * r + 1.0;
  return wide_float(wide_bits(p) + (wide_bits(shifted) << 52));
}

// log(x) of a normal, positive, finite x.
QPI_FN double wide_log(double x) {
  constexpr uint64_t kSqrtHalfBits = 0x3fe6a09e667f3bcdu;
  constexpr double kLn2High = 0x1.62e42fee00000p-1;
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  const uint64_t shifted = wide_bits(x) - kSqrtHalfBits;
  const auto exponent = static_cast<double>(static_cast<int64_t>(shifted) >> 52);
  const double m = wide_float((shifted & 0x000fffffffffffffu) + kSqrtHalfBits);  // in [sqrt(1/2), sqrt(2))
  const double s = (m - 1.0) / (m + 1.0);                                        // log m = 2 artanh s
  const double square = s * s;
  double p = 1.0 / 23.0;
  p = p * square + 1.0 / 21.0;
  p = p * square + 1.0 / 19.0;
  p = p * square + 1.0 / 17.0;
  p = p * square + 1.0 / 15.0;
  p = p * square + 1.0 / 13.0;
  p = p * square + 1.0 / 11.0;
  p = p * square + 1.0 / 9.0;
  p = p * square + 1.0 / 7.0;
  p = p * square + 1.0 / 5.0;
  p = p * square + 1.0 / 3.0;
  p = p * square;
  return exponent * kLn2High + (2.0 * (s + s * p) + exponent * kLn2Low);
}

// sin(x) for |x| <= pi / 2.
QPI_FN double wide_sin(double x) {
  const double square = x * x;
  double p = -1.0 / 25852016738884976640000.0;
  p = p * square + 1.0 / 51090942171709440000.0;
  p = p * square - 1.0 / 121645100408832000.0;
  p = p * square + 1.0 / 355687428096000.0;
  p = p * square - 1.0 / 1307674368000.0;
  p = p * square + 1.0 / 6227020800.0;
  p = p * square - 1.0 / 39916800.0;
  p = p * square + 1.0 / 362880.0;
  p = p * square - 1.0 / 5040.0;
  p = p * square + 1.0 / 120.0;
  p = p * square - 1.0 / 6.0;
  return x + x * (p * square);
}

}  // namespace QPI_ISA
}  // namespace qpi
