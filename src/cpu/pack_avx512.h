// Sixteen floats (AVX-512).
#pragma once

#include <immintrin.h>

#include "../../cuda/math/lanes.h"

namespace qpi {
inline namespace QPI_ISA {

typedef float Float16 __attribute__((vector_size(64)));
typedef uint32_t Uint16 __attribute__((vector_size(64)));
typedef int32_t Int16 __attribute__((vector_size(64)));

template <>
struct LaneTraits<Float16> {
  using Bits = Uint16;
  using Mask = Int16;
  static constexpr int kLanes = 16;
};

QPI_FN Float16 lane_fma(Float16 a, Float16 b, Float16 c) {
  return (Float16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
QPI_FN Float16 lane_sqrt(Float16 a) { return (Float16)_mm512_maskz_sqrt_ps(0xffff, (__m512)a); }
QPI_FN Uint16 lane_bits(Float16 a) { return (Uint16)a; }
QPI_FN Float16 lane_float(Uint16 a) { return (Float16)a; }
QPI_FN bool all_lanes(Int16 mask) { return _mm512_movepi32_mask((__m512i)mask) == 0xffff; }

// Quads (quads.h): a pack of four.
QPI_FN Float16 join_quads(const __m128 (&quads)[4]) {
  const __m512 first = _mm512_zextps128_ps512(quads[0]);
  const __m512 two = _mm512_insertf32x4(first, quads[1], 1);
  return (Float16)_mm512_insertf32x4(_mm512_insertf32x4(two, quads[2], 2), quads[3], 3);
}
// The even and the odd floats of each pair of quads, and their sums: a[0] + a[1], a[2] + a[3], b[0] + b[1], b[2] +
// b[3].
QPI_FN Float16 add_pairs(Float16 a, Float16 b) {
  return (Float16)_mm512_shuffle_ps((__m512)a, (__m512)b, 0x88) +
         (Float16)_mm512_shuffle_ps((__m512)a, (__m512)b, 0xdd);
}

}  // namespace QPI_ISA
}  // namespace qpi
