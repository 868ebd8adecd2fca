// Lanes: the few operations the formulas are written in.
//
// A formula takes a lane type: `float` on the GPU and in scalar host code, a SIMD pack of floats in the vector
// backends. Packs are GCC/Clang vector types, so + - * / < ?: and shifts work on both alike; what does not is here.
//
// Everything in cuda/math lives in a namespace named after the instruction set of its translation unit (QPI_ISA):
// the linker must never replace a baseline instantiation by one that needs AVX-512.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifndef QPI_ISA
#define QPI_ISA baseline
#endif

#ifdef __CUDACC__
#define QPI_FN __host__ __device__ __forceinline__
#else
#define QPI_FN inline __attribute__((always_inline))
#endif

namespace qpi {
inline namespace QPI_ISA {

// Per lane type: the unsigned integer lanes of the same width. A pack header specialises it.
template <class F>
struct LaneTraits;

template <>
struct LaneTraits<float> {
  using Bits = uint32_t;
  using Mask = bool;
  static constexpr int kLanes = 1;
};

template <class F>
using Bits = typename LaneTraits<F>::Bits;
template <class F>
using Mask = typename LaneTraits<F>::Mask;

QPI_FN float lane_fma(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

QPI_FN float lane_sqrt(float a) {
#ifdef __CUDA_ARCH__
  return __fsqrt_rn(a);
#else
  return std::sqrt(a);
#endif
}

QPI_FN uint32_t lane_bits(float a) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(a);
#else
  uint32_t bits;
  std::memcpy(&bits, &a, sizeof bits);
  return bits;
#endif
}

QPI_FN float lane_float(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float a;
  std::memcpy(&a, &bits, sizeof a);
  return a;
#endif
}

// 1 / a, correctly rounded, for 2^-100 < a < 2^100; elsewhere not finite or not right. What the compiler makes of a
// division, without what it does about the ends of the range.
template <class F>
QPI_FN F lane_reciprocal(F a) {
#ifdef __CUDA_ARCH__
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
  return lane_fma(r, -lane_fma(a, r, -1.0f), r);
#else
  return 1.0f / a;
#endif
}

// A NaN in `a` is ignored; callers look for NaN on their own.
template <class F>
QPI_FN F lane_max(F best, F a) {
#ifdef __CUDA_ARCH__
  return fmaxf(best, a);
#else
  return a > best ? a : best;
#endif
}

// A NaN on either side stays.
template <class F>
QPI_FN F lane_max_or_nan(F best, F a) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  F larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(best), "f"(a));
  return larger;
#else
  return (a > best) | (a != a) ? a : best;
#endif
}

template <class F>
QPI_FN F lane_abs(F a) {
#ifdef __CUDA_ARCH__
  return fabsf(a);  // part of the instruction that uses it
#else
  return a < 0.0f ? -a : a;
#endif
}

template <class F>
QPI_FN F splat(float a) {
  return F{} + a;
}

// Not NaN and not infinite.
template <class F>
QPI_FN Mask<F> is_finite(F a) {
  const F zero = a - a;  // NaN for NaN and for both infinities
  return zero == zero;
}

constexpr float kInfinity = __builtin_huge_valf();

}  // namespace QPI_ISA
}  // namespace qpi
