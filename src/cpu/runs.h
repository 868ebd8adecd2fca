// Runs of a tensor's elements to floats, and gradients back.
#pragma once

#ifdef __F16C__
#include <immintrin.h>
#endif

#include <type_traits>

#include "convert.h"

namespace qpi {
inline namespace QPI_ISA {

template <class G>
G from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline Half from_float<Half>(float x) {
  return to_half(x);
}
template <>
inline Bfloat from_float<Bfloat>(float x) {
  return to_bfloat(x);
}

// to[i] = from[i * step] for i < count.
template <class X>
inline void load_run(const X* __restrict from, int64_t step, int64_t count, float* __restrict to) {
  if (step != 1) {
    for (int64_t i = 0; i < count; ++i) to[i] = to_float(from[i * step]);
    return;
  }
  int64_t i = 0;
#ifdef __F16C__
  if constexpr (std::is_same_v<X, Half>) {
    for (; i + 8 <= count; i += 8)
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
#endif
  for (; i < count; ++i) to[i] = to_float(from[i]);
}

#ifdef __F16C__
// As to_half: a NaN keeps its sign alone.
inline __m128i to_halves(__m256 x) {
  const __m256 nan = _mm256_or_ps(_mm256_and_ps(x, _mm256_set1_ps(-0.0f)), _mm256_set1_ps(__builtin_nanf("")));
  const __m256 one_nan = _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_cvtps_ph(one_nan, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#endif

// to[i * step] is set to addends[i], or grows by it, for i < count. An addend of -0 leaves any number as it is.
template <class G>
inline void store_run(const float* __restrict addends, int64_t count, bool write, G* __restrict to, int64_t step) {
  const auto store = [&](int64_t begin, int64_t stride) __attribute__((always_inline)) {
    if (write) {
      for (int64_t i = begin; i < count; ++i) to[i * stride] = from_float<G>(0.0f + addends[i]);
    } else {
      for (int64_t i = begin; i < count; ++i) to[i * stride] = from_float<G>(to_float(to[i * stride]) + addends[i]);
    }
  };
  if (step != 1) return store(0, step);
  int64_t i = 0;
#ifdef __F16C__
  if constexpr (std::is_same_v<G, Half>) {
    for (; i + 8 <= count; i += 8) {
      __m128i* place = reinterpret_cast<__m128i*>(to + i);
      const __m256 before = write ? _mm256_setzero_ps() : _mm256_cvtph_ps(_mm_loadu_si128(place));
      _mm_storeu_si128(place, to_halves(_mm256_add_ps(before, _mm256_loadu_ps(addends + i))));
    }
  }
#endif
  store(i, 1);
}

}  // namespace QPI_ISA
}  // namespace qpi
