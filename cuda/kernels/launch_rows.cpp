// Loading and launching: which function serves a launch, and its attributes.
#include <cuda_runtime.h>

#include "launch.h"
#include "rows_kernels.cuh"

namespace qpi::gpu {

namespace {

const void* rows_kernel(qpi_kernel kernel, qpi_dtype q_dtype, int64_t atoms, bool plain) {
  if (kernel == QPI_KERNEL_BLOCK) return block_kernel();
  return kernel == QPI_KERNEL_TILE ? tile_kernel(q_dtype, atoms, plain) : stream_kernel();
}

int load(const void* function) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, function);
}

}  // namespace

int load_kernels(size_t shared_bytes, int64_t atoms, bool plain, bool large_clusters) {
  if (const int error = load(stream_kernel())) return error;
  for (const void* kernel : {tile_kernel(QPI_FLOAT32, atoms, plain), tile_kernel(QPI_FLOAT16, atoms, plain),
                             tile_kernel(QPI_BFLOAT16, atoms, plain), block_kernel()}) {
    if (const int error = load(kernel)) return error;
    if (const int error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)))
      return error;
  }
  if (large_clusters) {
    // Where a GPU does not have them, cluster_fits will say so.
    if (cudaFuncSetAttribute(block_kernel(), cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess)
      cudaGetLastError();
  }
  for (const void* const* kernel = kCommitKernels; *kernel != nullptr; ++kernel) {
    if (const int error = load(*kernel)) return error;
  }
  for (const void* const* kernel = kSeedKernels; *kernel != nullptr; ++kernel) {
    if (const int error = load(*kernel)) return error;
  }
  return cudaSuccess;
}

int blocks_per_multiprocessor(const RowsLaunch& launch, qpi_dtype q_dtype, int64_t atoms, bool plain, int* blocks) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, rows_kernel(launch.kernel, q_dtype, atoms, plain),
                                                       launch.threads, launch.shared_bytes);
}

int launch_rows(const RowsArgs& args, const FinishArgs& finish, const RowsLaunch& launch, void* stream) {
  void* rows = const_cast<RowsArgs*>(&args);
  void* of_block[] = {rows, const_cast<FinishArgs*>(&finish), const_cast<BlockLaunch*>(&launch.block)};
  void* of_tile[] = {rows, const_cast<TileLaunch*>(&launch.tile)};
  void* of_stream[] = {rows};
  void** arguments = launch.kernel == QPI_KERNEL_BLOCK  ? of_block
                     : launch.kernel == QPI_KERNEL_TILE ? of_tile
                                                        : of_stream;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(launch.blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(launch.blocks);
  config.blockDim = dim3(launch.threads);
  config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &cluster;
  config.numAttrs = launch.block.whole && launch.blocks > 1 ? 1 : 0;
  return cudaLaunchKernelExC(&config, rows_kernel(launch.kernel, args.q_dtype, args.atoms, args.family.plain),
                             arguments);
}

int cluster_fits(const RowsLaunch& launch, qpi_dtype q_dtype, int64_t atoms, bool* fits) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(launch.blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(launch.blocks);
  config.blockDim = dim3(launch.threads);
  config.dynamicSmemBytes = launch.shared_bytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  const cudaError_t error =
      cudaOccupancyMaxActiveClusters(&clusters, rows_kernel(launch.kernel, q_dtype, atoms, true), &config);
  *fits = error == cudaSuccess && clusters > 0;
  // Some GPUs know no clusters of this size at all.
  if (error == cudaErrorInvalidClusterSize) {
    cudaGetLastError();
    return cudaSuccess;
  }
  return error;
}

}  // namespace qpi::gpu
