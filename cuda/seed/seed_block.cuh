// A thread block's part of the seed's gradient kernel, for any grid and block: blocks share out the rows, threads the
// actions. Under the seed's own launch shape each block has one row and each thread one action.
#pragma once

#include "seed_row.h"

namespace qpi::seed {

__device__ inline int64_t linear_block() {
  return blockIdx.x + static_cast<int64_t>(gridDim.x) * (blockIdx.y + static_cast<int64_t>(gridDim.y) * blockIdx.z);
}
__device__ inline int linear_thread() {
  return static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}

__device__ inline void distill_grad_block(const float* __restrict__ q_logits, const float* __restrict__ pi_logits,
                                          const float* __restrict__ supports, float* __restrict__ isv,
                                          float* __restrict__ pi_grad, int64_t rows) {
  __shared__ float values[kActions];
  __shared__ float logits[kActions];
  const int64_t blocks = static_cast<int64_t>(gridDim.x) * gridDim.y * gridDim.z;
  const int threads = static_cast<int>(blockDim.x * blockDim.y * blockDim.z);
  const float lambda = isv[kLambda];
  const float temperature = safe_temperature(isv);

  for (int64_t row = linear_block(); row < rows; row += blocks) {
    for (int a = linear_thread(); a < kActions; a += threads) {
      values[a] = expected_value(q_logits + (row * kActions + a) * kAtoms, supports);
      logits[a] = pi_logits[row * kActions + a];
    }
    __syncthreads();
    if (linear_thread() < kActions) {
      float target[kActions], policy[kActions];
      action_softmax(values, temperature, target);
      action_softmax(logits, 1.0f, policy);
      if (lambda > 0.0f) {
#pragma unroll
        for (int a = 0; a < kActions; ++a) {
          if (a % threads == linear_thread()) pi_grad[row * kActions + a] += lambda * (policy[a] - target[a]);
        }
      }
      if (row == 0 && linear_thread() == 0) update_kl_ema(isv, kl_divergence(target, policy));
    }
    __syncthreads();
  }
}

}  // namespace qpi::seed
