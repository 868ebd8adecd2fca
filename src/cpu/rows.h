// Rows on the CPU: a lane is a row. A block of kLanes rows is copied, action by action, into [atom][lane] order; the
// formulas then run on packs. Included once per instruction set, after the pack.
//
// Per row of 11 actions and 21 atoms: 231 transposed loads and 253 exponentials, a fraction of an instruction each with
// wide packs. The transposition is what costs.
#pragma once

#include <type_traits>

#include "../../cuda/math/control_laws.h"
#include "convert.h"
#include "cpu.h"
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

template <class F>
struct RowBlock {
  static constexpr int kLanes = LaneTraits<F>::kLanes;

  const RowsArgs& args;
  const StepNumbers& numbers;
  const float middle;
  F* values;  // [actions]: expected values, then unnormalised targets
  F* logits;  // [actions]: policy logits, then unnormalised probabilities
  F* atoms;   // [atoms]: the logits of one action

  // One lane of a pack. Packs may alias their lanes.
  static float& lane(F& pack, int i) { return reinterpret_cast<float*>(&pack)[i]; }

  float weight_of(int64_t row) const {
    return args.row_weights == nullptr ? 1.0f : args.row_weights[row * args.weight_stride];
  }

  // pi_logits of one action; -inf where it is illegal or the row is not there.
  template <class X>
  void load_logits(int a, int64_t first, int count, const float* weights) {
    F x = splat<F>(-kInfinity);
    for (int i = 0; i < count; ++i) {
      const int64_t row = first + i;
      if (weights[i] == 0.0f) continue;
      if (args.legal_actions != nullptr &&
          args.legal_actions[row * args.legal_stride[0] + a * args.legal_stride[1]] == 0)
        continue;
      const X* source = static_cast<const X*>(args.pi_logits);
      lane(x, i) =
          legal_logit(to_float(source[row * args.pi_stride[0] + a * args.pi_stride[1]]), true, args.illegal_below);
    }
    logits[a] = x;
  }

  // Are lanes i .. i + 7 rows in which this action is legal?
  bool eight_legal(int a, int i, int count) const {
    if (i + 8 > count) return false;
    bool all = true;
    for (int k = i; k < i + 8; ++k) all &= is_legal(lane(logits[a], k));
    return all;
  }

  template <class Q>
  void load_atoms(int a, int64_t first, int count) {
    float* to = reinterpret_cast<float*>(atoms);
    const int64_t step = args.q_stride[2];
    for (int i = 0; i < kLanes; ++i) {
      if constexpr (kLanes >= 8 && std::is_same_v<Q, float>) {
        if (i % 8 == 0 && step == 1 && eight_legal(a, i, count)) {
          transpose_eight(
              static_cast<const float*>(args.q_logits) + (first + i) * args.q_stride[0] + a * args.q_stride[1],
              args.q_stride[0], args.atoms, to + i, kLanes);
          i += 7;
          continue;
        }
      }
      if (i >= count || !is_legal(lane(logits[a], i))) {
        for (int z = 0; z < args.atoms; ++z) to[z * kLanes + i] = 0.0f;
        continue;
      }
      const Q* from = static_cast<const Q*>(args.q_logits) + (first + i) * args.q_stride[0] + a * args.q_stride[1];
      if (step == 1) {
        for (int z = 0; z < args.atoms; ++z) to[z * kLanes + i] = to_float(from[z]);
      } else {
        for (int z = 0; z < args.atoms; ++z) to[z * kLanes + i] = to_float(from[z * step]);
      }
    }
  }

  // The expected value of one action from `atoms`.
  F reduce_atoms(int a) const {
    return args.atoms > kShortAtoms
               ? reduce_atoms<kLongPartials>(a, [&](auto body) QPI_INLINE { for_each_long_partial(args.atoms, body); })
               : reduce_atoms<kPartials>(a, [&](auto body) QPI_INLINE { for_each_partial(args.atoms, body); });
  }

  template <int Partials, class ForEach>
  F reduce_atoms(int a, ForEach for_each) const {
    const float* support = args.support + a * args.support_stride[0];
    const int64_t step = args.support_stride[1];
    const auto mean_of = [&](auto weight) QPI_INLINE {
      AtomSums<F> sums[Partials];
      for_each([&](int partial, int z)
                   QPI_INLINE { sums[partial].add(weight(atoms[z]), splat<F>(support[z * step] - middle)); });
      merge_partials(sums);
      return sums[0].mean();
    };
    AtomMagnitude<F> magnitude[Partials];
    for_each([&](int partial, int z) QPI_INLINE { magnitude[partial].add(atoms[z]); });
    merge_partials(magnitude);
    const F near = mean_of([](F x) QPI_INLINE { return exp_in_range(x); });
    const Mask<F> good = magnitude[0].near() & is_finite(near);
    if (all_lanes(good)) return near;

    AtomMaximum<F> maximum[Partials];
    for_each([&](int partial, int z) QPI_INLINE { maximum[partial].add(atoms[z]); });
    merge_partials(maximum);
    const F mean = mean_of([&](F x) QPI_INLINE { return maximum[0].weight(x); });
    return good ? near : marked_value(maximum[0], mean);
  }

  static bool all_lanes(Mask<F> mask) {
    F found = mask ? F{} : splat<F>(1.0f);
    float sum = 0.0f;
    for (int i = 0; i < kLanes; ++i) sum += lane(found, i);
    return sum == 0.0f;
  }

  // Pairwise.
  template <class Accumulator, int Partials>
  static void merge_partials(Accumulator (&partials)[Partials]) {
    for (int stride = 1; stride < Partials; stride *= 2) {
      for (int i = 0; i < Partials; i += 2 * stride) partials[i].merge(partials[i + stride]);
    }
  }

  template <class G>
  void write_gradient(int64_t first, int count, const float* scale, F target_scale, F policy_scale);

  // Rows first .. first + count - 1; shares[i] is what row i adds to the statistic.
  void run(int64_t first, int count, RowShare* shares) {
    float weights[kLanes] = {};
    for (int i = 0; i < count; ++i) weights[i] = weight_of(first + i);

    for (int a = 0; a < args.actions; ++a) {
      switch (args.pi_dtype) {
        case QPI_FLOAT16:
          load_logits<Half>(a, first, count, weights);
          break;
        case QPI_BFLOAT16:
          load_logits<Bfloat>(a, first, count, weights);
          break;
        default:
          load_logits<float>(a, first, count, weights);
          break;
      }
      switch (args.q_dtype) {
        case QPI_FLOAT16:
          load_atoms<Half>(a, first, count);
          break;
        case QPI_BFLOAT16:
          load_atoms<Bfloat>(a, first, count);
          break;
        default:
          load_atoms<float>(a, first, count);
          break;
      }
      values[a] = reduce_atoms(a);
    }

    ActionMaximum<F> maxima[kPartials];
    for_each_partial(args.actions, [&](int partial, int a) QPI_INLINE { maxima[partial].add(values[a], logits[a]); });
    merge_partials(maxima);
    const ActionMaximum<F>& maximum = maxima[0];
    const F inverse_legal = lane_reciprocal(maximum.legal);
    const F mean = maximum.value_sum * inverse_legal;

    ActionVariance<F> squares[kPartials];
    for_each_partial(args.actions,
                     [&](int partial, int a) QPI_INLINE { squares[partial].add(values[a], logits[a], mean); });
    merge_partials(squares);
    F variance = squares[0].squares * inverse_legal;
    const F sharpness = inverse_temperature(numbers.tau, value_std(variance, numbers.std, numbers.own_std));

    ActionSums<F> sums[kPartials];
    for_each_partial(args.actions, [&](int partial, int a) QPI_INLINE {
      const ActionWeights<F> w = weigh_action(values[a], logits[a], maximum.value, maximum.logit, sharpness);
      sums[partial].add(w);
      values[a] = w.target;
      logits[a] = is_legal(logits[a]) ? w.policy : splat<F>(-1.0f);  // a mark for write_gradient
    });
    merge_partials(sums);
    const F target_scale = lane_reciprocal(sums[0].target_mass);
    const F policy_scale = lane_reciprocal(sums[0].policy_mass);
    F kl = kl_divergence(sums[0], target_scale);

    F usable = maximum.usable() ? splat<F>(1.0f) : splat<F>(0.0f);
    F support_usable = maximum.support_usable() ? splat<F>(1.0f) : splat<F>(0.0f);
    F legal = maximum.legal;
    float gradient_scale[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const RowStatus status = row_status(lane(usable, i) != 0.0f, lane(legal, i) > 0.0f,
                                          lane(support_usable, i) != 0.0f, weights[i], numbers.gradient_scale);
      gradient_scale[i] = status == RowStatus::kCounted ? numbers.gradient_scale * weights[i] : 0.0f;
      shares[i] = row_share(status, weights[i], lane(kl, i), lane(variance, i), numbers.kl_row_max);
      if (args.row0 && first + i != 0) shares[i] = out_of_statistic(shares[i]);
    }

    if (args.pi_grad != nullptr) {
      switch (args.grad_dtype) {
        case QPI_FLOAT16:
          write_gradient<Half>(first, count, gradient_scale, target_scale, policy_scale);
          break;
        case QPI_BFLOAT16:
          write_gradient<Bfloat>(first, count, gradient_scale, target_scale, policy_scale);
          break;
        default:
          write_gradient<float>(first, count, gradient_scale, target_scale, policy_scale);
          break;
      }
    }
  }
};

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

template <class F>
template <class G>
void RowBlock<F>::write_gradient(int64_t first, int count, const float* scale, F target_scale, F policy_scale) {
  G* grad = static_cast<G*>(args.pi_grad);
  for (int a = 0; a < args.actions; ++a) {
    F strength{};
    for (int i = 0; i < count; ++i) lane(strength, i) = scale[i];
    F step = gradient_step(strength, logits[a], policy_scale, values[a], target_scale);
    for (int i = 0; i < count; ++i) {
      G& element = grad[(first + i) * args.grad_stride[0] + a * args.grad_stride[1]];
      if (scale[i] != 0.0f && lane(logits[a], i) >= 0.0f) {
        const float before = args.write ? 0.0f : to_float(element);
        element = from_float<G>(before + lane(step, i));
      } else if (args.write) {
        element = from_float<G>(0.0f);
      }
    }
  }
}

// Pairwise over the lanes.
inline StatSlot close_slot(LaneSum* lanes, int count) {
  for (int stride = 1; stride < count; stride *= 2) {
    for (int i = 0; i < count; i += 2 * stride) lanes[i].merge(lanes[i + stride]);
  }
  return {lanes[0].weighted_kl, lanes[0].weight, lanes[0].weighted_variance, lanes[0].rows, lanes[0].skipped,
          lanes[0].clipped,     lanes[0].faults};
}

// Small tiles fill a pack together, so that adjacent slots are worked on at once.
template <class F>
void run_slots(const RowsArgs& args, const StepNumbers& numbers, int first_slot, int end_slot) {
  constexpr int kLanes = LaneTraits<F>::kLanes;
  const int tile_rows = args.tile_rows;
  const int together = tile_rows < kLanes ? kLanes / tile_rows : 1;  // slots

  // On the stack, so that a step allocates nothing: at most 3 * 4096 packs.
  const size_t packs = 2 * static_cast<size_t>(args.actions) + static_cast<size_t>(args.atoms);
  F* scratch = static_cast<F*>(__builtin_alloca_with_align(packs * sizeof(F), 8 * alignof(F)));
  const float middle = support_middle(args.support[0], args.support[(args.atoms - 1) * args.support_stride[1]]);
  RowBlock<F> block{args, numbers, middle, scratch, scratch + args.actions, scratch + 2 * args.actions};

  const int64_t tiles = tile_count(args.rows, tile_rows);
  for (int slot = first_slot; slot < end_slot; slot += together) {
    const int slots = end_slot - slot < together ? end_slot - slot : together;
    LaneSum sums[kMaxTileRows > kLanes ? kMaxTileRows : kLanes];
    for (int64_t tile = slot; tile < tiles; tile += kStatSlots) {
      const int64_t first = tile * tile_rows, left = args.rows - first;
      const int count = static_cast<int>(left < slots * tile_rows ? left : slots * tile_rows);
      for (int done = 0; done < count; done += kLanes) {
        RowShare shares[kLanes] = {};
        block.run(first + done, count - done < kLanes ? count - done : kLanes, shares);
        for (int i = 0; i < kLanes && done + i < count; ++i) sums[done + i].add(shares[i]);
      }
    }
    for (int i = 0; i < slots; ++i) args.slots[slot + i] = close_slot(sums + i * tile_rows, tile_rows);
  }
}

}  // namespace QPI_ISA
}  // namespace qpi
