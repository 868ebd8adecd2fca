// Transposition of a small matrix of floats, in 8 x 8 blocks where there is AVX.
#pragma once

#ifdef __AVX__
#include <immintrin.h>
#endif

#include <cstdint>

#include "../../cuda/math/lanes.h"

namespace qpi {
inline namespace QPI_ISA {

#ifdef __AVX__
inline void transpose_eight(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  __m256 r[8], pair[8], quad[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + i * from_stride);
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
    _mm256_storeu_ps(to + i * to_stride, _mm256_permute2f128_ps(quad[i], quad[4 + i], 0x20));
    _mm256_storeu_ps(to + (4 + i) * to_stride, _mm256_permute2f128_ps(quad[i], quad[4 + i], 0x31));
  }
}
#endif

// to[c * to_stride + r] = from[r * from_stride + c] for r < rows and c < columns.
inline void transpose(const float* from, int64_t from_stride, int rows, int columns, float* to, int64_t to_stride) {
#ifdef __AVX__
  if (rows >= 8 && columns >= 8) {
    // The last block of either direction overlaps the one before it.
    for (int done = 0; done < rows; done += 8) {
      const int r = done + 8 <= rows ? done : rows - 8;
      for (int ready = 0; ready < columns; ready += 8) {
        const int c = ready + 8 <= columns ? ready : columns - 8;
        transpose_eight(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride);
      }
    }
    return;
  }
#endif
  for (int c = 0; c < columns; ++c) {
    for (int r = 0; r < rows; ++r) to[c * to_stride + r] = from[r * from_stride + c];
  }
}

}  // namespace QPI_ISA
}  // namespace qpi
