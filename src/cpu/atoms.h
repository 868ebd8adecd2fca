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
        middle_(support_middle(args.support[0], args.support[(args.atoms - 1) * args.support_stride[1]])),
        atoms_(scratch),
        support_quads_(scratch + args.atoms) {
    for (int z = 0; z < args.atoms; ++z) atoms_[z] = F{};
    if (args.support_stride[0] == 0) spread_support(0);
  }

  // Action a of the rows from `first` on. A lane in which it is not legal is not read and has some finite value.
  template <class Q>
  F expected_value(int a, int64_t first, F legal) {
    const Q* from = static_cast<const Q*>(args_.q_logits) + first * args_.q_stride[0] + a * args_.q_stride[1];
#ifdef __AVX2__
    if constexpr (kLanes > 1) {
      if (args_.atoms <= kShortAtoms && args_.q_stride[2] == 1) {
        if (args_.support_stride[0] != 0) spread_support(a);
        F value;
        if (near_value(from, legal, &value)) return value;
      }
    }
#endif
    copy(from, legal);
    return args_.atoms > kShortAtoms
               ? any_value<kLongPartials>(a, [&](auto body) QPI_INLINE { for_each_long_partial(args_.atoms, body); })
               : any_value<kPartials>(a, [&](auto body) QPI_INLINE { for_each_partial(args_.atoms, body); });
  }

 private:
  static constexpr int kQuad = 4;

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
  // False if a lane has logits that are not near zero, or a mean that is not finite.
  template <class Q>
  bool near_value(const Q* from, F legal, F* value) {
    const Q* rows[kLanes];
    if (all_lanes(is_legal(legal))) {
      for (int i = 0; i < kLanes; ++i) rows[i] = from + i * args_.q_stride[0];
    } else {
      const Q* zeros = reinterpret_cast<const Q*>(zeros_);
      for (int i = 0; i < kLanes; ++i) rows[i] = is_legal(lane(legal, i)) ? from + i * args_.q_stride[0] : zeros;
    }
    const int whole = args_.atoms / kQuad * kQuad, rest = args_.atoms - whole;
    F rest_there{};
    for (int i = 0; i < kLanes; ++i) lane(rest_there, i) = i % kQuad < rest ? 1.0f : 0.0f;

    F mass[kQuad], sum[kQuad];
    Bits<F> largest{};
    for (int k = 0; k < kQuad; ++k) {
      AtomSums<F> sums;
      for (int z = 0; z < whole; z += kQuad) {
        const F logit = load_quads<F>(rows, k, z);
        largest = larger_magnitude(largest, logit);
        sums.add(exp_in_range(logit), support_quads_[z / kQuad]);
      }
      if (rest != 0) {
        const F logit = load_quads<F>(rows, k, whole, rest);
        largest = larger_magnitude(largest, logit);
        sums.add(rest_there > 0.0f ? exp_in_range(logit) : F{}, support_quads_[whole / kQuad]);
      }
      mass[k] = sums.mass;
      sum[k] = sums.value;
    }
    AtomSums<F> sums;
    sums.mass = add_quads(mass);
    sums.value = add_quads(sum);
    *value = sums.mean();
    return all_lanes((lane_float(largest) <= kNear) & is_finite(*value));
  }

  // Magnitudes are ordered as their bits are, and a NaN is above them all.
  static Bits<F> larger_magnitude(Bits<F> largest, F logit) {
    const Bits<F> magnitude = lane_bits(logit) & 0x7fffffffu;
    return magnitude > largest ? magnitude : largest;
  }

  alignas(64) static constexpr float zeros_[kShortAtoms] = {};
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

  // From `atoms_`, whatever they are.
  template <int Partials, class ForEach>
  F any_value(int a, ForEach for_each) const {
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
};

}  // namespace QPI_ISA
}  // namespace qpi
