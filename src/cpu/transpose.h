// Eight rows of floats into [column][row] order; 8 x 8 blocks in registers where there is AVX.
#pragma once

#ifdef __AVX__
#include <immintrin.h>
#endif

#include <cstdint>

#include "../../cuda/math/lanes.h"

namespace qpi {
inline namespace QPI_ISA {

// to[c * to_stride + r] = from[r * from_stride + c] for r < 8 and c < columns.
inline void transpose_eight(const float* from, int64_t from_stride, int columns, float* to, int64_t to_stride) {
  int c = 0;
#ifdef __AVX__
  for (; c + 8 <= columns; c += 8) {
    __m256 r[8], pair[8], quad[8];
    for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + i * from_stride + c);
    for (int i = 0; i < 4; ++i) {
      pair[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
      pair[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
      quad[4 * i] = _mm256_shuffle_ps(pair[4 * i], pair[4 * i + 2], 0x44);
      quad[4 * i + 1] = _mm256_shuffle_ps(pair[4 * i], pair[4 * i + 2], 0xee);
      quad[4 * i + 2] = _mm256_shuffle_ps(pair[4 * i + 1], pair[4 * i + 3], 0x44);
      quad[4 * i + 3] = _mm256_shuffle_ps(pair[4 * i + 1], pair[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      _mm256_storeu_ps(to + (c + i) * to_stride, _mm256_permute2f128_ps(quad[i], quad[4 + i], 0x20));
      _mm256_storeu_ps(to + (c + 4 + i) * to_stride, _mm256_permute2f128_ps(quad[i], quad[4 + i], 0x31));
    }
  }
#endif
  for (; c < columns; ++c) {
    for (int i = 0; i < 8; ++i) to[c * to_stride + i] = from[i * from_stride + c];
  }
}

}  // namespace QPI_ISA
}  // namespace qpi
