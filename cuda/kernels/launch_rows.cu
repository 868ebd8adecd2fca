// Loading and launching: which function serves a launch, and its attributes.
#include <cuda_runtime.h>

#include "launch.h"
#include "rows_kernels.cuh"

namespace qpi::gpu {

namespace {

const void* rows_kernel(qpi_kernel kernel, qpi_dtype q_dtype, int64_t atoms) {
  if (kernel == QPI_KERNEL_BLOCK) return block_kernel(q_dtype, atoms);
  return kernel == QPI_KERNEL_TILE ? tile_kernel(q_dtype, atoms) : stream_kernel(q_dtype);
}

int load(const void* function) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, function);
}

}  // namespace

int load_kernels(size_t shared_bytes, int64_t atoms) {
  for (const qpi_dtype dtype : {QPI_FLOAT32, QPI_FLOAT16, QPI_BFLOAT16}) {
    if (const int error = load(stream_kernel(dtype))) return error;
    for (const void* kernel : {tile_kernel(dtype, atoms), block_kernel(dtype, atoms)}) {
      if (const int error = load(kernel)) return error;
      if (const int error =
              cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)))
        return error;
    }
  }
  for (const void* const* kernel = kCommitKernels; *kernel != nullptr; ++kernel) {
    if (const int error = load(*kernel)) return error;
  }
  for (const void* const* kernel = kSeedKernels; *kernel != nullptr; ++kernel) {
    if (const int error = load(*kernel)) return error;
  }
  return cudaSuccess;
}

int blocks_per_multiprocessor(const RowsLaunch& launch, qpi_dtype q_dtype, int64_t atoms, int* blocks) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, rows_kernel(launch.kernel, q_dtype, atoms),
                                                       launch.threads, launch.shared_bytes);
}

int launch_rows(const RowsArgs& args, const FinishArgs& finish, const RowsLaunch& launch, void* stream) {
  // The block kernel takes both, the others the first.
  void* arguments[] = {const_cast<RowsArgs*>(&args), const_cast<FinishArgs*>(&finish)};
  return cudaLaunchKernel(rows_kernel(launch.kernel, args.q_dtype, args.atoms), dim3(launch.blocks),
                          dim3(launch.threads), arguments, launch.shared_bytes, static_cast<cudaStream_t>(stream));
}

}  // namespace qpi::gpu
