// Loading and launching: which function serves a launch, and its attributes.
#include <cuda_runtime.h>

#include "launch.h"
#include "rows_kernels.cuh"

namespace qpi::gpu {

namespace {

const void* rows_kernel(qpi_kernel kernel, qpi_dtype q_dtype, int64_t atoms, bool plain,
                        BlockCall call = BlockCall::kAny) {
  if (kernel == QPI_KERNEL_BLOCK) return block_kernel(call);
  return kernel == QPI_KERNEL_TILE ? tile_kernel(q_dtype, atoms, plain) : stream_kernel();
}

// A launch as the runtime wants it; not to be moved, because it points into itself.
struct Launch {
  cudaLaunchAttribute cluster{};
  cudaLaunchConfig_t config{};

  Launch(const RowsLaunch& launch, bool clustered) {
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(launch.blocks), 1, 1};
    config.gridDim = dim3(launch.blocks);
    config.blockDim = dim3(launch.threads);
    config.dynamicSmemBytes = launch.shared_bytes;
    config.attrs = &cluster;
    config.numAttrs = clustered ? 1 : 0;
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
};

int load(const void* function) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, function);
}

}  // namespace

int load_kernels(size_t shared_bytes, int64_t atoms, bool plain, bool large_clusters) {
  const auto load_with = [&](const void* kernel) -> int {
    if (const int error = load(kernel)) return error;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  };
  if (const int error = load(stream_kernel())) return error;
  for (const qpi_dtype dtype : {QPI_FLOAT32, QPI_FLOAT16, QPI_BFLOAT16}) {
    if (const int error = load_with(tile_kernel(dtype, atoms, plain))) return error;
  }
  for (const BlockCall call : kBlockCalls) {
    if (const int error = load_with(block_kernel(call))) return error;
    // Where a GPU does not have large clusters, cluster_fits will say so.
    if (large_clusters &&
        cudaFuncSetAttribute(block_kernel(call), cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess)
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
  void* of_block[] = {const_cast<BlockLaunch*>(&launch.block), const_cast<FinishArgs*>(&finish), rows};
  void* of_tile[] = {rows, const_cast<TileLaunch*>(&launch.tile)};
  void* of_stream[] = {rows};
  void** arguments = launch.kernel == QPI_KERNEL_BLOCK  ? of_block
                     : launch.kernel == QPI_KERNEL_TILE ? of_tile
                                                        : of_stream;
  Launch how(launch, launch.block.whole && launch.blocks > 1);
  how.config.stream = static_cast<cudaStream_t>(stream);
  const BlockCall call = launch.kernel == QPI_KERNEL_BLOCK ? block_call(args, finish, launch.block) : BlockCall::kAny;
  return cudaLaunchKernelExC(&how.config, rows_kernel(launch.kernel, args.q_dtype, args.atoms, args.family.plain, call),
                             arguments);
}

int cluster_fits(const RowsLaunch& launch, qpi_dtype q_dtype, int64_t atoms, bool* fits) {
  const Launch how(launch, true);
  int clusters = 0;
  const cudaError_t error =
      cudaOccupancyMaxActiveClusters(&clusters, rows_kernel(launch.kernel, q_dtype, atoms, true), &how.config);
  *fits = error == cudaSuccess && clusters > 0;
  // Some GPUs know no clusters of this size at all.
  if (error == cudaErrorInvalidClusterSize) {
    cudaGetLastError();
    return cudaSuccess;
  }
  return error;
}

}  // namespace qpi::gpu
