// What the host side may ask of the kernels. Every function enqueues and returns a cudaError_t as int.
#pragma once

#include <cstddef>

#include "../math/state.h"

namespace qpi::gpu {

// The block kernel's share of the work.
struct BlockLaunch {
  int rows;    // of a block: a tile or, in a whole step, two
  bool whole;  // one cluster does the whole step; else the finish kernel has to follow
};

// The tile kernel's way of fetching.
struct TileLaunch {
  int chunk_items;  // (row, action) pairs in one copy
  int buffers;      // copies under way
};

// How the rows kernel of one call is launched. The choice never changes the results.
struct RowsLaunch {
  qpi_kernel kernel;
  int blocks;
  int threads;
  size_t shared_bytes;  // dynamic shared memory
  TileLaunch tile;      // of the tile kernel
  BlockLaunch block;    // of the block kernel
};

// Load every kernel that a plan with this many atoms may use on the current device, and let those that want
// it use `shared_bytes` of dynamic shared memory.
// With `large_clusters`, clusters of more than eight blocks too.
int load_kernels(size_t shared_bytes, int64_t atoms, bool plain, bool large_clusters);

// Blocks of this launch that fit on one multiprocessor of the current device.
int blocks_per_multiprocessor(const RowsLaunch& launch, qpi_dtype q_dtype, int64_t atoms, bool plain, int* blocks);

// Does the GPU have room for this launch as one cluster?
int cluster_fits(const RowsLaunch& launch, qpi_dtype q_dtype, int64_t atoms, bool* fits);

// Where `launch.block.whole` the kernel also does what `finish` says; else launch_finish has to.
int launch_rows(const RowsArgs& args, const FinishArgs& finish, const RowsLaunch& launch, void* stream);

// Was the finish kernel compiled to wait for the rows kernel itself?
int finish_may_overlap(bool* may);

// `overlap`: start while the rows kernel drains (programmatic dependent launch, compute capability 9.0 and later).
int launch_finish(const IsvWords& isv, const FinishArgs& args, bool overlap, void* stream);

// The slots of the summary into `args.summary`; between launch_rows and launch_finish.
int launch_summary(const FinishArgs& args, void* stream);

int launch_commit(const IsvWords& isv, qpi_record* record, CommitParts parts, void* stream);
int launch_control(const IsvWords& isv, void* stream);
int launch_discard(qpi_record* record, void* stream);
int launch_clear_faults(const IsvWords& isv, void* stream);
int launch_reset(const IsvWords& isv, Workspace* workspace, ResetParts parts, void* stream);

int launch_seed_grad(const float* q_logits, const float* pi_logits, const float* atom_supports, float* isv,
                     float* pi_grad_logits, int64_t rows, void* stream);
int launch_seed_controller(float* isv, void* stream);

// Shared memory of the kernels for packed arrays.
struct TileShape {
  unsigned actions, atoms, tile_rows;
  unsigned q_bytes, pi_bytes, grad_bytes;  // of one element; grad_bytes 0: no gradient is read
  bool shared_support;                     // one support for all actions
  bool mask;                               // a packed one
};
size_t tile_shared_bytes(const TileShape& shape, int warps, const TileLaunch& launch);
size_t block_shared_bytes(const TileShape& shape, int rows);

}  // namespace qpi::gpu
