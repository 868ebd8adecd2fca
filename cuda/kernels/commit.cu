// The small kernels: the end of a step, and the calls that touch nothing but the state.
//
// finish: one block folds the slots (56 bytes each, 4224 at most) in a fixed tree; its first thread runs the moving
// averages and the law. Latency is all there is to it.
#include <cuda_runtime.h>

#include "device_rows.cuh"
#include "launch.h"
#include "rows_kernels.cuh"

namespace qpi::gpu {

namespace {

constexpr int kWarps = kFoldLanes / 32;

__device__ qpi_record fold_warp(qpi_record mine, int width) {
  for (int lanes = 1; lanes < width; lanes *= 2) add_record(mine, shuffle(mine, lanes));
  return mine;
}

__global__ void __launch_bounds__(kFoldLanes) finish_kernel(const __grid_constant__ FinishArgs args) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  __shared__ qpi_record of_warp[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const qpi_record warp_sum = fold_warp(fold_lane(args.slots, slots_in_use(args.rows), threadIdx.x), 32);
  if (lane == 0) of_warp[warp] = warp_sum;
  __syncthreads();
  if (warp == 0) {
    const qpi_record total = fold_warp(of_warp[lane % kWarps], kWarps);
    if (lane == 0) finish(args, total);
  }
}

__global__ void commit_kernel(const __grid_constant__ IsvSpan isv, qpi_record* record, CommitParts parts) {
  commit(IsvView(isv), record, parts);
}

__global__ void control_kernel(const __grid_constant__ IsvSpan isv) { control_alone(IsvView(isv)); }

__global__ void discard_kernel(qpi_record* record) { *record = qpi_record{}; }

__global__ void clear_faults_kernel(const __grid_constant__ IsvSpan isv) {
  IsvView(isv).set_bits<QPI_SLOT_faults>(0);
}

__global__ void reset_kernel(const __grid_constant__ IsvSpan isv, qpi_record* record, ResetParts parts) {
  if (record != nullptr) *record = qpi_record{};
  reset(IsvView(isv), parts);
}

}  // namespace

int launch_finish(const FinishArgs& args, bool overlap, void* stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(kFoldLanes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, finish_kernel, args);
}

// One thread on `stream`.
template <class... Parameters, class... Arguments>
static int launch_single(void (*kernel)(Parameters...), void* stream, Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(1);
  config.stream = static_cast<cudaStream_t>(stream);
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

int launch_commit(const IsvSpan& isv, qpi_record* record, CommitParts parts, void* stream) {
  return launch_single(commit_kernel, stream, isv, record, parts);
}
int launch_control(const IsvSpan& isv, void* stream) { return launch_single(control_kernel, stream, isv); }
int launch_discard(qpi_record* record, void* stream) { return launch_single(discard_kernel, stream, record); }
int launch_clear_faults(const IsvSpan& isv, void* stream) { return launch_single(clear_faults_kernel, stream, isv); }
int launch_reset(const IsvSpan& isv, qpi_record* record, ResetParts parts, void* stream) {
  return launch_single(reset_kernel, stream, isv, record, parts);
}

const void* const kCommitKernels[] = {
    reinterpret_cast<const void*>(finish_kernel),  reinterpret_cast<const void*>(commit_kernel),
    reinterpret_cast<const void*>(control_kernel), reinterpret_cast<const void*>(discard_kernel),
    reinterpret_cast<const void*>(clear_faults_kernel), reinterpret_cast<const void*>(reset_kernel),
    nullptr,
};

}  // namespace qpi::gpu
