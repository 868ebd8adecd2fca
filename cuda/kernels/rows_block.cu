// Rows kernel for packed batches that do not fill the GPU: there a step is latency alone.
//
// A block has a tile, or two. A thread per (row, action) walks the atoms in shared memory; then four lanes work on a
// row in registers: target, policy, KL and gradient. Up to 16 blocks are one cluster, and its first block gathers what
// the others add to the statistic and runs the law: the whole step in one launch. Larger grids write slots, for the
// finish kernel.
//
// Bytes do not matter here; the chain of dependent instructions does, at about five cycles each: one trip to memory,
// the atoms of an action, a row, the law. What is not in the chain has warps of its own: the first ones ask for the
// rows' logits, the last but one for the critic's, and the last one reads the state, looks at it while the others work
// on the atoms and the rows, and ends the step while the gradient is on its way to memory.
#include <cuda_runtime.h>

#include "device_finish.cuh"
#include "packed_rows.cuh"
#include "rows_kernels.cuh"
#include "staging.cuh"

namespace qpi::gpu {

// What most calls on small batches are: float32, packed, one native state, nothing optional.
BlockCall block_call(const RowsArgs& rows, const FinishArgs& finish, const BlockLaunch& launch) {
  const auto whole_chunks = [&](int64_t count) { return count * rows.actions * rows.atoms % 4 == 0; };
  const bool common_rows =
      rows.q_dtype == QPI_FLOAT32 && rows.pi_dtype == QPI_FLOAT32 && rows.grad_dtype == QPI_FLOAT32 &&
      rows.pi_grad != nullptr && rows.legal_actions == nullptr && rows.row_weights == nullptr &&
      rows.grad_scale == nullptr && !rows.row0 && rows.support_stride[0] == 0 && rows.isv.native &&
      reinterpret_cast<uintptr_t>(rows.q_logits) % 16 == 0 && whole_chunks(launch.rows) && whole_chunks(rows.rows);
  const bool common_end = rows.isv.flight.records == nullptr && finish.measured == nullptr;
  if (!common_rows) return BlockCall::kAny;
  if (!launch.whole) return BlockCall::kCommonRows;
  return common_end ? BlockCall::kCommonStep : BlockCall::kAny;
}

namespace {

// What a kernel is compiled for. Whatever a common call has is a constant there: a branch around code that the call
// does not need costs it tens of cycles.
struct AnyCall {
  static constexpr bool kCommon = false;

  template <class Args>
  __device__ static const Args& known(const Args& args) {
    return args;
  }
};

template <bool Whole>
struct CommonCall {
  static constexpr bool kCommon = true;

  __device__ __forceinline__ static BlockLaunch known(BlockLaunch launch) {
    launch.whole = Whole;
    return launch;
  }
  __device__ __forceinline__ static FinishArgs known(FinishArgs finish) {
    finish.measured = nullptr;
    finish.summary_slots = nullptr;
    return finish;
  }
  __device__ __forceinline__ static RowsArgs known(RowsArgs rows) {
    rows.q_dtype = rows.pi_dtype = rows.grad_dtype = QPI_FLOAT32;
    rows.legal_actions = nullptr;
    rows.row_weights = rows.grad_scale = nullptr;
    rows.row0 = false;
    rows.support_stride[0] = 0;
    rows.isv.native = true;
    rows.isv.present = ~0ull;
    rows.isv.flight.records = nullptr;
    return rows;
  }
};

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

__device__ inline LaneSum as_lane(const WarpSum& s) {
  return {s.sum[0], s.sum[1], s.sum[2], s.rows, s.skipped, s.clipped, s.faults};
}

// The sums of `count` warps, pairwise, by one warp: each lane begins with one, two or four neighbours. For the first
// lane.
__device__ inline LaneSum fold_sums(const WarpSum* sums, int count) {
  const auto sum_of = [&](int i) { return i < count ? as_lane(sums[i]) : LaneSum{}; };
  const int lane = threadIdx.x % kWarp;
  LaneSum mine;
  if (count <= kWarp) {
    mine = sum_of(lane);
  } else {
    const auto pair = [&](int i) {
      LaneSum sum = sum_of(i);
      sum.merge(sum_of(i + 1));
      return sum;
    };
    const bool two = count <= 2 * kWarp;
    mine = pair(two ? 2 * lane : 4 * lane);
    if (!two) mine.merge(pair(4 * lane + 2));
  }
  merge_lanes(mine, 1, count < kWarp ? count : kWarp);
  return mine;
}
static_assert(kMaxClusterBlocks * kMaxWarps <= 4 * kWarp, "four to a lane at most");

// Byte offsets into dynamic shared memory.
struct BlockLayout {
  static constexpr unsigned kBarrier = 0, kQ = 16;
  unsigned values, support, sums, isv, numbers, total;

  __host__ __device__ BlockLayout(const TileShape& shape, unsigned rows) {
    const unsigned items = rows * shape.actions;
    values = kQ + round_up_16(items * shape.atoms * shape.q_bytes);
    support = values + round_up_16(items * 4);
    sums = support + support_bytes(shape);
    isv = sums + round_up_16(kMaxClusterBlocks * kMaxWarps * sizeof(WarpSum));
    numbers = isv + round_up_16(sizeof(SharedIsv));
    total = numbers + round_up_16(sizeof(StepNumbers));
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

// A support that all actions share, by one warp: loads apart from stores, as in FinishLoads.
class SupportLoads {
 public:
  __device__ SupportLoads(const RowsArgs& args, bool reads) {
    if (!reads) return;
    const int64_t stride = args.support_stride[1];
    low_ = args.support[0];
    high_ = args.support[(args.atoms - 1) * stride];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (mine(i) < args.atoms) atom_[i] = args.support[mine(i) * stride];
    }
  }
  __device__ void store(const RowsArgs& args, float* support) const {
    const float middle = support_middle(low_, high_);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (mine(i) < args.atoms) support[mine(i)] = atom_[i] - middle;
    }
  }

 private:
  static constexpr int kEach = kShortAtoms / kWarp;
  __device__ static int mine(int i) { return threadIdx.x % kWarp + i * kWarp; }

  float low_, high_, atom_[kEach];
};

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
    row.origin = value_origin(row.maximum.value, row.sharpness);

    ActionWeights<float> weights[kMine];
    ActionSums<float> sums;
    for_mine(actions, [&](int i) {
      weights[i] = weigh_action(value[i], logit[i], row.origin, row.maximum.logit, row.sharpness);
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
// What the warps with rows wait for nobody with: the last warp does, for them.
__device__ inline void rows_are_done(int threads) {
  asm volatile("barrier.cta.arrive 1, %0;" ::"r"(threads) : "memory");
}
__device__ inline void wait_for_rows(int threads) { asm volatile("barrier.cta.sync 1, %0;" ::"r"(threads) : "memory"); }
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

// With fewer registers than it might have, so that two blocks of 32 rows and 11 actions fit on a multiprocessor.
template <class Call>
__global__ void __launch_bounds__(kBlockMaxThreads + 64)
    block_rows(const __grid_constant__ BlockLaunch block_launch, const __grid_constant__ FinishArgs finish_args,
               const __grid_constant__ RowsArgs rows_args) {
  const BlockLaunch& launch = Call::known(block_launch);
  const FinishArgs& finish = Call::known(finish_args);
  const RowsArgs& args = Call::known(rows_args);
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
  SharedIsv& isv = *reinterpret_cast<SharedIsv*>(shared + at.isv);
  StepNumbers& shared_numbers = *reinterpret_cast<StepNumbers*>(shared + at.numbers);
  const int warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const int row = threadIdx.x / kPartials, lane = threadIdx.x % kPartials;
  const int row_warps = launch.rows / kRowsOfWarp;
  const bool has_rows = warp < row_warps, fetches = warp == warps - 2, finishes = warp == warps - 1;
  const bool add = args.pi_grad != nullptr && !args.write;
  const bool clustered = launch.whole && gridDim.x > 1;

  if (!launch.whole) allow_finish_to_start();
  if (clustered) arrive_at_cluster();  // nobody writes to the first block before it is there
  // Everything that is read, all of it under way before any of it is used.
  const char* q = static_cast<const char*>(args.q_logits) + first * actions * atoms * shape.q_bytes;
  const unsigned q_bytes = items * atoms * shape.q_bytes;
  const bool bulk = kBulkCopies && (Call::kCommon || whole_chunks(q, q_bytes));
  Ring ring(reinterpret_cast<uint64_t*>(shared + BlockLayout::kBarrier));
  if (fetches && bulk) {
    ring.init(1);
    ring.fetch<1>(0, true, false, {staged_q}, {q}, {q_bytes});
  }
  const SupportLoads of_support(args, fetches && shape.shared_support);
  const FinishLoads loads(finish, args.isv, finishes);
  const auto is_there = [&](int i) { return row < rows && lane + i * kPartials < actions; };
  const int64_t my_element = first * actions + row * actions + lane;  // the first one of a matrix of actions
  uint32_t raw_logit[kMine], raw_before[kMine] = {};
  bool allowed[kMine];
  float weight = 0.0f;
  if (has_rows) {
    const auto load_mine = [&](const void* base, qpi_dtype dtype, uint32_t (&to)[kMine]) {
      const char* from = static_cast<const char*>(base) + my_element * element_bytes(dtype);
      for_mine(actions, [&](int i) { to[i] = is_there(i) ? load_raw(from, dtype, i * kPartials) : 0; });
    };
    load_mine(args.pi_logits, args.pi_dtype, raw_logit);
    if (add) load_mine(args.pi_grad, args.grad_dtype, raw_before);
    if (row < rows) weight = weight_of(args, first + row);
    for_mine(actions, [&](int i) { allowed[i] = is_there(i) && is_allowed(args, first + row, lane + i * kPartials); });
  }
  if (!bulk) copy_by_block(staged_q, q, q_bytes);
  if (!shape.shared_support) {
    stage_support(args, shape, support, threadIdx.x, blockDim.x);
  } else if (fetches) {
    of_support.store(args, support);
  }
  if (finishes) loads.store(isv);
  if (!bulk) wait_for_copies();
  __syncthreads();
  if (bulk) ring.wait_for(0);

  const int workers = blockDim.x - kBlockHelpers;
  if (threadIdx.x < workers) {
    const float reciprocal = 1.0f / static_cast<float>(actions);
    const auto reduce_items = [&](auto type, auto known) {
      using Q = decltype(type);
      constexpr int kAtoms = decltype(known)::value;
#pragma unroll 1
      for (int item = threadIdx.x; item < items; item += workers) {
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
  }
  LamStart lam;
  if (finishes) {
    const IsvImage image = isv.image(args.isv);
    const StepNumbers numbers =
        check_step_input(load_step_input(image, args.grad_scale), args.running_std, args.reduction_scale);
    if (threadIdx.x % kWarp == 0) shared_numbers = numbers;
    lam = start_lam(image);
  }
  __syncthreads();
  if (clustered) wait_for_cluster();
  const StepNumbers numbers = shared_numbers;

  const int row_threads = (row_warps + 1) * kWarp;  // and those of the last warp
  if (has_rows) {
    RowPart part;
    for_mine(actions, [&](int i) {
      part.logit[i] = legal_logit(raw_to_float(raw_logit[i], args.pi_dtype), allowed[i], args.illegal_below);
      part.value[i] = is_there(i) ? values[row * actions + lane + i * kPartials] : 0.0f;
    });
    float step[kMine];
    if (!numbers.halted) {
      RowShare share = part.distill(actions, weight, numbers, step);
      if (args.row0 && first + row != 0) share = out_of_statistic(share);
      add_up(share, launch.whole ? sum_at_first(sums, blockIdx.x * row_warps + warp) : sums + warp);
    }
    clustered ? arrive_at_cluster() : rows_are_done(row_threads);
    if (args.pi_grad != nullptr && !numbers.halted) {
      with_type(args.grad_dtype, [&](auto type) {
        auto* to = static_cast<decltype(type)*>(args.pi_grad) + my_element;
        for_mine(actions, [&](int i) {
          if (is_there(i)) store_step(to + i * kPartials, step[i], add, raw_to_float(raw_before[i], args.grad_dtype));
        });
      });
    }
    return;
  }
  if (clustered) arrive_at_cluster();
  if (!finishes) return;

  // Also of a step that is halted: the state changes only when every block has read it.
  if (launch.whole && blockIdx.x != 0) return;
  clustered ? wait_for_cluster() : wait_for_rows(row_threads);
  const LaneSum sum = fold_sums(sums, launch.whole ? gridDim.x * row_warps : row_warps);
  if (launch.whole) {
    finish_by_warp(
        finish, args.isv, numbers, lam, loads, isv,
        {sum.weighted_kl, sum.weight, sum.weighted_variance, sum.rows, sum.skipped, sum.clipped, sum.faults});
  } else if (threadIdx.x % kWarp == 0 && !numbers.halted) {  // a block is a tile here
    args.slots[blockIdx.x] = {sum.weighted_kl, sum.weight, sum.weighted_variance, sum.rows, sum.skipped,
                              sum.clipped,     sum.faults};
  }
}

}  // namespace

size_t block_shared_bytes(const TileShape& shape, int rows) { return BlockLayout(shape, rows).total; }

const void* block_kernel(BlockCall call) {
  switch (call) {
    case BlockCall::kCommonStep:
      return reinterpret_cast<const void*>(block_rows<CommonCall<true>>);
    case BlockCall::kCommonRows:
      return reinterpret_cast<const void*>(block_rows<CommonCall<false>>);
    default:
      return reinterpret_cast<const void*>(block_rows<AnyCall>);
  }
}

}  // namespace qpi::gpu
