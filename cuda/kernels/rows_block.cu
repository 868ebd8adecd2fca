// Rows kernel for packed batches that do not fill the GPU: there a step is latency alone.
//
// A block has a tile, or two. A thread per (row, action) walks the atoms in shared memory; then four lanes work on a
// row in registers: target, policy, KL and gradient. Up to 16 blocks are one cluster, and its first block gathers what
// the others add to the statistic and runs the law: the whole step in one launch. Larger grids write slots, for the
// finish kernel.
//
// Bytes do not matter here; the chain of dependent steps does: one trip to memory, two or three barriers, about 600
// dependent instructions.
#include <cuda_runtime.h>

#include "device_finish.cuh"
#include "packed_rows.cuh"
#include "rows_kernels.cuh"
#include "staging.cuh"

namespace qpi::gpu {

namespace {

constexpr int kMine = kBlockMaxActions / kPartials;  // actions of a lane
constexpr int kOften = 3;                            // as many as it often has
constexpr int kRowsOfWarp = kWarp / kPartials;
constexpr int kSeedAtoms = 21;                          // a number worth a loop of its own
constexpr int kMaxWarps = kBlockMaxRows / kRowsOfWarp;  // that have rows

// What the rows of a warp add to the statistic.
struct WarpSum {
  double sum[3];  // weighted_kl, weight, weighted_variance
  uint32_t rows, skipped, clipped, faults;
};

__device__ inline StatTotal total_of(const WarpSum& s) {
  return {s.sum[0], s.sum[1], s.sum[2], s.rows, s.skipped, s.clipped, s.faults};
}

// Byte offsets into dynamic shared memory.
struct BlockLayout {
  static constexpr unsigned kBarrier = 0, kQ = 16;
  unsigned values, support, sums, storage, total;

  __host__ __device__ BlockLayout(const TileShape& shape, unsigned rows) {
    const unsigned items = rows * shape.actions;
    values = kQ + round_up_16(items * shape.atoms * shape.q_bytes);
    support = values + round_up_16(items * 4);
    sums = support + support_bytes(shape);
    storage = sums + round_up_16(kMaxClusterBlocks * kMaxWarps * sizeof(WarpSum));
    total = storage + round_up_16(sizeof(FinishStorage));
  }
};

// Calls body(i) for each of a lane's actions, and for a few that may be absent, with as little between them as can be.
template <class Body>
__device__ inline void for_mine(int actions, Body body) {
#pragma unroll
  for (int i = 0; i < kOften; ++i) body(i);
  if (actions > kOften * kPartials) {
#pragma unroll
    for (int i = kOften; i < kMine; ++i) body(i);
  }
}

// One lane's share of a row: the actions lane, lane + kPartials, ... An absent one is as an illegal one is.
struct RowPart {
  float value[kMine];
  float logit[kMine];

  // Every lane of the warp calls it.
  __device__ RowShare distill(int actions, float weight, const StepNumbers& numbers, float (&step)[kMine]) const {
    RowShape row;
    for_mine(actions, [&](int i) { row.maximum.add(value[i], logit[i]); });
    merge_lanes(row.maximum, 1, kPartials);
    const float inverse_legal = lane_reciprocal(row.maximum.legal);
    const float mean = row.maximum.value_sum * inverse_legal;
    ActionVariance<float> squares;
    for_mine(actions, [&](int i) { squares.add(value[i], logit[i], mean); });
    merge_lanes(squares, 1, kPartials);
    row.variance = squares.squares * inverse_legal;
    row.sharpness = inverse_temperature(numbers.tau, value_std(row.variance, numbers.std, numbers.own_std));

    ActionWeights<float> weights[kMine];
    ActionSums<float> sums;
    for_mine(actions, [&](int i) {
      weights[i] = weigh_action(value[i], logit[i], row.maximum.value, row.maximum.logit, row.sharpness);
    });
    for_mine(actions, [&](int i) { sums.add(weights[i]); });
    merge_lanes(sums, 1, kPartials);
    RowScales scales;
    const RowShare share = close_row(row, sums, weight, numbers, &scales);
    for_mine(actions, [&](int i) {
      step[i] = step_of(scales, weights[i].target, is_legal(logit[i]) ? weights[i].policy : -1.0f);
    });
    return share;
  }
};

// A warp's eight rows, pairwise. Each of a row's four lanes has its share and keeps one of the three sums.
__device__ inline void add_up(const RowShare& row, WarpSum* to) {
  const int lane = threadIdx.x % kPartials;
  const double factor = lane == 0 ? row.kl : lane == 1 ? 1.0f : row.variance;
  double sum = static_cast<double>(row.weight) * factor;
  for (int lanes = kPartials; lanes < kWarp; lanes *= 2) sum += shuffle(sum, lanes);
  const auto count = [&](bool of_row) {
    return static_cast<uint32_t>(__popc(__ballot_sync(kFullWarp, lane == 0 && of_row)));
  };
  const uint32_t rows = count(row.counted), skipped = count(row.skipped), clipped = count(row.clipped);
  uint32_t faults = 0;
  for (const uint32_t bit : {QPI_FAULT_WEIGHT, QPI_FAULT_SUPPORT})
    faults |= __any_sync(kFullWarp, (row.faults & bit) != 0) ? bit : 0;
  if (threadIdx.x % kWarp < 3) to->sum[lane] = sum;
  if (threadIdx.x % kWarp == 3) {
    to->rows = rows;
    to->skipped = skipped;
    to->clipped = clipped;
    to->faults = faults;
  }
}

// Where a warp of this block leaves its sum: in the shared memory of the cluster's first block.
__device__ inline WarpSum* sum_at_first(WarpSum* sums, int index) {
#if __CUDA_ARCH__ >= 900
  // cooperative_groups has this too, but its header costs more build time than the kernel.
  asm("mapa.u64 %0, %1, 0;" : "=l"(sums) : "l"(sums));
#endif
  return sums + index;  // before compute capability 9.0 there is one block
}
// A barrier of the cluster in two halves; what a thread wrote before the first is seen after the second.
__device__ inline void arrive_at_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ inline void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#else
  __syncthreads();
#endif
}

__global__ void __launch_bounds__(kBlockMaxThreads)
    block_rows(const __grid_constant__ RowsArgs args, const __grid_constant__ FinishArgs finish,
               const __grid_constant__ BlockLaunch launch) {
  extern __shared__ __align__(16) char shared[];
  const int actions = args.actions, atoms = args.atoms;
  const TileShape shape = tile_shape(args);
  const BlockLayout at(shape, launch.rows);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * launch.rows, left = args.rows - first;
  const int rows = static_cast<int>(left < launch.rows ? left : launch.rows);
  const int items = rows * actions;
  char* staged_q = shared + BlockLayout::kQ;
  float* values = reinterpret_cast<float*>(shared + at.values);
  float* support = reinterpret_cast<float*>(shared + at.support);
  WarpSum* sums = reinterpret_cast<WarpSum*>(shared + at.sums);
  FinishStorage& storage = *reinterpret_cast<FinishStorage*>(shared + at.storage);
  const int warp = threadIdx.x / kWarp;
  const int row = threadIdx.x / kPartials, lane = threadIdx.x % kPartials;
  const int row_warps = launch.rows / kRowsOfWarp;
  const bool add = args.pi_grad != nullptr && !args.write;
  const bool clustered = launch.whole && gridDim.x > 1;

  if (!launch.whole) allow_finish_to_start();
  if (clustered) arrive_at_cluster();  // nobody writes to the first block before it is there
  // Everything that is read, all of it under way before any of it is used. The logits first: they are the most.
  const char* q = static_cast<const char*>(args.q_logits) + first * actions * atoms * shape.q_bytes;
  const unsigned q_bytes = items * atoms * shape.q_bytes;
  const bool bulk = kBulkCopies && whole_chunks(q, q_bytes);
  Ring ring;
  ring.init(reinterpret_cast<uint64_t*>(shared + BlockLayout::kBarrier), threadIdx.x == 0 ? 1 : 0);
  if (bulk && warp == 0) ring.fetch<1>(0, true, false, {staged_q}, {q}, {q_bytes});
  const FinishLoads loads = load_finish(finish);
  const bool one_load = shape.shared_support && atoms <= static_cast<int>(blockDim.x);
  const float low = args.support[0], high = args.support[(atoms - 1) * args.support_stride[1]];
  float of_support = 0.0f;
  if (one_load && threadIdx.x < atoms) of_support = args.support[threadIdx.x * args.support_stride[1]];
  const int64_t of_row = (first + row) * actions;
  const auto is_there = [&](int i) { return row < rows && lane + i * kPartials < actions; };
  uint32_t raw_logit[kMine], raw_before[kMine] = {};
  bool allowed[kMine];
  float weight = 0.0f;
  if (warp < row_warps) {
    const auto at_or_first = [&](int i) { return is_there(i) ? of_row + lane + i * kPartials : 0; };
    for_mine(actions, [&](int i) { raw_logit[i] = load_raw(args.pi_logits, args.pi_dtype, at_or_first(i)); });
    if (add) for_mine(actions, [&](int i) { raw_before[i] = load_raw(args.pi_grad, args.grad_dtype, at_or_first(i)); });
    if (row < rows) weight = weight_of(args, first + row);
    for_mine(actions, [&](int i) { allowed[i] = is_there(i) && is_allowed(args, first + row, lane + i * kPartials); });
  }
  if (!bulk) copy_by_block(staged_q, q, q_bytes);

  if (one_load) {
    if (threadIdx.x < atoms) support[threadIdx.x] = of_support - support_middle(low, high);
  } else {
    stage_support(args, shape, support);
  }
  store_finish(loads, storage);
  if (!bulk) wait_for_copies();
  __syncthreads();
  if (bulk) ring.wait_for(0);

  const float reciprocal = 1.0f / static_cast<float>(actions);
  const auto reduce_items = [&](auto type, auto known) {
    using Q = decltype(type);
    constexpr int kAtoms = decltype(known)::value;
#pragma unroll 1
    for (int item = threadIdx.x; item < items; item += blockDim.x) {
      const float* centred = support;
      if (!shape.shared_support) centred += (item - quotient(item, reciprocal) * actions) * support_pitch(shape);
      values[item] = reduce_short<kAtoms>(reinterpret_cast<const Q*>(staged_q) + item * atoms, centred, atoms);
    }
  };
  if (args.q_dtype == QPI_FLOAT32 && atoms == kSeedAtoms) {
    reduce_items(float{}, IntConstant<kSeedAtoms>{});
  } else {
    with_type(args.q_dtype, [&](auto type) { reduce_items(type, IntConstant<0>{}); });
  }
  const StepNumbers numbers = check_step_input(load_step_input(storage.isv.image(args.isv), args.grad_scale),
                                               args.running_std, args.reduction_scale);
  __syncthreads();
  if (clustered) wait_for_cluster();

  if (warp < row_warps && !numbers.halted) {
    RowPart part;
    for_mine(actions, [&](int i) {
      part.logit[i] = legal_logit(raw_to_float(raw_logit[i], args.pi_dtype), allowed[i], args.illegal_below);
      part.value[i] = is_there(i) ? values[row * actions + lane + i * kPartials] : 0.0f;
    });
    float step[kMine];
    RowShare share = part.distill(actions, weight, numbers, step);
    if (args.row0 && first + row != 0) share = out_of_statistic(share);
    add_up(share, launch.whole ? sum_at_first(sums, blockIdx.x * row_warps + warp) : sums + warp);
    if (clustered) arrive_at_cluster();
    if (args.pi_grad != nullptr) {
      with_type(args.grad_dtype, [&](auto type) {
        auto* to = static_cast<decltype(type)*>(args.pi_grad) + of_row + lane;
        for_mine(actions, [&](int i) {
          if (is_there(i)) store_step(to + i * kPartials, step[i], add, raw_to_float(raw_before[i], args.grad_dtype));
        });
      });
    }
  } else if (clustered) {
    arrive_at_cluster();
  }

  if (!launch.whole) {
    // A block is a tile here.
    __syncthreads();
    if (threadIdx.x < kWarp && !numbers.halted) {
      const StatTotal sum = fold_warp(threadIdx.x < row_warps ? total_of(sums[threadIdx.x]) : StatTotal{}, row_warps);
      if (threadIdx.x == 0) {
        args.slots[blockIdx.x] = {sum.weighted_kl,
                                  sum.weight,
                                  sum.weighted_variance,
                                  static_cast<uint32_t>(sum.rows),
                                  static_cast<uint32_t>(sum.skipped),
                                  static_cast<uint32_t>(sum.clipped),
                                  sum.faults};
      }
    }
    return;
  }
  // Also of a step that is halted: the first block changes the state only when every other has read it.
  if (clustered) {
    wait_for_cluster();
  } else {
    __syncthreads();
  }
  if (blockIdx.x == 0)
    finish_block(finish, numbers, gridDim.x * row_warps, storage, [&](int i) { return total_of(sums[i]); });
}

}  // namespace

size_t block_shared_bytes(const TileShape& shape, int rows) { return BlockLayout(shape, rows).total; }

const void* block_kernel() { return reinterpret_cast<const void*>(block_rows); }

}  // namespace qpi::gpu
