// Quads: four neighbouring atoms of one row in 128 bits.
//
// Short sums have kPartials = 4 strided partials, and adding quads up makes just these: float i of a quad is partial i.
// So atoms are weighed in the order in which memory holds them, and only the sums are transposed, a pack for every
// action where the logits would be a pack for every atom.
#pragma once

#ifdef __AVX2__
#include <immintrin.h>

#include "../../cuda/math/row_math.h"
#include "convert.h"

namespace qpi {
inline namespace QPI_ISA {

static_assert(kPartials == 4, "a partial for each float of a quad");

QPI_FN __m128 load_quad(const float* from) { return _mm_loadu_ps(from); }

// The first `count` < 4 atoms; the rest is 0. Nothing behind them is read.
QPI_FN __m128 load_quad(const float* from, int count) {
  const __m128i there = _mm_cmpgt_epi32(_mm_set1_epi32(count), _mm_setr_epi32(0, 1, 2, 3));
  return _mm_maskload_ps(from, there);
}

QPI_FN __m128 quad_of(Bfloat, __m128i bits) { return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(bits), 16)); }
QPI_FN __m128 quad_of(Half, __m128i bits) { return _mm_cvtph_ps(bits); }

template <class X>
QPI_FN __m128 load_quad(const X* from) {
  return quad_of(X{}, _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}
template <class X>
QPI_FN __m128 load_quad(const X* from, int count) {
  uint64_t bits = from[0].bits;
  if (count > 1) bits |= static_cast<uint64_t>(from[1].bits) << 16;
  if (count > 2) bits |= static_cast<uint64_t>(from[2].bits) << 32;
  return quad_of(X{}, _mm_cvtsi64_si128(static_cast<int64_t>(bits)));
}

// A quad of each row. `count`: of this many atoms.
template <class F, class X, int kQuads, class... Count>
QPI_FN F load_quads(const X* const (&rows)[kQuads], int z, Count... count) {
  __m128 quads[kQuads];
  for (int i = 0; i < kQuads; ++i) quads[i] = load_quad(rows[i] + z, count...);
  return join_quads(quads);
}

// Partials (0 + 1) + (2 + 3) of every row. Float i of pack k is of quad i / 4; lane 4 * i + k of the result is its sum.
template <class F>
QPI_FN F add_quads(const F (&packs)[4]) {
  return add_pairs(add_pairs(packs[0], packs[1]), add_pairs(packs[2], packs[3]));
}

}  // namespace QPI_ISA
}  // namespace qpi
#endif
