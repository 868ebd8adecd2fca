// The whole step in one block, for packed batches of at most 64 rows: below that size a step is latency alone.
//
// Each warp copies a tile to shared memory. One thread per (row, action) walks the atoms; four lanes find the extremes
// of a row; one thread per (row, action) takes the exponentials; four lanes add them up. Then the first warp folds the
// statistic and runs the law while the others write the gradient.
//
// Bytes do not matter here; the chain of dependent steps does: one trip to memory, four barriers, about 600 dependent
// instructions.
#include <cuda_runtime.h>

#include "device_finish.cuh"
#include "packed_rows.cuh"
#include "rows_kernels.cuh"
#include "staging.cuh"

namespace qpi::gpu {

namespace {

// What the threads of a row's actions need to know of the row.
struct RowExtremes {
  float value, logit, sharpness;
};

// Byte offsets into dynamic shared memory; q is at 0.
struct BlockLayout {
  unsigned pi, grad, values, logits, differences, support, extremes, scales, slots, storage, barriers, total;

  __host__ __device__ BlockLayout(const TileShape& shape, unsigned tiles) {
    const unsigned items = tiles * kTileRows * shape.actions;
    pi = round_up_16(items * shape.atoms * shape.q_bytes);
    grad = pi + round_up_16(items * shape.pi_bytes);
    values = grad + round_up_16(items * shape.grad_bytes);
    logits = values + round_up_16(items * 4);
    differences = logits + round_up_16(items * 4);
    support = differences + round_up_16(items * 4);
    extremes = support + support_bytes(shape);
    scales = extremes + round_up_16(tiles * kTileRows * sizeof(RowExtremes));
    slots = scales + round_up_16(tiles * kTileRows * sizeof(RowScales));
    storage = slots + round_up_16(tiles * sizeof(StatSlot));
    barriers = storage + round_up_16(sizeof(FinishStorage));
    total = barriers + round_up_16(tiles * 8);
  }
};

template <int Atoms, class Q>
__global__ void __launch_bounds__(kBlockMaxThreads)
    block_rows(const __grid_constant__ RowsArgs args, const __grid_constant__ FinishArgs finish) {
  extern __shared__ __align__(16) char shared[];
  const int actions = args.actions, atoms = args.atoms;
  const int rows = static_cast<int>(args.rows), items = rows * actions;
  const int tiles = static_cast<int>(tile_count(rows));
  const TileShape shape = tile_shape(args);
  const BlockLayout at(shape, tiles);
  float* values = reinterpret_cast<float*>(shared + at.values);
  float* logits = reinterpret_cast<float*>(shared + at.logits);
  float* differences = reinterpret_cast<float*>(shared + at.differences);
  float* support = reinterpret_cast<float*>(shared + at.support);
  RowExtremes* extremes = reinterpret_cast<RowExtremes*>(shared + at.extremes);
  RowScales* scales = reinterpret_cast<RowScales*>(shared + at.scales);
  StatSlot* slots = reinterpret_cast<StatSlot*>(shared + at.slots);
  FinishStorage& storage = *reinterpret_cast<FinishStorage*>(shared + at.storage);
  const int warp = threadIdx.x / kWarp;

  Staging staging;
  if (warp < tiles) {
    staging.init(reinterpret_cast<uint64_t*>(shared + at.barriers) + warp);
    __syncwarp();
    const int first = warp * kTileRows * actions;
    const int left = items - first;
    const unsigned mine = left < kTileRows * actions ? left : kTileRows * actions;
    const unsigned row_bytes = atoms * sizeof(Q);
    const void* from[] = {static_cast<const Q*>(args.q_logits) + first * atoms,
                          static_cast<const char*>(args.pi_logits) + first * shape.pi_bytes,
                          static_cast<const char*>(args.pi_grad) + first * shape.grad_bytes};
    const unsigned bytes[] = {mine * row_bytes, mine * shape.pi_bytes, mine * shape.grad_bytes};
    staging.fetch<3>(
        whole_chunks(from[0], bytes[0]) && whole_chunks(from[1], bytes[1]) && whole_chunks(from[2], bytes[2]),
        {shared + first * row_bytes, shared + at.pi + first * shape.pi_bytes,
         shared + at.grad + first * shape.grad_bytes},
        from, bytes);
  }
  // While these are on their way: everything else that is read, all of it before any of it is used.
  const StepInput input = load_step_input(IsvMemory{args.isv}, args.grad_scale);
  const FinishLoads loads = load_finish(finish);
  const float middle = support_middle(args.support[0], args.support[(atoms - 1) * args.support_stride[1]]);
  stage_support(args, shape, middle, support);
  store_finish(loads, storage);
  const StepNumbers numbers = check_step_input(input, args.running_std, args.reduction_scale);
  if (warp < tiles) staging.wait();
  __syncthreads();

  if (!numbers.halted) {
    const float reciprocal = 1.0f / static_cast<float>(actions);
#pragma unroll 1
    for (int item = threadIdx.x; item < items; item += blockDim.x) {
      const int row = quotient(item, reciprocal);
      const int a = item - row * actions;
      logits[item] = action_logit(args, row, a, shared + at.pi, item);
      values[item] =
          reduce_atoms<Atoms>(reinterpret_cast<const Q*>(shared) + item * atoms, support_of(support, shape, a), atoms);
    }
    __syncthreads();

    // Four lanes a row; a warp has the eight rows of its tile.
    const int row = threadIdx.x / kPartials, lane = threadIdx.x % kPartials;
    const int row_actions = row < rows ? actions : 0;
    RowShape of_row;
    if (warp < tiles) {
      of_row = measure_row(values + row * actions, logits + row * actions, row_actions, numbers);
      if (lane == 0) extremes[row] = {of_row.maximum.value, of_row.maximum.logit, of_row.sharpness};
    }
    __syncthreads();

#pragma unroll 1
    for (int item = threadIdx.x; item < items; item += blockDim.x) {
      const RowExtremes e = extremes[quotient(item, reciprocal)];
      const ActionWeights<float> w = weigh_action(values[item], logits[item], e.value, e.logit, e.sharpness);
      values[item] = w.target;
      logits[item] = w.policy;
      differences[item] = w.difference;
    }
    __syncthreads();

    if (warp < tiles) {
      ActionSums<float> sums;
#pragma unroll 1
      for (int a = lane; a < row_actions; a += kPartials) {
        const int item = row * actions + a;
        sums.add({values[item], logits[item], differences[item]});
      }
      merge_four_lanes(sums);
      float weight = 0.0f;
      if (row < rows) weight = args.row_weights == nullptr ? 1.0f : args.row_weights[row * args.weight_stride];
      RowScales row_scales;
      RowShare share = close_row(of_row, sums, weight, numbers, &row_scales);
      if (args.row0 && row != 0) share = out_of_statistic(share);
      if (lane == 0) scales[row] = row_scales;
      TileSum tile;
      tile.add_tile(share, kPartials, lane, lane == 0);
      if (threadIdx.x % kWarp < kPartials) tile.store(slots + warp, lane);
    }
    __syncthreads();

    // The first warp has the end of the step to do; there are at least two.
    if (args.pi_grad != nullptr && warp > 0) {
#pragma unroll 1
      for (int item = threadIdx.x - kWarp; item < items; item += blockDim.x - kWarp) {
        update_gradient(args, item, scales[quotient(item, reciprocal)], values[item], logits[item],
                        [&] { return load_element(shared + at.grad, args.grad_dtype, item); });
      }
    }
  }
  // Only warp 0 has slots to fold, and it passed the barrier after they were written.
  finish_block(finish, fold_lane(slots, numbers.halted ? 0 : tiles, threadIdx.x), storage);
}

}  // namespace

size_t block_shared_bytes(const TileShape& shape, int tiles) {
  return BlockLayout(shape, static_cast<unsigned>(tiles)).total;
}

const void* block_kernel(qpi_dtype q_dtype, int64_t atoms) {
  switch (q_dtype) {
    case QPI_FLOAT16:
      return reinterpret_cast<const void*>(block_rows<0, __half>);
    case QPI_BFLOAT16:
      return reinterpret_cast<const void*>(block_rows<0, __nv_bfloat16>);
    default:
      // 21 atoms is the seed kernels' number, worth a kernel of its own; each one more costs build time on every GPU.
      return atoms == 21 ? reinterpret_cast<const void*>(block_rows<21, float>)
                         : reinterpret_cast<const void*>(block_rows<0, float>);
  }
}

}  // namespace qpi::gpu
