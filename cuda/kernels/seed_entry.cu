// The seed semantics for callers of the C ABI; the kernels' bodies are those of the fatbin.
#include <cuda_runtime.h>

#include "../seed/seed_block.cuh"
#include "launch.h"
#include "rows_kernels.cuh"

namespace qpi::gpu {

namespace {

constexpr int kSeedThreads = 32;
constexpr int64_t kSeedMaxBlocks = 1 << 20;

__global__ void __launch_bounds__(kSeedThreads)
    seed_grad_kernel(const float* __restrict__ q_logits, const float* __restrict__ pi_logits,
                     const float* __restrict__ supports, float* __restrict__ isv, float* __restrict__ pi_grad,
                     int64_t rows) {
  seed::distill_grad_block(q_logits, pi_logits, supports, isv, pi_grad, rows);
}

__global__ void seed_controller_kernel(float* __restrict__ isv) { seed::lambda_controller(isv); }

}  // namespace

int launch_seed_grad(const float* q_logits, const float* pi_logits, const float* atom_supports, float* isv,
                     float* pi_grad_logits, int64_t rows, void* stream) {
  void* arguments[] = {&q_logits, &pi_logits, &atom_supports, &isv, &pi_grad_logits, &rows};
  const auto blocks = static_cast<unsigned>(rows < kSeedMaxBlocks ? rows : kSeedMaxBlocks);
  return cudaLaunchKernel(reinterpret_cast<const void*>(seed_grad_kernel), dim3(blocks), dim3(kSeedThreads), arguments,
                          0, static_cast<cudaStream_t>(stream));
}

int launch_seed_controller(float* isv, void* stream) {
  void* arguments[] = {&isv};
  return cudaLaunchKernel(reinterpret_cast<const void*>(seed_controller_kernel), dim3(1), dim3(1), arguments, 0,
                          static_cast<cudaStream_t>(stream));
}

const void* const kSeedKernels[] = {
    reinterpret_cast<const void*>(seed_grad_kernel),
    reinterpret_cast<const void*>(seed_controller_kernel),
    nullptr,
};

}  // namespace qpi::gpu
