// The GPU backend as the C ABI sees it; a build without CUDA has absent.cpp, which refuses.
#pragma once

#include <qpi_distill.h>

#include <string>

#include "../../cuda/math/state.h"

namespace qpi::gpu {

// Launch figures of one kernel, measured when the plan is made.
struct KernelChoice {
  bool possible;
  int threads;
  size_t shared_bytes;
  int resident_blocks;       // on the whole GPU
  int chunk_items, buffers;  // of the tile kernel
  int block_rows;            // of the block kernel
  int cluster_blocks;        // of the block kernel: the most in one cluster
};

struct Plan {
  bool overlap;  // programmatic dependent launch
  KernelChoice stream;
  KernelChoice tile;
  KernelChoice block[2];  // a tile to a block, and two
};

qpi_status plan_create(const qpi_problem& problem, bool packed, Plan* plan);

// Which kernel and grid a call with this many rows gets.
struct Choice {
  qpi_kernel kernel;
  int blocks;
  KernelChoice how;
  bool whole_step;  // in one launch
  const char* why;
};
Choice choose(const Plan& plan, const qpi_problem& problem, int64_t rows);

qpi_status run(const Plan& plan, int32_t device, const Choice& choice, const RowsArgs& rows, const FinishArgs& finish,
               qpi_stream_t stream);

qpi_status commit(int32_t device, const IsvWords& isv, qpi_record* record, qpi_stream_t stream);
qpi_status control(int32_t device, const IsvWords& isv, qpi_stream_t stream);
qpi_status discard(int32_t device, qpi_record* record, qpi_stream_t stream);
qpi_status clear_faults(int32_t device, const IsvWords& isv, qpi_stream_t stream);
qpi_status reset(int32_t device, const IsvWords& isv, Workspace* workspace, ResetParts parts, qpi_stream_t stream);
qpi_status seed_grad(int32_t device, const float* q_logits, const float* pi_logits, const float* atom_supports,
                     float* isv, float* pi_grad_logits, int64_t rows, qpi_stream_t stream);
qpi_status seed_controller(int32_t device, float* isv, qpi_stream_t stream);

struct NamedPointer {
  const char* name;
  const void* pointer;  // NULL: not there
};
// Does each pointer name memory of this GPU?
qpi_status check_pointers(int32_t device, const NamedPointer* pointers, int count);

// What the build and the machine have, as the members of a JSON object.
std::string describe();

}  // namespace qpi::gpu
