// The rows kernels by dtype of q_logits (and, where there is a kernel for it, by number of atoms); launch_rows.cu
// starts them.
#pragma once

#include <qpi_distill.h>

namespace qpi::gpu {

constexpr int kStreamThreads = 256;
constexpr int kBlockMaxThreads = 704;
constexpr int kBlockMaxActions = 20;
constexpr int kBlockMaxRows = 64;
constexpr int kMaxClusterBlocks = 16;

const void* stream_kernel(qpi_dtype q_dtype);
const void* tile_kernel(qpi_dtype q_dtype, int64_t atoms);
const void* block_kernel(qpi_dtype q_dtype, int64_t atoms);

// The other kernels of the library, for loading them ahead; the lists end with NULL.
extern const void* const kCommitKernels[];
extern const void* const kSeedKernels[];

}  // namespace qpi::gpu
