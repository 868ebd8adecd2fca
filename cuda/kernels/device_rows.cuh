// What the rows kernels share: element access, four lanes working on a row, and a tile's share of the statistic.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define QPI_ISA device
#include "../math/control_laws.h"

namespace qpi::gpu {

constexpr int kWarp = 32;
constexpr unsigned kFullWarp = 0xffffffffu;

// The finish kernel may take its place on the GPU now; it waits for this grid before it reads anything from it.
__device__ inline void allow_finish_to_start() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// ---- elements ----------------------------------------------------------------------------------------------------

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

__device__ inline float load_element(const void* base, qpi_dtype dtype, int64_t i) {
  if (dtype == QPI_FLOAT32) return static_cast<const float*>(base)[i];
  if (dtype == QPI_FLOAT16) return to_float(static_cast<const __half*>(base)[i]);
  return to_float(static_cast<const __nv_bfloat16*>(base)[i]);
}

__device__ inline void store_element(void* base, qpi_dtype dtype, int64_t i, float x) {
  if (dtype == QPI_FLOAT32) {
    static_cast<float*>(base)[i] = x;
  } else if (dtype == QPI_FLOAT16) {
    static_cast<__half*>(base)[i] = __float2half_rn(x);
  } else {
    static_cast<__nv_bfloat16*>(base)[i] = __float2bfloat16_rn(x);
  }
}

// ---- four lanes combine what each has (0 + 1) + (2 + 3) -----------------------------------------------------------

__device__ inline float shuffle(float x, int lanes) { return __shfl_xor_sync(kFullWarp, x, lanes); }

__device__ inline AtomMaximum<float> shuffle(const AtomMaximum<float>& m, int lanes) {
  AtomMaximum<float> other;
  other.highest = shuffle(m.highest, lanes);
  return other;
}
__device__ inline AtomSums<float> shuffle(const AtomSums<float>& s, int lanes) {
  return {shuffle(s.mass, lanes), shuffle(s.value, lanes)};
}
// The flags are voted on by merge_four_lanes.
__device__ inline ActionMaximum<float> shuffle(const ActionMaximum<float>& m, int lanes) {
  ActionMaximum<float> other;
  other.value = shuffle(m.value, lanes);
  other.logit = shuffle(m.logit, lanes);
  other.value_sum = shuffle(m.value_sum, lanes);
  other.legal = shuffle(m.legal, lanes);
  return other;
}
__device__ inline ActionVariance<float> shuffle(const ActionVariance<float>& v, int lanes) {
  ActionVariance<float> other;
  other.squares = shuffle(v.squares, lanes);
  return other;
}
__device__ inline ActionSums<float> shuffle(const ActionSums<float>& s, int lanes) {
  ActionSums<float> other;
  other.target_mass = shuffle(s.target_mass, lanes);
  other.policy_mass = shuffle(s.policy_mass, lanes);
  other.cross = shuffle(s.cross, lanes);
  return other;
}

__device__ inline bool four_lanes_all(bool mine) {
  const unsigned votes = __ballot_sync(kFullWarp, mine);
  const unsigned quad = 0xfu << (threadIdx.x % 32 / kPartials * kPartials);
  return (votes & quad) == quad;
}

template <class Accumulator>
__device__ void merge_four_lanes(Accumulator& mine) {
  mine.merge(shuffle(mine, 1));
  mine.merge(shuffle(mine, 2));
}

__device__ inline void merge_four_lanes(ActionMaximum<float>& mine) {
  const bool usable = four_lanes_all(mine.usable), support_usable = four_lanes_all(mine.support_usable);
  mine.merge(shuffle(mine, 1));
  mine.merge(shuffle(mine, 2));
  mine.usable = usable;
  mine.support_usable = support_usable;
}

// ---- a row ---------------------------------------------------------------------------------------------------------

// What the gradient of a row needs once its actions have been reduced.
struct RowScales {
  float gradient;  // lam * scale * weight; 0: nothing is added
  float target;    // 1 / sum e^u
  float policy;    // 1 / sum e^x'
};

// Four adjacent lanes work on a row; every lane of the warp must call these. values[a] and logits[a] hold expected
// values and policy logits (-inf: illegal). Loops are not unrolled: they are short, and a small batch waits for its
// instructions.
struct RowShape {
  ActionMaximum<float> maximum;
  float variance;
  float sharpness;
};

__device__ inline RowShape measure_row(const float* values, const float* logits, int actions,
                                       const StepNumbers& numbers) {
  const int lane = threadIdx.x % kPartials;
  RowShape row;
#pragma unroll 1
  for (int a = lane; a < actions; a += kPartials) row.maximum.add(values[a], logits[a]);
  merge_four_lanes(row.maximum);
  const float inverse_legal = 1.0f / row.maximum.legal;
  const float mean = row.maximum.value_sum * inverse_legal;

  ActionVariance<float> squares;
#pragma unroll 1
  for (int a = lane; a < actions; a += kPartials) squares.add(values[a], logits[a], mean);
  merge_four_lanes(squares);
  row.variance = squares.squares * inverse_legal;
  row.sharpness = inverse_temperature(numbers.tau, value_std(row.variance, numbers.std, numbers.own_std));
  return row;
}

__device__ inline RowShare close_row(const RowShape& row, const ActionSums<float>& sums, float weight,
                                     const StepNumbers& numbers, RowScales* scales) {
  const RowStatus status = row_status(row.maximum.usable, row.maximum.legal > 0.0f, row.maximum.support_usable, weight,
                                      numbers.gradient_scale);
  scales->gradient = status == RowStatus::kCounted ? numbers.gradient_scale * weight : 0.0f;
  scales->target = 1.0f / sums.target_mass;
  scales->policy = 1.0f / sums.policy_mass;
  return row_share(status, weight, kl_divergence(sums, scales->target), row.variance, numbers.kl_row_max);
}

// Both, with the weights in between: on return values[a] and logits[a] hold the unnormalised target and policy.
__device__ inline RowShare reduce_row(float* values, float* logits, int actions, float weight,
                                      const StepNumbers& numbers, RowScales* scales) {
  const RowShape row = measure_row(values, logits, actions, numbers);
  ActionSums<float> sums;
#pragma unroll 1
  for (int a = threadIdx.x % kPartials; a < actions; a += kPartials) {
    const ActionWeights<float> w =
        weigh_action(values[a], logits[a], row.maximum.value, row.maximum.logit, row.sharpness);
    sums.add(w);
    values[a] = w.target;
    logits[a] = w.policy;
  }
  merge_four_lanes(sums);
  return close_row(row, sums, weight, numbers, scales);
}

// The gradient of one action. `before()` reads what the buffer holds; it is called only where that matters.
template <class Before>
__device__ inline void update_gradient(const RowsArgs& args, int64_t i, const RowScales& scales, float target,
                                       float policy, Before before) {
  if (scales.gradient != 0.0f && policy >= 0.0f) {
    const float step = policy_minus_target(policy, scales.policy, target, scales.target);
    store_element(args.pi_grad, args.grad_dtype, i, lane_fma(scales.gradient, step, args.write ? 0.0f : before()));
  } else if (args.write) {
    store_element(args.pi_grad, args.grad_dtype, i, 0.0f);
  }
}

// ---- a tile --------------------------------------------------------------------------------------------------------

// A warp's share of one slot: the sums of a tile are spread over three lanes, its counts are in all of them.
struct TileSum {
  double sum = 0.0;  // lane 0: weighted_kl, lane 1: weight, lane 2: weighted_variance
  uint32_t rows = 0, skipped = 0, clipped = 0;
  uint32_t faults = 0;

  // Eight rows, row i in the lanes i * stride .. ; with a stride of 1 they repeat every 8 lanes. Pairwise over the
  // rows. `which` of the three sums this lane keeps. Every lane of the warp must call this.
  __device__ void add_tile(const RowShare& row, int stride, int which, bool counts) {
    double mine = row.sum(which);
    for (int lanes = stride; lanes < kTileRows * stride; lanes *= 2) mine += __shfl_xor_sync(kFullWarp, mine, lanes);
    sum += mine;
    rows += __popc(__ballot_sync(kFullWarp, counts && row.counted));
    skipped += __popc(__ballot_sync(kFullWarp, counts && row.skipped));
    clipped += __popc(__ballot_sync(kFullWarp, counts && row.clipped));
    for (const uint32_t bit : {QPI_FAULT_WEIGHT, QPI_FAULT_SUPPORT})
      faults |= __any_sync(kFullWarp, (row.faults & bit) != 0) ? bit : 0;
  }

  // Lanes 0 to 2 have the sums.
  __device__ void store(StatSlot* slot, int lane) const {
    if (lane == 0) {
      slot->weighted_kl = sum;
      slot->rows = rows;
      slot->skipped = skipped;
      slot->clipped = clipped;
      slot->faults = faults;
    } else if (lane == 1) {
      slot->weight = sum;
    } else if (lane == 2) {
      slot->weighted_variance = sum;
    }
  }
};

// item / divisor for 0 <= item < 2^21, with the reciprocal of the divisor at hand.
__device__ inline int quotient(int item, float reciprocal) {
  return static_cast<int>((static_cast<float>(item) + 0.5f) * reciprocal);
}

}  // namespace qpi::gpu
