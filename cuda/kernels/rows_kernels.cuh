// The rows kernels by dtype of q_logits; launchers.cu starts them.
#pragma once

#include <qpi_distill.h>

namespace qpi::gpu {

constexpr int kStreamThreads = 256;
constexpr int kTileMaxThreads = 512;

const void* stream_kernel(qpi_dtype q_dtype);
const void* tile_kernel(qpi_dtype q_dtype);

// The other kernels of the library, for loading them ahead; the lists end with NULL.
extern const void* const kCommitKernels[];
extern const void* const kSeedKernels[];

}  // namespace qpi::gpu
