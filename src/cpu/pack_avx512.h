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

}  // namespace QPI_ISA
}  // namespace qpi
