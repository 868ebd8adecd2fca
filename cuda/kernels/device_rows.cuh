// What the rows kernels share: element access, the lanes that work on a row together, and a slot of the statistic.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define QPI_ISA device
#include "../math/control_laws.h"
#include "../math/family.h"

namespace qpi::gpu {

constexpr int kWarp = 32;
constexpr unsigned kFullWarp = 0xffffffffu;

// The finish kernel may take its place on the GPU now; it waits for this grid before it reads anything from it.
__device__ inline void allow_finish_to_start() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

template <int Value>
struct IntConstant {
  static constexpr int value = Value;
};

// item / divisor for 0 <= item < 2^21, with the reciprocal of the divisor at hand.
__device__ inline int quotient(int item, float reciprocal) {
  return static_cast<int>((static_cast<float>(item) + 0.5f) * reciprocal);
}

// ---- elements ----------------------------------------------------------------------------------------------------

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

__device__ inline void store_float(float* to, float x) { *to = x; }
__device__ inline void store_float(__half* to, float x) { *to = __float2half_rn(x); }
__device__ inline void store_float(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }

// Calls body(T{}) with the element type of a dtype, so that a loop is compiled once for each.
template <class Body>
__device__ inline void with_type(qpi_dtype dtype, Body body) {
  if (dtype == QPI_FLOAT32) {
    body(float{});
  } else if (dtype == QPI_FLOAT16) {
    body(__half{});
  } else {
    body(__nv_bfloat16{});
  }
}

// An element as it lies in memory, so that it can be on its way while others are asked for.
__device__ inline uint32_t load_raw(const void* base, qpi_dtype dtype, int64_t i) {
  if (dtype == QPI_FLOAT32) return static_cast<const uint32_t*>(base)[i];
  return static_cast<const uint16_t*>(base)[i];
}
__device__ inline float raw_to_float(uint32_t raw, qpi_dtype dtype) {
  if (dtype == QPI_FLOAT32) return __uint_as_float(raw);
  if (dtype == QPI_FLOAT16) return __half2float(__ushort_as_half(static_cast<unsigned short>(raw)));
  return __uint_as_float(raw << 16);
}
__device__ inline float load_element(const void* base, qpi_dtype dtype, int64_t i) {
  return raw_to_float(load_raw(base, dtype, i), dtype);
}

// ---- atoms -------------------------------------------------------------------------------------------------------

// The weights of an action's atoms on the GPU, relative to about the largest one: one rounding before the exponential,
// which is the GPU's own (2 ulp). So the CPU, which has a polynomial, does not give the same bits; every kernel does.
// Where the mean that they lead to is not finite, the general way of row_math.h has to be gone.
struct AtomWeights {
  float offset;

  __device__ explicit AtomWeights(const AtomMaximum<float>& maximum) : offset(maximum.highest * kLog2e) {}
  __device__ float operator()(float logit) const {
    float weight;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(weight) : "f"(lane_fma(logit, kLog2e, -offset)));
    return weight;
  }
};

// ---- lanes ---------------------------------------------------------------------------------------------------------

template <class T>
__device__ inline T shuffle(T x, int lanes) {
  return __shfl_xor_sync(kFullWarp, x, lanes);
}
__device__ inline AtomMaximum<float> shuffle(const AtomMaximum<float>& m, int lanes) {
  return {shuffle(m.highest, lanes)};
}
__device__ inline AtomSums<float> shuffle(const AtomSums<float>& s, int lanes) {
  return {shuffle(s.mass, lanes), shuffle(s.value, lanes)};
}
__device__ inline ActionMaximum<float> shuffle(const ActionMaximum<float>& m, int lanes) {
  return {shuffle(m.value, lanes), shuffle(m.logit, lanes), shuffle(m.value_sum, lanes), shuffle(m.legal, lanes)};
}
__device__ inline ActionVariance<float> shuffle(const ActionVariance<float>& v, int lanes) {
  return {shuffle(v.squares, lanes)};
}
__device__ inline ActionSums<float> shuffle(const ActionSums<float>& s, int lanes) {
  return {shuffle(s.target_mass, lanes), shuffle(s.policy_mass, lanes), shuffle(s.cross, lanes)};
}
__device__ inline BestCount<float> shuffle(const BestCount<float>& c, int lanes) { return {shuffle(c.best, lanes)}; }
__device__ inline FamilyMasses<float> shuffle(const FamilyMasses<float>& m, int lanes) {
  return {shuffle(m.target, lanes),      shuffle(m.policy, lanes),   shuffle(m.student, lanes),
          shuffle(m.cross, lanes),       shuffle(m.target_u, lanes), shuffle(m.policy_v, lanes),
          shuffle(m.best_policy, lanes), shuffle(m.best_both, lanes)};
}
__device__ inline DivergenceSums<float> shuffle(const DivergenceSums<float>& s, int lanes) {
  return {shuffle(s.value, lanes), shuffle(s.centre, lanes), shuffle(s.overlap, lanes)};
}
__device__ inline qpi_summary shuffle(const qpi_summary& s, int lanes) {
  return {shuffle(s.weight, lanes),          shuffle(s.loss, lanes),
          shuffle(s.target_entropy, lanes),  shuffle(s.policy_entropy, lanes),
          shuffle(s.uniform_entropy, lanes), shuffle(s.agreement, lanes),
          shuffle(s.pi_at_qstar, lanes),     shuffle(s.overlap, lanes)};
}
__device__ inline LaneSum shuffle(const LaneSum& s, int lanes) {
  return {shuffle(s.weighted_kl, lanes), shuffle(s.weight, lanes),  shuffle(s.weighted_variance, lanes),
          shuffle(s.rows, lanes),        shuffle(s.skipped, lanes), shuffle(s.clipped, lanes),
          shuffle(s.faults, lanes)};
}

// Pairwise, as merge_lanes.
__device__ inline qpi_summary merge_summaries(qpi_summary mine, int first, int end) {
  for (int lanes = first; lanes < end; lanes *= 2) add_summary(mine, shuffle(mine, lanes));
  return mine;
}

// Pairwise over lanes that are `first`, 2 * first, ... apart, `first` * 2^n = `end`. Every lane of the warp calls it.
template <class Accumulator>
__device__ inline void merge_lanes(Accumulator& mine, int first, int end) {
  for (int lanes = first; lanes < end; lanes *= 2) mine.merge(shuffle(mine, lanes));
}

// ---- a row ---------------------------------------------------------------------------------------------------------

// Beyond so many actions a row is worked on by a whole warp, with a partial sum to each lane.
constexpr int kNarrowActions = 32;

// The lanes of a warp that work on one row: one with all the partial sums, as many as there are partial sums, or all of
// them with as many partial sums. Every lane of the warp must make the same calls.
template <int Lanes>
struct RowTeam {
  static_assert(Lanes == 1 || Lanes == kPartials || Lanes == kWarp, "each lane has whole partial sums");
  static constexpr int kMine = Lanes == 1 ? kPartials : 1;

  template <class Body>
  __device__ static void for_each(int actions, Body body) {
    if constexpr (Lanes == 1) {
#pragma unroll 1
      for (int a = 0; a < actions; a += kPartials) {
#pragma unroll
        for (int k = 0; k < kPartials; ++k) {
          if (k > 0 && a + k >= actions) break;
          body(k, a + k);
        }
      }
    } else {
#pragma unroll 1
      for (int a = threadIdx.x % Lanes; a < actions; a += Lanes) body(0, a);
    }
  }

  // As family.h wants them.
  template <class Accumulator, class Body>
  __device__ static Accumulator reduce(int actions, Body body) {
    Accumulator partials[kMine];
    for_each(actions, [&](int mine, int a) { body(partials[mine], a); });
    return merge(partials);
  }
  template <class Body>
  __device__ static void each(int actions, Body body) {
    for_each(actions, [&](int, int a) { body(a); });
  }

  template <class Accumulator>
  __device__ static Accumulator merge(Accumulator (&partials)[kMine]) {
    if constexpr (Lanes == 1) {
      partials[0].merge(partials[1]);
      partials[2].merge(partials[3]);
      partials[0].merge(partials[2]);
    } else {
      merge_lanes(partials[0], 1, Lanes);
    }
    return partials[0];
  }
};

// What a row's actions have in common. values[a] and logits[a] hold expected values and policy logits (-inf: illegal).
struct RowShape {
  ActionMaximum<float> maximum;
  float variance;
  float sharpness;
};

template <int Lanes>
__device__ inline RowShape measure_row(const float* values, const float* logits, int actions,
                                       const StepNumbers& numbers) {
  using Team = RowTeam<Lanes>;
  RowShape row;
  ActionMaximum<float> maximum[Team::kMine];
  Team::for_each(actions, [&](int mine, int a) { maximum[mine].add(values[a], logits[a]); });
  row.maximum = Team::merge(maximum);
  const float inverse_legal = lane_reciprocal(row.maximum.legal);
  const float mean = row.maximum.value_sum * inverse_legal;

  ActionVariance<float> squares[Team::kMine];
  Team::for_each(actions, [&](int mine, int a) { squares[mine].add(values[a], logits[a], mean); });
  row.variance = Team::merge(squares).squares * inverse_legal;
  row.sharpness = inverse_temperature(numbers.tau, value_std(row.variance, numbers.std, numbers.own_std));
  return row;
}

// What the gradient of a row needs once its actions have been reduced.
struct RowScales {
  float strength;  // lam * scale * weight; 0: nothing is added
  float target;    // 1 / sum e^u
  float policy;    // 1 / sum e^x'
};

__device__ inline RowShare close_row(const RowShape& row, const ActionSums<float>& sums, float weight,
                                     const StepNumbers& numbers, RowScales* scales) {
  const RowStatus status = row_status(row.maximum.usable(), row.maximum.legal > 0.0f, row.maximum.support_usable(),
                                      weight, numbers.gradient_scale);
  scales->strength = status == RowStatus::kCounted ? numbers.gradient_scale * weight : 0.0f;
  scales->target = lane_reciprocal(sums.target_mass);
  scales->policy = lane_reciprocal(sums.policy_mass);
  return row_share(status, weight, kl_divergence(sums, scales->target), row.variance, numbers.kl_row_max);
}

// What is added to an element of the gradient; negative zero, which changes nothing, marks one to leave alone.
constexpr uint32_t kUntouched = 0x80000000u;

__device__ inline float step_of(const RowScales& scales, float target, float policy) {
  const bool touched = scales.strength != 0.0f && policy >= 0.0f;
  return touched ? gradient_step(scales.strength, policy, scales.policy, target, scales.target) : -0.0f;
}

// `before` is what the element holds; without `add` it is not looked at.
template <class G>
__device__ inline void store_step(G* to, float step, bool add, float before) {
  if (!add) {
    store_float(to, 0.0f + step);
  } else if (lane_bits(step) != kUntouched) {
    store_float(to, before + step);
  }
}

// All of it: on return values[a] holds the step of the gradient.
template <int Lanes>
__device__ inline RowShare distill_row(float* values, float* logits, int actions, float weight,
                                       const StepNumbers& numbers) {
  using Team = RowTeam<Lanes>;
  const RowShape row = measure_row<Lanes>(values, logits, actions, numbers);
  ActionSums<float> partial[Team::kMine];
  Team::for_each(actions, [&](int mine, int a) {
    const ActionWeights<float> w =
        weigh_action(values[a], logits[a], row.maximum.value, row.maximum.logit, row.sharpness);
    partial[mine].add(w);
    values[a] = w.target;
    logits[a] = is_legal(logits[a]) ? w.policy : -1.0f;  // a mark for step_of
  });
  RowScales scales;
  const RowShare share = close_row(row, Team::merge(partial), weight, numbers, &scales);
  Team::for_each(actions, [&](int, int a) { values[a] = step_of(scales, values[a], logits[a]); });
  return share;
}

// The same for the rest of the family. Out of line: the plain step must not pay for its registers.
template <int Lanes>
__device__ __noinline__ RowShare distill_family(float* values, float* logits, int actions, float weight,
                                                const StepNumbers& numbers, const RowFamily& family,
                                                RowSummary<float>* summary) {
  using Team = RowTeam<Lanes>;
  const FamilyRow<float> row = measure_family<float, Team>(values, logits, actions, numbers, family);
  const RowStatus status = row_status(row.usable(family), row.maximum.legal > 0.0f, row.maximum.support_usable(),
                                      weight, numbers.gradient_scale);
  const float strength = status == RowStatus::kCounted ? numbers.gradient_scale * weight : 0.0f;
  family_steps<float, Team>(values, logits, actions, row, strength, family);
  *summary = row.summary;
  return row_share(status, weight, row.control(family), row.variance, numbers.kl_row_max);
}

__device__ inline float weight_of(const RowsArgs& args, int64_t row) {
  return args.row_weights == nullptr ? 1.0f : args.row_weights[row * args.weight_stride];
}

__device__ inline bool is_allowed(const RowsArgs& args, int64_t row, int action) {
  return args.legal_actions == nullptr ||
         args.legal_actions[row * args.legal_stride[0] + action * args.legal_stride[1]] != 0;
}

// ---- a slot --------------------------------------------------------------------------------------------------------

// Rows of a slot are `lanes_of_row` lanes apart; the first lane writes. Every lane of the warp calls it.
__device__ inline void store_slot(StatSlot* slot, LaneSum sum, int tile_rows, int lanes_of_row) {
  merge_lanes(sum, lanes_of_row, tile_rows * lanes_of_row);
  if (threadIdx.x % kWarp == 0) {
    *slot = {sum.weighted_kl, sum.weight, sum.weighted_variance, sum.rows, sum.skipped, sum.clipped, sum.faults};
  }
}

}  // namespace qpi::gpu
