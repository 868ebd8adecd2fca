// The rows kernels, where there are several by dtype of q_logits and number of atoms; launch_rows.cpp starts them.
#pragma once

#include "launch.h"

namespace qpi::gpu {

constexpr int kStreamThreads = 256;
constexpr int kBlockMaxThreads = 768;
constexpr int kBlockHelpers = 64;  // of them, with other work than rows
constexpr int kBlockMaxActions = 20;
constexpr int kBlockMaxRows = 64;
constexpr int kMaxClusterBlocks = 16;

const void* stream_kernel();
const void* tile_kernel(qpi_dtype q_dtype, int64_t atoms, bool plain);

// Kernels for calls of one kind know most of their arguments when they are compiled.
enum class BlockCall { kAny, kCommonStep, kCommonRows };
constexpr BlockCall kBlockCalls[] = {BlockCall::kAny, BlockCall::kCommonStep, BlockCall::kCommonRows};
const void* block_kernel(BlockCall call);
BlockCall block_call(const RowsArgs& rows, const FinishArgs& finish, const BlockLaunch& launch);

// The other kernels of the library, for loading them ahead; the lists end with NULL.
extern const void* const kCommitKernels[];
extern const void* const kSeedKernels[];

}  // namespace qpi::gpu
