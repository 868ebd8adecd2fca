// The atoms of one action in a block of rows -> its expected values, a pack with a lane for each row.
//
// Rows whose atoms are neighbours in memory and few are weighed in quads, where they lie. What that cannot do -
// strides, many atoms, logits that are not near zero or not finite - goes through a copy in [atom][lane] order.
#pragma once

#include "convert.h"
#include "cpu.h"
#include "quads.h"
#include "transpose.h"

namespace qpi {
inline namespace QPI_ISA {

#define QPI_INLINE __attribute__((always_inline))

// Items 0 .. count - 1 in order, each with its partial as a constant, so that accumulators stay in registers.
template <class Body>
QPI_FN void for_each_partial(int count, Body body) {
  static_assert(kPartials == 4, "written out below");
  int i = 0;
  for (; i + kPartials <= count; i += kPartials) {
    body(0, i);
    body(1, i + 1);
    body(2, i + 2);
    body(3, i + 3);
  }
  if (i < count) body(0, i);
  if (i + 1 < count) body(1, i + 1);
  if (i + 2 < count) body(2, i + 2);
}

// Many atoms: two neighbours to a partial, kLongPartials of them.
template <class Body>
QPI_FN void for_each_long_partial(int count, Body body) {
  for (int i = 0; i < count; ++i) body(i / 2 % kLongPartials, i);
}

// Pairwise.
template <class Accumulator, int Partials>
QPI_FN void merge_partials(Accumulator (&partials)[Partials]) {
  for (int stride = 1; stride < Partials; stride *= 2) {
    for (int i = 0; i < Partials; i += 2 * stride) partials[i].merge(partials[i + stride]);
  }
}

// One lane of a pack. Packs may alias their lanes.
template <class F>
QPI_FN float& lane(F& pack, int i) {
  return reinterpret_cast<float*>(&pack)[i];
}

template <class F>
class BlockAtoms {
 public:
  static constexpr int kLanes = LaneTraits<F>::kLanes;

  // Packs of scratch.
  static size_t scratch(int atoms) { return 2 * static_cast<size_t>(atoms) + kQuad; }

  BlockAtoms(const RowsArgs& args, F* scratch)
      : args_(args),
        middle_(args.support == nullptr
                    ? 0.0f
                    : support_middle(args.support[0], args.support[(args.atoms - 1) * args.support_stride[1]])),
        atoms_(scratch),
        support_quads_(scratch + args.atoms) {
    for (int z = 0; z < args.atoms; ++z) atoms_[z] = F{};
    if (args.support != nullptr && args.support_stride[0] == 0) spread_support(0);
    for (int i = 0; i < kLanes; ++i) lane(rest_there_, i) = i % kQuad < args.atoms % kQuad ? 1.0f : 0.0f;
  }

  // values[a] of the rows from `first` on. A lane in which legal[a] is not is not read and has some finite value.
  template <class Q>
  void expected_values(int64_t first, const F* legal, F* values) {
    const Q* from = static_cast<const Q*>(args_.q_logits) + first * args_.q_stride[0];
#ifdef __AVX2__
    if (kLanes > 1 && args_.atoms <= kShortAtoms && args_.q_stride[2] == 1 && args_.support != nullptr) {
      const bool shared = args_.support_stride[0] == 0;
      const int together = shared ? kTogether : 1;
      for (int a = 0; a < args_.actions; a += together) {
        if (!shared) spread_support(a);
        near_values(from, a, a + together < args_.actions ? a + together : args_.actions, legal, values);
      }
      return;
    }
#endif
    for (int a = 0; a < args_.actions; ++a) values[a] = any_value(from, a, legal[a]);
  }

 private:
  static constexpr int kQuad = 4;
  static constexpr int kTogether = 16;  // actions

  // The support in quads, each repeated over the pack; 0 behind the last atom.
  void spread_support(int a) {
    if (kLanes == 1) return;
    const float* support = args_.support + a * args_.support_stride[0];
    for (int z = 0; z < args_.atoms; z += kQuad) {
      for (int i = 0; i < kLanes; ++i) {
        const int atom = z + i % kQuad;
        lane(support_quads_[z / kQuad], i) =
            atom < args_.atoms ? support[atom * args_.support_stride[1]] - middle_ : 0.0f;
      }
    }
  }

#ifdef __AVX2__
  // Actions begin .. end - 1. Pack k of quads is done with before the next begins, so that memory is read as a few
  // ascending streams: the hardware foresees these, and no number of prefetches was as fast.
  template <class Q>
  void near_values(const Q* from, int begin, int end, const F* legal, F* values) {
    F mass[kTogether][kQuad], sum[kTogether][kQuad];
    Bits<F> largest[kTogether] = {};
    for (int k = 0; k < kQuad; ++k) {
      for (int a = begin; a < end; ++a) {
        const Q* rows[kLanes / kQuad];
        point_at(from + a * args_.q_stride[1], k, legal[a], rows);
        const AtomSums<F> sums = quad_sums(rows, largest[a - begin]);
        mass[a - begin][k] = sums.mass;
        sum[a - begin][k] = sums.value;
      }
    }
    for (int a = begin; a < end; ++a) {
      AtomSums<F> sums;
      sums.mass = add_quads(mass[a - begin]);
      sums.value = add_quads(sum[a - begin]);
      values[a] = sums.mean();
      if (!all_lanes((lane_float(largest[a - begin]) <= kNear) & is_finite(values[a])))
        values[a] = any_value(from, a, legal[a]);
    }
  }

  // The rows of pack k: k, k + 4, k + 8 ..., which add_quads leaves in order. Zeros where the action is not legal.
  template <class Q>
  QPI_FN void point_at(const Q* from, int k, F legal, const Q* (&rows)[kLanes / kQuad]) const {
    const bool all = all_lanes(is_legal(legal));
    for (int i = 0; i < kLanes / kQuad; ++i) {
      const int row = k + kQuad * i;
      rows[i] = all || is_legal(lane(legal, row)) ? from + row * args_.q_stride[0] : reinterpret_cast<const Q*>(kZeros);
    }
  }

  template <class Q>
  QPI_FN AtomSums<F> quad_sums(const Q* const (&rows)[kLanes / kQuad], Bits<F>& largest) const {
    AtomSums<F> sums;
    int z = 0;
    for (; z + kQuad <= args_.atoms; z += kQuad) {
      const F logit = load_quads<F>(rows, z);
      largest = larger_magnitude(largest, logit);
      sums.add(exp_in_range(logit), support_quads_[z / kQuad]);
    }
    if (z < args_.atoms) {
      const F logit = load_quads<F>(rows, z, args_.atoms - z);
      largest = larger_magnitude(largest, logit);
      sums.add(rest_there_ != 0.0f ? exp_in_range(logit) : F{}, support_quads_[z / kQuad]);
    }
    return sums;
  }

  // Magnitudes are ordered as their bits are, and a NaN is above them all.
  static Bits<F> larger_magnitude(Bits<F> largest, F logit) {
    const Bits<F> magnitude = lane_bits(logit) & 0x7fffffffu;
    return magnitude > largest ? magnitude : largest;
  }

  alignas(64) static constexpr float kZeros[kShortAtoms] = {};  // a row of any type
#endif

  template <class Q>
  void copy(const Q* from, F legal) {
    float* to = reinterpret_cast<float*>(atoms_);
    const int64_t row_stride = args_.q_stride[0], step = args_.q_stride[2];
    if constexpr (std::is_same_v<Q, float> && kLanes > 1) {
      if (step == 1 && all_lanes(is_legal(legal))) return transpose(from, row_stride, kLanes, args_.atoms, to, kLanes);
    }
    for (int i = 0; i < kLanes; ++i) {
      const bool here = is_legal(lane(legal, i));
      for (int z = 0; z < args_.atoms; ++z)
        to[z * kLanes + i] = here ? to_float(from[i * row_stride + z * step]) : 0.0f;
    }
  }

  // The general way.
  template <class Q>
  F any_value(const Q* from, int a, F legal) {
    copy(from + a * args_.q_stride[1], legal);
    return args_.atoms > kShortAtoms
               ? copied_value<kLongPartials>(a, [&](auto body) QPI_INLINE { for_each_long_partial(args_.atoms, body); })
               : copied_value<kPartials>(a, [&](auto body) QPI_INLINE { for_each_partial(args_.atoms, body); });
  }

  // From `atoms_`.
  template <int Partials, class ForEach>
  F copied_value(int a, ForEach for_each) const {
    if (args_.family.critic == QPI_CRITIC_QUANTILE) {
      AtomSums<F> sums[Partials];
      for_each([&](int partial, int z) QPI_INLINE { sums[partial].add(splat<F>(1.0f), atoms_[z]); });
      merge_partials(sums);
      return quantile_value(sums[0].mean());
    }
    const float* support = args_.support + a * args_.support_stride[0];
    const int64_t step = args_.support_stride[1];
    const auto mean_of = [&](auto weight) QPI_INLINE {
      AtomSums<F> sums[Partials];
      for_each([&](int partial, int z)
                   QPI_INLINE { sums[partial].add(weight(atoms_[z]), splat<F>(support[z * step] - middle_)); });
      merge_partials(sums);
      return sums[0].mean();
    };
    AtomMagnitude<F> magnitude[Partials];
    for_each([&](int partial, int z) QPI_INLINE { magnitude[partial].add(atoms_[z]); });
    merge_partials(magnitude);
    const F near = mean_of([](F x) QPI_INLINE { return exp_in_range(x); });
    const Mask<F> good = magnitude[0].near() & is_finite(near);
    if (all_lanes(good)) return near;

    AtomMaximum<F> maximum[Partials];
    for_each([&](int partial, int z) QPI_INLINE { maximum[partial].add(atoms_[z]); });
    merge_partials(maximum);
    const F mean = mean_of([&](F x) QPI_INLINE { return maximum[0].weight(x); });
    return good ? near : marked_value(maximum[0], mean);
  }

  const RowsArgs& args_;
  const float middle_;
  F* atoms_;          // [atoms]: the logits of one action
  F* support_quads_;  // [atoms / 4, rounded up]: the support, centred
  F rest_there_{};    // not 0: an atom of the last quad, which is not whole
};

}  // namespace QPI_ISA
}  // namespace qpi
