// What the rows kernels share: element access, four lanes working on a row, and a tile's share of the statistic.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define QPI_ISA device
#include "../math/control_laws.h"

namespace qpi::gpu {

constexpr unsigned kFullWarp = 0xffffffffu;

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
__device__ inline bool shuffle(bool x, int lanes) { return __shfl_xor_sync(kFullWarp, static_cast<int>(x), lanes) != 0; }

__device__ inline AtomMaximum<float> shuffle(const AtomMaximum<float>& m, int lanes) {
  AtomMaximum<float> other;
  other.highest = shuffle(m.highest, lanes);
  other.usable = shuffle(m.usable, lanes);
  return other;
}
__device__ inline AtomSums<float> shuffle(const AtomSums<float>& s, int lanes) {
  return {shuffle(s.mass, lanes), shuffle(s.value, lanes)};
}
__device__ inline ActionMaximum<float> shuffle(const ActionMaximum<float>& m, int lanes) {
  ActionMaximum<float> other;
  other.value = shuffle(m.value, lanes);
  other.logit = shuffle(m.logit, lanes);
  other.value_sum = shuffle(m.value_sum, lanes);
  other.legal = shuffle(m.legal, lanes);
  other.usable = shuffle(m.usable, lanes);
  other.support_usable = shuffle(m.support_usable, lanes);
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

template <class Accumulator>
__device__ void merge_four_lanes(Accumulator& mine) {
  mine.merge(shuffle(mine, 1));
  mine.merge(shuffle(mine, 2));
}

// ---- a row ---------------------------------------------------------------------------------------------------------

// What the gradient of a row needs once its actions have been reduced.
struct RowScales {
  float gradient;  // lam * scale * weight; 0: nothing is added
  float target;    // 1 / sum e^u
  float policy;    // 1 / sum e^x'
};

// Four adjacent lanes reduce a row; every lane of the warp must call this. On entry values[a] and logits[a] hold
// expected values and policy logits (-inf: illegal); on return the unnormalised target and policy (-1: illegal).
__device__ inline qpi_record reduce_row(float* values, float* logits, int actions, float weight,
                                        const StepNumbers& numbers, RowScales* scales) {
  const int lane = threadIdx.x % kPartials;

  ActionMaximum<float> maximum;
  for (int a = lane; a < actions; a += kPartials) maximum.add(values[a], logits[a]);
  merge_four_lanes(maximum);
  const float mean = maximum.value_sum / maximum.legal;

  ActionVariance<float> squares;
  for (int a = lane; a < actions; a += kPartials) squares.add(values[a], logits[a], mean);
  merge_four_lanes(squares);
  const float variance = squares.squares / maximum.legal;
  const float divisor = target_divisor(numbers.tau, value_std(variance, numbers.std, numbers.own_std));

  ActionSums<float> sums;
  for (int a = lane; a < actions; a += kPartials) {
    const ActionWeights<float> w = sums.add(values[a], logits[a], maximum.value, maximum.logit, divisor);
    values[a] = w.target;
    logits[a] = w.policy;
  }
  merge_four_lanes(sums);

  const RowStatus status = row_status(maximum.usable, maximum.legal > 0.0f, maximum.support_usable, weight);
  scales->gradient = status == RowStatus::kCounted ? numbers.gradient_scale * weight : 0.0f;
  scales->target = 1.0f / sums.target_mass;
  scales->policy = 1.0f / sums.policy_mass;
  return row_share(status, weight, kl_divergence(sums), variance, numbers.kl_row_max);
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

// ---- a tile ----------------------------------------------------------------------------------------------------------

__device__ inline double shuffle(double x, int lanes) { return __shfl_xor_sync(kFullWarp, x, lanes); }
__device__ inline int64_t shuffle(int64_t x, int lanes) {
  return __shfl_xor_sync(kFullWarp, static_cast<long long>(x), lanes);
}

__device__ inline qpi_record shuffle(const qpi_record& r, int lanes) {
  qpi_record other{};
  other.weighted_kl = shuffle(r.weighted_kl, lanes);
  other.weight = shuffle(r.weight, lanes);
  other.weighted_variance = shuffle(r.weighted_variance, lanes);
  other.rows = shuffle(r.rows, lanes);
  other.skipped = shuffle(r.skipped, lanes);
  other.clipped = shuffle(r.clipped, lanes);
  other.faults = __shfl_xor_sync(kFullWarp, r.faults, lanes);
  return other;
}

// Eight rows, one in every `stride` lanes, added up pairwise. Every lane of the warp must call this.
__device__ inline qpi_record fold_tile(qpi_record row, int stride) {
  for (int lanes = stride; lanes < kTileRows * stride; lanes *= 2) add_record(row, shuffle(row, lanes));
  return row;
}

}  // namespace qpi::gpu
