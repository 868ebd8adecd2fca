// Which kernels a problem may use on its GPU, and which of them a call gets.
#include "choose.h"

#include <cinttypes>

#include "../../cuda/kernels/rows_kernels.cuh"
#include "../../cuda/math/row_math.h"
#include "driver.h"

namespace qpi::gpu {

namespace {

TileShape shape_of(const qpi_problem& p) {
  const auto bytes = [](qpi_dtype dtype) { return dtype == QPI_FLOAT32 ? 4u : 2u; };
  return {static_cast<unsigned>(p.actions),
          static_cast<unsigned>(p.atoms),
          static_cast<unsigned>(tile_rows_of(p.actions, p.atoms)),
          bytes(p.q_dtype),
          bytes(p.pi_dtype),
          p.mode == QPI_MODE_WRITE ? 0u : bytes(p.grad_dtype),
          p.support_stride[0] == 0,
          p.legal_stride[0] == p.actions && p.legal_stride[1] == 1};
}

qpi_status measure_choice(qpi_kernel kernel, const qpi_problem& problem, int multiprocessors, KernelChoice* choice) {
  int blocks = 0;
  QPI_CUDA_TRY(blocks_per_multiprocessor(launch_of(kernel, 1, *choice, false), problem.q_dtype, problem.atoms,
                                         family_of(problem).plain, &blocks),
               "occupancy of the rows kernel");
  choice->possible = blocks > 0;
  choice->resident_blocks = blocks * multiprocessors;
  return QPI_SUCCESS;
}

// The tile kernel with so many buffers, as many warps a multiprocessor as its registers and shared memory allow, but a
// divisor of 24 (kStatSlots), and among these with the largest chunks.
qpi_status measure_tile(const qpi_problem& problem, int buffers, size_t limit, int multiprocessors,
                        KernelChoice* best) {
  *best = {};
  const TileShape shape = shape_of(problem);
  const int unit = problem.atoms > kShortAtoms ? 32 / kLongPartials : 32;
  const int tile_items = static_cast<int>(shape.tile_rows * shape.actions);
  for (const int warps : {24, 12, 8, 6, 4, 3, 2, 1}) {
    const int of_block = warps % 4 == 0 ? 4 : warps % 2 == 0 ? 2 : 1;
    for (int units = 4; units > 0; --units) {
      if (units > 1 && (units - 1) * unit >= tile_items) continue;
      KernelChoice choice{};
      choice.threads = 32 * of_block;
      choice.chunk_items = units * unit;
      choice.buffers = buffers;
      choice.shared_bytes = tile_shared_bytes(shape, of_block, {choice.chunk_items, buffers});
      if (choice.shared_bytes > limit) continue;
      QPI_TRY(measure_choice(QPI_KERNEL_TILE, problem, multiprocessors, &choice));
      if (!choice.possible || choice.resident_blocks * of_block < warps * multiprocessors) continue;
      choice.resident_blocks = warps / of_block * multiprocessors;
      *best = choice;
      return QPI_SUCCESS;
    }
  }
  return QPI_SUCCESS;
}

// The block kernel with so many tiles to a block: a thread for each (row, action), four for each row, and helpers.
qpi_status measure_block(const qpi_problem& problem, int tiles, size_t limit, int multiprocessors, bool clusters,
                         KernelChoice* block) {
  *block = {};
  const TileShape shape = shape_of(problem);
  const int rows = tiles * static_cast<int>(shape.tile_rows);
  const int items = rows * static_cast<int>(problem.actions), lanes = rows * kPartials;
  const int wanted = ((items > lanes ? items : lanes) + 31) / 32 * 32 + kBlockHelpers;
  const int threads = wanted > kBlockMaxThreads ? kBlockMaxThreads : wanted;
  KernelChoice choice{};
  choice.threads = threads;
  choice.shared_bytes = block_shared_bytes(shape, rows);
  choice.block_rows = rows;
  choice.cluster_blocks = 1;
  const bool fits = problem.atoms <= kShortAtoms && problem.actions <= kBlockMaxActions && rows >= 32 / kPartials &&
                    rows <= kBlockMaxRows && choice.shared_bytes <= limit;
  if (!fits) return QPI_SUCCESS;
  QPI_TRY(measure_choice(QPI_KERNEL_BLOCK, problem, multiprocessors, &choice));
  if (!choice.possible) return QPI_SUCCESS;
  for (int blocks = kMaxClusterBlocks; clusters && blocks > 1 && choice.cluster_blocks == 1; blocks /= 2) {
    bool room = false;
    QPI_CUDA_TRY(cluster_fits(launch_of(QPI_KERNEL_BLOCK, blocks, choice, true), problem.q_dtype, problem.atoms, &room),
                 "occupancy of the block kernel");
    if (room) choice.cluster_blocks = blocks;
  }
  *block = choice;
  return QPI_SUCCESS;
}

}  // namespace

qpi_status plan_create(const qpi_problem& problem, bool packed, Plan* plan) {
  QPI_TRY(check_device(problem.device));
  DeviceGuard guard;
  QPI_TRY(guard.enter(problem.device));
  const RelaxedCapture relaxed;

  const auto attribute = [&](cudaDeviceAttr which, int* value) {
    return static_cast<int>(cudaDeviceGetAttribute(value, which, problem.device));
  };
  int multiprocessors = 0, shared_limit = 0;
  QPI_CUDA_TRY(attribute(cudaDevAttrMultiProcessorCount, &multiprocessors), "cudaDeviceGetAttribute");
  QPI_CUDA_TRY(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &shared_limit), "cudaDeviceGetAttribute");
  const auto limit = static_cast<size_t>(shared_limit);
  const bool plain = family_of(problem).plain;
  // Clusters and programmatic launches came together; code for an older GPU, compiled by the driver, has neither.
  QPI_CUDA_TRY(finish_may_overlap(&plan->overlap), "loading the kernels");
  QPI_CUDA_TRY(load_kernels(limit, problem.atoms, plain, plan->overlap), "loading the kernels");

  plan->stream = {};
  plan->stream.threads = kStreamThreads;
  QPI_TRY(measure_choice(QPI_KERNEL_STREAM, problem, multiprocessors, &plan->stream));
  plan->tile = plan->block[0] = plan->block[1] = {};
  // Far beyond shared memory the kernels' 32-bit sizes would wrap.
  constexpr int64_t kMaxRow = 1 << 16;
  if (packed && problem.actions * problem.atoms <= kMaxRow) {
    QPI_TRY(measure_tile(problem, 2, limit, multiprocessors, &plan->tile));
    // Few warps are better off with a chunk at a time, if that makes more of them.
    KernelChoice single;
    QPI_TRY(measure_tile(problem, 1, limit, multiprocessors, &single));
    const auto warps = [](const KernelChoice& choice) { return choice.resident_blocks * choice.threads / 32; };
    if (warps(plan->tile) < 8 * multiprocessors && warps(single) > warps(plan->tile)) plan->tile = single;
    // Below four warps a multiprocessor nothing hides the latencies.
    const bool starved = plan->tile.resident_blocks * plan->tile.threads < 4 * 32 * multiprocessors;
    if (starved && problem.kernel == QPI_KERNEL_AUTO) plan->tile.possible = false;
    for (int i = 0; plain && i < 2; ++i)
      QPI_TRY(measure_block(problem, i + 1, limit, multiprocessors, plan->overlap, &plan->block[i]));
  }
  if ((problem.kernel == QPI_KERNEL_TILE || problem.kernel == QPI_KERNEL_BLOCK) && !plan->tile.possible) {
    const char* asked = problem.kernel == QPI_KERNEL_TILE ? "QPI_KERNEL_TILE" : "QPI_KERNEL_BLOCK";
    if (!packed) {
      return fail(QPI_ERROR_UNSUPPORTED, "kernel is %s, which needs packed arrays; these have strides", asked);
    }
    return fail(QPI_ERROR_UNSUPPORTED,
                "kernel is %s, but %d rows of %" PRId64 " actions and %" PRId64
                " atoms need more than the %zu bytes of shared memory that a block of GPU %d has",
                asked, tile_rows_of(problem.actions, problem.atoms), problem.actions, problem.atoms, limit,
                problem.device);
  }
  return QPI_SUCCESS;
}

Choice choose(const Plan& plan, const qpi_problem& problem, int64_t rows) {
  const auto at_most = [](int64_t a, int64_t b) { return static_cast<int>(a < b ? a : b); };
  const int limit = problem.max_blocks > 0 ? problem.max_blocks : INT32_MAX;
  const bool forced = problem.kernel != QPI_KERNEL_AUTO;

  const int tile_rows = tile_rows_of(problem.actions, problem.atoms);
  const int64_t tiles = tile_count(rows, tile_rows);
  const int slots = slots_in_use(rows, tile_rows);

  if (problem.kernel != QPI_KERNEL_STREAM && problem.kernel != QPI_KERNEL_TILE) {
    for (const KernelChoice& block : plan.block) {
      const int64_t blocks = block.possible ? (rows + block.block_rows - 1) / block.block_rows : INT64_MAX;
      if (blocks > block.cluster_blocks || blocks > limit) continue;
      return {QPI_KERNEL_BLOCK, static_cast<int>(blocks), block, true,
              forced ? "asked for" : "packed arrays, and few enough rows for one launch"};
    }
    if (plan.block[0].possible && tiles <= 2 * plan.block[0].resident_blocks && tiles <= limit) {
      return {QPI_KERNEL_BLOCK, static_cast<int>(tiles), plan.block[0], false,
              forced ? "asked for" : "packed arrays, and the GPU holds a block for every other tile at least"};
    }
  }
  if (problem.kernel != QPI_KERNEL_STREAM && plan.tile.possible) {
    const int warps = plan.tile.threads / 32;
    const int wanted = at_most((slots + warps - 1) / warps, plan.tile.resident_blocks);
    return {QPI_KERNEL_TILE, at_most(wanted, limit), plan.tile, false,
            forced ? "asked for" : "packed arrays whose tiles fit in shared memory"};
  }
  const int wanted = at_most(slots, plan.stream.resident_blocks);
  return {QPI_KERNEL_STREAM, at_most(wanted, limit), plan.stream, false,
          forced                     ? "asked for"
          : family_of(problem).plain ? "strided arrays, or tiles too large for shared memory"
                                     : "a critic, target, divergence or summary beyond the plain step"};
}

}  // namespace qpi::gpu
