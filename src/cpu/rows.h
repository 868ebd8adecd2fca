// Rows on the CPU: a lane is a row, and the formulas run on packs of rows. Included once per instruction set, after the
// pack.
//
// Of 11 actions and 21 float32 atoms a row is 1056 bytes, 924 of them q_logits: 69 MB at 65 536 rows. An atom costs ten
// operations of the multiply-add units (nine of its exponential, one of the sum), and 21 atoms fill 24 floats of quads:
// 330 operations of eight lanes for a row, 165 of sixteen. A row's other parts, which are moving logits and gradients,
// the formulas over its actions and the statistic, are a fifth to a quarter of the time.
//
// Measured on one core with AVX2: 0.16 us a row out of a cache, where instructions are the limit, and 0.26 to 0.29 us
// out of memory, which that core reads at 0.12 to 0.14 us a row: the sum of both, nearly.
#pragma once

#include <type_traits>

#include "../../cuda/math/control_laws.h"
#include "atoms.h"
#include "runs.h"
#include "slot_sums.h"

namespace qpi {
inline namespace QPI_ISA {

template <class F>
class RowBlock {
 public:
  static constexpr int kLanes = LaneTraits<F>::kLanes;
  using Sums = SlotSums<(kMaxTileRows > kLanes ? kMaxTileRows : kLanes)>;

  // Packs of scratch.
  static size_t scratch(const RowsArgs& args) {
    return 3 * static_cast<size_t>(args.actions) + BlockAtoms<F>::scratch(args.atoms);
  }

  RowBlock(const RowsArgs& args, const StepNumbers& numbers, F* scratch)
      : args_(args),
        numbers_(numbers),
        values_(scratch),
        logits_(scratch + args.actions),
        row_major_(reinterpret_cast<float*>(scratch + 2 * args.actions)),
        atoms_(args, scratch + 3 * args.actions) {
    for (int i = 0; i < args.actions * kLanes; ++i) row_major_[i] = 0.0f;
  }

  // Rows first .. first + count - 1, which are lanes first_lane and on of `sums`.
  void run(int64_t first, int count, Sums& sums, int first_lane) {
    F weights{};
    for (int i = 0; i < count; ++i)
      lane(weights, i) = args_.row_weights == nullptr ? 1.0f : args_.row_weights[(first + i) * args_.weight_stride];

    with_type(args_.pi_dtype, [&](auto x) { load_logits<decltype(x)>(first, count, weights); });
    with_type(args_.q_dtype, [&](auto q) { atoms_.template expected_values<decltype(q)>(first, logits_, values_); });

    if (!args_.family.plain) return run_family(first, count, weights, sums, first_lane);

    ActionMaximum<F> maxima[kPartials];
    for_each_partial(args_.actions,
                     [&](int partial, int a) QPI_INLINE { maxima[partial].add(values_[a], logits_[a]); });
    merge_partials(maxima);
    const ActionMaximum<F>& maximum = maxima[0];
    const F inverse_legal = lane_reciprocal(maximum.legal);
    const F mean = maximum.value_sum * inverse_legal;

    ActionVariance<F> squares[kPartials];
    for_each_partial(args_.actions,
                     [&](int partial, int a) QPI_INLINE { squares[partial].add(values_[a], logits_[a], mean); });
    merge_partials(squares);
    const F variance = squares[0].squares * inverse_legal;
    const F sharpness = inverse_temperature(numbers_.tau, value_std(variance, numbers_.std, numbers_.own_std));

    ActionSums<F> masses[kPartials];
    for_each_partial(args_.actions, [&](int partial, int a) QPI_INLINE {
      const ActionWeights<F> w = weigh_action(values_[a], logits_[a], maximum.value, maximum.logit, sharpness);
      masses[partial].add(w);
      values_[a] = w.target;
      logits_[a] = is_legal(logits_[a]) ? w.policy : splat<F>(-1.0f);  // a mark for write_gradient
    });
    merge_partials(masses);
    const F target_scale = lane_reciprocal(masses[0].target_mass);
    const F policy_scale = lane_reciprocal(masses[0].policy_mass);
    const F kl = kl_divergence(masses[0], target_scale);

    const F strength =
        add_shares(maximum, maximum.usable(), weights, kl, variance, first, count, sums, first_lane, nullptr);
    const Mask<F> has_gradient = strength != 0.0f;
    for (int a = 0; a < args_.actions; ++a) {
      const F step = gradient_step(strength, logits_[a], policy_scale, values_[a], target_scale);
      values_[a] = has_gradient & (logits_[a] >= 0.0f) ? step : -splat<F>(0.0f);
    }
    write_steps(first, count, strength);
  }

 private:
  // Walks the actions of a pack of rows, as family.h wants it.
  struct Team {
    template <class Accumulator, class Body>
    QPI_FN static Accumulator reduce(int actions, Body body) {
      Accumulator partials[kPartials];
      for_each_partial(actions, [&](int partial, int a) QPI_INLINE { body(partials[partial], a); });
      merge_partials(partials);
      return partials[0];
    }
    template <class Body>
    QPI_FN static void each(int actions, Body body) {
      for (int a = 0; a < actions; ++a) body(a);
    }
  };

  // From expected values and logits on, for the rest of the family.
  __attribute__((noinline)) void run_family(int64_t first, int count, F weights, Sums& sums, int first_lane) {
    const RowFamily& family = args_.family;
    const FamilyRow<F> row = measure_family<F, Team>(values_, logits_, args_.actions, numbers_, family);
    const F strength = add_shares(row.maximum, row.usable(family), weights, row.control(family), row.variance, first,
                                  count, sums, first_lane, args_.summary_slots == nullptr ? nullptr : &row.summary);
    family_steps<F, Team>(values_, logits_, args_.actions, row, strength, family);
    write_steps(first, count, strength);
  }

  template <class Body>
  static void with_type(qpi_dtype dtype, Body body) {
    switch (dtype) {
      case QPI_FLOAT16:
        return body(Half{});
      case QPI_BFLOAT16:
        return body(Bfloat{});
      default:
        return body(0.0f);
    }
  }

  // pi_logits; -inf where an action is illegal or the row is not there.
  template <class X>
  void load_logits(int64_t first, int count, F weights) {
    const int actions = args_.actions;
    const X* from = static_cast<const X*>(args_.pi_logits) + first * args_.pi_stride[0];
    if (args_.pi_stride[0] == actions && args_.pi_stride[1] == 1) {
      load_run(from, 1, static_cast<int64_t>(count) * actions, row_major_);
    } else {
      for (int i = 0; i < count; ++i)
        load_run(from + i * args_.pi_stride[0], args_.pi_stride[1], actions, row_major_ + i * actions);
    }
    if (args_.legal_actions != nullptr) {
      for (int i = 0; i < count; ++i) {
        const uint8_t* legal = args_.legal_actions + (first + i) * args_.legal_stride[0];
        float* x = row_major_ + i * actions;
        for (int a = 0; a < actions; ++a) x[a] = legal[a * args_.legal_stride[1]] != 0 ? x[a] : -kInfinity;
      }
    }
    transpose(row_major_, actions, kLanes, actions, reinterpret_cast<float*>(logits_), kLanes);
    const Mask<F> there = weights != 0.0f;
    for (int a = 0; a < actions; ++a) logits_[a] = legal_logit(logits_[a], there, args_.illegal_below);
  }

  // Adds the rows' shares to the statistic. What their gradients are multiplied by; 0: they have none.
  F add_shares(const ActionMaximum<F>& maximum, Mask<F> usable_rows, F weights, F kl, F variance, int64_t first,
               int count, Sums& sums, int first_lane, const RowSummary<F>* summary) {
    const Mask<F> plain = (weights > 0.0f) & is_finite(weights * numbers_.gradient_scale) & is_finite(weights) &
                          usable_rows & (maximum.legal > 0.0f) & maximum.support_usable() &
                          (kl <= numbers_.kl_row_max) & is_finite(kl);
    if (all_lanes(plain) && !args_.row0 && summary == nullptr) {  // so is `count` that of a pack
      sums.template add_counted<kLanes>(first_lane, &lane(weights, 0), &lane(kl, 0), &lane(variance, 0));
      return numbers_.gradient_scale * weights;
    }
    F usable = usable_rows ? splat<F>(1.0f) : splat<F>(0.0f);
    F support_usable = maximum.support_usable() ? splat<F>(1.0f) : splat<F>(0.0f);
    F legal = maximum.legal;
    F strength{};
    for (int i = 0; i < count; ++i) {
      const float weight = lane(weights, i);
      const RowStatus status = row_status(lane(usable, i) != 0.0f, lane(legal, i) > 0.0f,
                                          lane(support_usable, i) != 0.0f, weight, numbers_.gradient_scale);
      if (status == RowStatus::kCounted) lane(strength, i) = numbers_.gradient_scale * weight;
      RowShare share = row_share(status, weight, lane(kl, i), lane(variance, i), numbers_.kl_row_max);
      if (args_.row0 && first + i != 0) share = out_of_statistic(share);
      sums.add(first_lane + i, share);
      if (summary != nullptr) sums.add_summary(first_lane + i, share.weight, of_lane(*summary, i));
    }
    return strength;
  }

  static RowSummary<float> of_lane(RowSummary<F> summary, int i) {
    return {lane(summary.loss, i),           lane(summary.target_entropy, i),
            lane(summary.policy_entropy, i), lane(summary.uniform_entropy, i),
            lane(summary.agreement, i),      lane(summary.pi_at_qstar, i),
            lane(summary.overlap, i)};
  }

  // The gradient's steps, which are in `values_`.
  void write_steps(int64_t first, int count, F strength) {
    if (args_.pi_grad != nullptr)
      with_type(args_.grad_dtype,
                [&](auto g) { write_gradient<decltype(g)>(first, count, strength != 0.0f, strength); });
  }

  template <class G>
  void write_gradient(int64_t first, int count, Mask<F> has_gradient, F strength) {
    const int actions = args_.actions;
    transpose(reinterpret_cast<const float*>(values_), kLanes, actions, kLanes, row_major_, actions);

    G* to = static_cast<G*>(args_.pi_grad) + first * args_.grad_stride[0];
    const bool every_row = args_.write || all_lanes(has_gradient);
    if (every_row && args_.grad_stride[0] == actions && args_.grad_stride[1] == 1) {
      store_run(row_major_, static_cast<int64_t>(count) * actions, args_.write, to, 1);
      return;
    }
    for (int i = 0; i < count; ++i) {
      if (args_.write || lane(strength, i) != 0.0f)
        store_run(row_major_ + i * actions, actions, args_.write, to + i * args_.grad_stride[0], args_.grad_stride[1]);
    }
  }

  const RowsArgs& args_;
  const StepNumbers& numbers_;
  F* values_;         // [actions]: expected values, then unnormalised targets, then the gradient's steps
  F* logits_;         // [actions]: policy logits, then unnormalised probabilities
  float* row_major_;  // [lane][actions]: policy logits or the gradient's steps, on their way from or to memory
  BlockAtoms<F> atoms_;
};

// Small tiles fill a pack together, so that adjacent slots are worked on at once.
template <class F>
void run_slots(const RowsArgs& args, const StepNumbers& numbers, int first_slot, int end_slot) {
  constexpr int kLanes = LaneTraits<F>::kLanes;
  const int tile_rows = args.tile_rows;
  const int together = tile_rows < kLanes ? kLanes / tile_rows : 1;  // slots

  // On the stack, so that a step allocates nothing: at most 5 * 4096 packs.
  F* scratch = static_cast<F*>(__builtin_alloca_with_align(RowBlock<F>::scratch(args) * sizeof(F), 8 * alignof(F)));
  RowBlock<F> block(args, numbers, scratch);

  const int64_t tiles = tile_count(args.rows, tile_rows);
  for (int slot = first_slot; slot < end_slot; slot += together) {
    const int slots = end_slot - slot < together ? end_slot - slot : together;
    typename RowBlock<F>::Sums sums;
    for (int64_t tile = slot; tile < tiles; tile += kStatSlots) {
      const int64_t first = tile * tile_rows, left = args.rows - first;
      const int count = static_cast<int>(left < slots * tile_rows ? left : slots * tile_rows);
      for (int done = 0; done < count; done += kLanes)
        block.run(first + done, count - done < kLanes ? count - done : kLanes, sums, done);
    }
    for (int i = 0; i < slots; ++i) {
      args.slots[slot + i] = sums.close(i * tile_rows, tile_rows);
      if (args.summary_slots != nullptr) args.summary_slots[slot + i] = sums.close_summary(i * tile_rows, tile_rows);
    }
  }
}

}  // namespace QPI_ISA
}  // namespace qpi
