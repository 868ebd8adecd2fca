// The small kernels: the end of a step, and the calls that touch nothing but the state.
//
// finish: one block folds the slots (40 bytes each, 3168 at most) in a fixed tree; its first thread runs the moving
// averages and the law. Latency is all there is to it. A summary is folded before that, by a launch of its own: the
// step that has none must not pay for it.
#include <cuda_runtime.h>

#include "device_finish.cuh"
#include "launch.h"
#include "rows_kernels.cuh"

namespace qpi::gpu {

namespace {

__global__ void __launch_bounds__(kFoldLanes)
    finish_kernel(const __grid_constant__ FinishArgs args, const __grid_constant__ IsvWords words) {
  __shared__ SharedIsv isv;
  __shared__ StatTotal of_warp[kWarp];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
  // Before this, nothing may be read: not even the ISV, which the rows kernel leaves alone. What an earlier grid wrote
  // is sure to be seen only after the wait.
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  const bool last_word = warp == 0;
  const FinishLoads loads(args, words, last_word);
  // The launch has a thread for each lane of the tree that is in use; the rest of the tree would add zeros.
  StatTotal sum = fold_lane(args.slots, args.slots_in_use, threadIdx.x);
  StepNumbers numbers;
  LamStart lam;
  if (last_word) {
    loads.store(isv);
    __syncwarp();
    const IsvImage image = isv.image(words);
    numbers = check_step_input(load_step_input(image, args.grad_scale), args.running_std, args.reduction_scale);
    lam = start_lam(image);
  }
  sum = fold_warp(sum, kWarp);
  if (lane == 0) of_warp[warp] = sum;
  __syncthreads();
  if (!last_word) return;
  finish_by_warp(args, words, numbers, lam, loads, isv, fold_warp(lane < warps ? of_warp[lane] : StatTotal{}, warps));
}

// The slots of a summary, in the tree of the statistic.
__global__ void __launch_bounds__(kFoldLanes)
    summary_kernel(const qpi_summary* __restrict__ slots, int in_use, qpi_summary* to) {
  __shared__ qpi_summary of_warp[kWarp];
  const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const qpi_summary mine = merge_summaries(fold_summary_lane(slots, in_use, threadIdx.x), 1, kWarp);
  if (threadIdx.x % kWarp == 0) of_warp[warp] = mine;
  __syncthreads();
  if (warp == 0) {
    const int lane = threadIdx.x;
    const qpi_summary sum = merge_summaries(lane < warps ? of_warp[lane] : qpi_summary{}, 1, warps);
    if (lane == 0) *to = sum;
  }
}

// Runs `body` on the ISV in thread 0.
template <class Body>
__device__ void with_image(const IsvWords& isv, Body body) {
  __shared__ SharedIsv shared;
  for (int i = threadIdx.x; i < kNativeWords; i += blockDim.x) shared.word[i] = shared.before[i] = *isv.at(i);
  __syncthreads();
  if (threadIdx.x == 0) body(shared.image(isv));
  __syncthreads();
  shared.scatter(isv, threadIdx.x, blockDim.x);
}

__global__ void commit_kernel(const __grid_constant__ IsvWords isv, qpi_record* record, CommitParts parts) {
  with_image(isv, [&](const IsvImage& image) { commit_record(image, record, parts); });
}

__global__ void control_kernel(const __grid_constant__ IsvWords isv) {
  with_image(isv, [](const IsvImage& image) { control_alone(image); });
}

__global__ void discard_kernel(qpi_record* record) { *record = qpi_record{}; }

__global__ void clear_faults_kernel(const __grid_constant__ IsvWords isv) { clear_faults(isv); }

__global__ void reset_kernel(const __grid_constant__ IsvWords isv, Workspace* workspace, ResetParts parts) {
  if (workspace != nullptr) clear_state(*workspace);
  write_defaults(isv, parts);
}

}  // namespace

int finish_may_overlap(bool* may) {
  cudaFuncAttributes attributes{};
  const int error = cudaFuncGetAttributes(&attributes, finish_kernel);
  *may = attributes.ptxVersion >= 90;  // what __CUDA_ARCH__ was, also of code that the driver compiled
  return error;
}

// Threads for the tree's lanes in use.
static unsigned fold_threads(int slots_in_use) {
  unsigned threads = 64;
  while (threads < kFoldLanes && static_cast<int>(threads) < slots_in_use) threads *= 2;
  return threads;
}

int launch_finish(const IsvWords& isv, const FinishArgs& args, bool overlap, void* stream) {
  const unsigned threads = fold_threads(args.slots_in_use);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(threads);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, finish_kernel, args, isv);
}

// One block of `threads` on `stream`.
template <class... Parameters, class... Arguments>
static int launch_single(void (*kernel)(Parameters...), unsigned threads, void* stream, Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(threads);
  config.stream = static_cast<cudaStream_t>(stream);
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

// A thread for each word of the ISV.
static constexpr unsigned kImageThreads = (kNativeWords + kWarp - 1) / kWarp * kWarp;

int launch_summary(const FinishArgs& args, void* stream) {
  return launch_single(summary_kernel, fold_threads(args.slots_in_use), stream, args.summary_slots, args.slots_in_use,
                       args.summary);
}
int launch_commit(const IsvWords& isv, qpi_record* record, CommitParts parts, void* stream) {
  return launch_single(commit_kernel, kImageThreads, stream, isv, record, parts);
}
int launch_control(const IsvWords& isv, void* stream) {
  return launch_single(control_kernel, kImageThreads, stream, isv);
}
int launch_discard(qpi_record* record, void* stream) { return launch_single(discard_kernel, 1, stream, record); }
int launch_clear_faults(const IsvWords& isv, void* stream) {
  return launch_single(clear_faults_kernel, 1, stream, isv);
}
int launch_reset(const IsvWords& isv, Workspace* workspace, ResetParts parts, void* stream) {
  return launch_single(reset_kernel, 1, stream, isv, workspace, parts);
}

const void* const kCommitKernels[] = {
    reinterpret_cast<const void*>(finish_kernel),  reinterpret_cast<const void*>(summary_kernel),
    reinterpret_cast<const void*>(commit_kernel),  reinterpret_cast<const void*>(control_kernel),
    reinterpret_cast<const void*>(discard_kernel), reinterpret_cast<const void*>(clear_faults_kernel),
    reinterpret_cast<const void*>(reset_kernel),   nullptr,
};

}  // namespace qpi::gpu
