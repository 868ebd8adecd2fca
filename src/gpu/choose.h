// From what was chosen for a call to how its kernel is launched.
#pragma once

#include "../../cuda/kernels/launch.h"
#include "gpu.h"

namespace qpi::gpu {

inline RowsLaunch launch_of(qpi_kernel kernel, int blocks, const KernelChoice& how, bool whole_step) {
  return {kernel, blocks, how.threads, how.shared_bytes, {how.chunk_items, how.buffers}, {how.block_rows, whole_step}};
}

}  // namespace qpi::gpu
