// float16 and bfloat16 to float and back (round to nearest, ties to even), in plain integer arithmetic.
#pragma once

#include <cstdint>

#include "../../cuda/math/lanes.h"

namespace qpi {
inline namespace QPI_ISA {

struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

inline float to_float(float x) { return x; }

inline float to_float(Bfloat x) { return lane_float(static_cast<uint32_t>(x.bits) << 16); }

inline float to_float(Half x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return lane_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // Subnormals too: as an integer times 2^-24, exactly.
  if (magnitude < 0x0400u) return lane_float(sign | lane_bits(static_cast<float>(magnitude) * 0x1p-24f));
  return lane_float(sign | ((magnitude << 13) + 0x38000000u));
}

inline Bfloat to_bfloat(float x) {
  const uint32_t bits = lane_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>(bits >> 16 | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

inline Half to_half(float x) {
  const uint32_t bits = lane_bits(x);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x47800000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // 2^16 and above
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 leaves the multiple of 2^-24 in the low bits, rounded by the hardware.
    const uint32_t rounded = lane_bits(lane_float(magnitude) + 0.5f) - lane_bits(0.5f);
    return {static_cast<uint16_t>(sign | rounded)};
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u);
  return {static_cast<uint16_t>(sign | rounded >> 13)};
}

}  // namespace QPI_ISA
}  // namespace qpi
