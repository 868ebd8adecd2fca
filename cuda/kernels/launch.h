// What the host side may ask of the kernels. Every function enqueues and returns a cudaError_t as int.
#pragma once

#include <cstddef>

#include "../math/state.h"

namespace qpi::gpu {

// How the rows kernel of one call is launched. The choice never changes the results.
struct RowsLaunch {
  qpi_kernel kernel;
  int blocks;
  int threads;
  size_t shared_bytes;  // dynamic shared memory
};

// Load every kernel that a plan with this many atoms may use on the current device, and let those that want
// it use `shared_bytes` of dynamic shared memory.
int load_kernels(size_t shared_bytes, int64_t atoms);

// Blocks of this launch that fit on one multiprocessor of the current device.
int blocks_per_multiprocessor(const RowsLaunch& launch, qpi_dtype q_dtype, int64_t atoms, int* blocks);

// The block kernel also does what `finish` says; after the others launch_finish has to.
int launch_rows(const RowsArgs& args, const FinishArgs& finish, const RowsLaunch& launch, void* stream);

// Was the finish kernel compiled to wait for the rows kernel itself?
int finish_may_overlap(bool* may);

// `overlap`: start while the rows kernel drains (programmatic dependent launch, compute capability 9.0 and later).
int launch_finish(const FinishArgs& args, bool overlap, void* stream);

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
  unsigned actions, atoms;
  unsigned q_bytes, pi_bytes, grad_bytes;  // of one element; grad_bytes 0: no gradient is read
  bool shared_support;                     // one support for all actions
};
size_t tile_shared_bytes(const TileShape& shape, int warps);
size_t block_shared_bytes(const TileShape& shape, int tiles);

}  // namespace qpi::gpu
