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
    AtomMaximum<F> maximum[kPartials];
    AtomSums<F> sums[kPartials];
    const int count = args.atoms;
    for_each_partial(count, [&](int partial, int z) QPI_INLINE { maximum[partial].add(atoms[z]); });
    merge_partials(maximum);
    const F highest = maximum[0].highest;
    const float* support = args.support + a * args.support_stride[0];
    const int64_t step = args.support_stride[1];
    for_each_partial(count, [&](int partial, int z) QPI_INLINE {
      sums[partial].add(atoms[z], highest, splat<F>(support[z * step] - middle));
    });
    merge_partials(sums);
    return expected_value(maximum[0], sums[0]);
  }

  template <class Accumulator>
  static void merge_partials(Accumulator (&partials)[kPartials]) {
    partials[0].merge(partials[1]);
    partials[2].merge(partials[3]);
    partials[0].merge(partials[2]);
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
    const F inverse_legal = splat<F>(1.0f) / maximum.legal;
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
      logits[a] = w.policy;
    });
    merge_partials(sums);
    const F target_scale = splat<F>(1.0f) / sums[0].target_mass;
    const F policy_scale = splat<F>(1.0f) / sums[0].policy_mass;
    F kl = kl_divergence(sums[0], target_scale);

    F usable = maximum.usable ? splat<F>(1.0f) : splat<F>(0.0f);
    F support_usable = maximum.support_usable ? splat<F>(1.0f) : splat<F>(0.0f);
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
    F step = policy_minus_target(logits[a], policy_scale, values[a], target_scale);
    for (int i = 0; i < count; ++i) {
      G& element = grad[(first + i) * args.grad_stride[0] + a * args.grad_stride[1]];
      if (scale[i] != 0.0f && lane(logits[a], i) >= 0.0f) {
        const float before = args.write ? 0.0f : to_float(element);
        element = from_float<G>(lane_fma(scale[i], lane(step, i), before));
      } else if (args.write) {
        element = from_float<G>(0.0f);
      }
    }
  }
}

// Adds a tile: the pairwise sums of its eight rows.
inline void add_tile(StatSlot& slot, const RowShare* rows) {
  double sums[3];
  for (int which = 0; which < 3; ++which) {
    double lanes[kTileRows];
    for (int i = 0; i < kTileRows; ++i) lanes[i] = rows[i].sum(which);
    for (int stride = 1; stride < kTileRows; stride *= 2) {
      for (int i = 0; i < kTileRows; i += 2 * stride) lanes[i] += lanes[i + stride];
    }
    sums[which] = lanes[0];
  }
  slot.weighted_kl += sums[0];
  slot.weight += sums[1];
  slot.weighted_variance += sums[2];
  for (int i = 0; i < kTileRows; ++i) {
    slot.rows += rows[i].counted;
    slot.skipped += rows[i].skipped;
    slot.clipped += rows[i].clipped;
    slot.faults |= rows[i].faults;
  }
}

template <class F>
void run_slots(const RowsArgs& args, const StepNumbers& numbers, int first_slot, int end_slot) {
  constexpr int kLanes = LaneTraits<F>::kLanes;
  constexpr int kTogether = kLanes > kTileRows ? kLanes : kTileRows;  // rows
  constexpr int kTiles = kTogether / kTileRows;

  // On the stack, so that a step allocates nothing: at most 3 * 4096 packs.
  const size_t packs = 2 * static_cast<size_t>(args.actions) + static_cast<size_t>(args.atoms);
  F* scratch = static_cast<F*>(__builtin_alloca_with_align(packs * sizeof(F), 8 * alignof(F)));
  const float middle = support_middle(args.support[0], args.support[(args.atoms - 1) * args.support_stride[1]]);
  RowBlock<F> block{args, numbers, middle, scratch, scratch + args.actions, scratch + 2 * args.actions};

  for (int slot = first_slot; slot < end_slot; ++slot) args.slots[slot] = StatSlot{};
  const int64_t tiles = tile_count(args.rows);
  for (int64_t base = 0; base < tiles; base += kStatSlots) {
    for (int slot = first_slot; slot < end_slot && base + slot < tiles; slot += kTiles) {
      RowShare shares[kTogether] = {};
      const int64_t first = (base + slot) * kTileRows;
      // A share of slots may end between the two tiles of a pack.
      const int wanted = (end_slot - slot < kTiles ? end_slot - slot : kTiles) * kTileRows;
      const int64_t left = args.rows - first;
      const int count = static_cast<int>(left < wanted ? left : wanted);
      for (int done = 0; done < count; done += kLanes)
        block.run(first + done, count - done < kLanes ? count - done : kLanes, shares + done);
      for (int tile = 0; tile < kTiles && tile * kTileRows < count; ++tile)
        add_tile(args.slots[slot + tile], shares + tile * kTileRows);
    }
  }
}

}  // namespace QPI_ISA
}  // namespace qpi
