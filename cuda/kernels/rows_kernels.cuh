// The rows kernels, where there are several by dtype of q_logits and number of atoms; launch_rows.cpp starts them.
#pragma once

#include <qpi_distill.h>

namespace qpi::gpu {

constexpr int kStreamThreads = 256;
constexpr int kBlockMaxThreads = 704;
constexpr int kBlockMaxActions = 20;
constexpr int kBlockMaxRows = 64;
constexpr int kMaxClusterBlocks = 16;

const void* stream_kernel();
const void* tile_kernel(qpi_dtype q_dtype, int64_t atoms, bool plain);
const void* block_kernel();

// The other kernels of the library, for loading them ahead; the lists end with NULL.
extern const void* const kCommitKernels[];
extern const void* const kSeedKernels[];

}  // namespace qpi::gpu
