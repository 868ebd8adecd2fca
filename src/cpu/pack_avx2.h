// Eight floats (AVX2, FMA).
#pragma once

#include <immintrin.h>

#include "../../cuda/math/lanes.h"

namespace qpi {
inline namespace QPI_ISA {

typedef float Float8 __attribute__((vector_size(32)));
typedef uint32_t Uint8 __attribute__((vector_size(32)));
typedef int32_t Int8 __attribute__((vector_size(32)));

template <>
struct LaneTraits<Float8> {
  using Bits = Uint8;
  using Mask = Int8;
  static constexpr int kLanes = 8;
};

QPI_FN Float8 lane_fma(Float8 a, Float8 b, Float8 c) {
  return (Float8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
QPI_FN Float8 lane_sqrt(Float8 a) { return (Float8)_mm256_sqrt_ps((__m256)a); }
QPI_FN Uint8 lane_bits(Float8 a) { return (Uint8)a; }
QPI_FN Float8 lane_float(Uint8 a) { return (Float8)a; }
QPI_FN bool all_lanes(Int8 mask) { return _mm256_movemask_ps((__m256)mask) == 0xff; }

// Quads (quads.h): a pack of two.
QPI_FN Float8 join_quads(const __m128 (&quads)[2]) {
  return (Float8)_mm256_insertf128_ps(_mm256_castps128_ps256(quads[0]), quads[1], 1);
}
// The even and the odd floats of each pair of quads, and their sums: a[0] + a[1], a[2] + a[3], b[0] + b[1], b[2] +
// b[3].
QPI_FN Float8 add_pairs(Float8 a, Float8 b) {
  return (Float8)_mm256_shuffle_ps((__m256)a, (__m256)b, 0x88) + (Float8)_mm256_shuffle_ps((__m256)a, (__m256)b, 0xdd);
}

}  // namespace QPI_ISA
}  // namespace qpi
