// Rows kernel for packed arrays whose tiles fit in shared memory: one warp, one tile of 8 rows, no block barrier.
//
// The tile's q_logits, policy logits and gradient are three contiguous pieces of memory. They are copied to the warp's
// own shared memory, those of the next tile as soon as this tile's have been read. Then a lane walks the atoms of a
// (row, action) pair; four lanes reduce the actions of a row; and all lanes write the gradient.
//
// Per row of 11 actions and 21 atoms in float32: 924 + 44 bytes read, 44 read and written, 231 + 22 exponentials. An
// atom takes about 20 instructions, so that instructions bound it, not bytes: 300 a row and warp where 227 would be the
// roof of an H200 at its copy rate.
#include <cuda_runtime.h>

#include "device_rows.cuh"
#include "launch.h"
#include "packed_rows.cuh"
#include "rows_kernels.cuh"
#include "staging.cuh"

namespace qpi::gpu {

namespace {

// Byte offsets into a warp's shared memory. The gradient has two buffers, because it is needed to the end; q is at 0.
struct TileLayout {
  unsigned pi, grad, grad_size;
  unsigned values, logits, barriers, total;

  __host__ __device__ explicit TileLayout(const TileShape& shape) {
    const unsigned items = static_cast<unsigned>(kTileRows * shape.actions);
    pi = round_up_16(items * static_cast<unsigned>(shape.atoms * shape.q_bytes));
    grad = pi + round_up_16(items * static_cast<unsigned>(shape.pi_bytes));
    grad_size = round_up_16(items * static_cast<unsigned>(shape.grad_bytes));
    values = grad + 2 * grad_size;
    logits = values + round_up_16(items * 4);
    barriers = logits + round_up_16(items * 4);
    total = barriers + 16;
  }
};

// A warp's tiles, in the order it takes them: those of one slot after the other.
struct TileWalk {
  int64_t tiles;
  int64_t tile;
  int slot, slots, step;

  __device__ TileWalk(int64_t rows, int first, int warps)
      : tiles(tile_count(rows)), tile(first), slot(first), slots(slots_in_use(rows)), step(warps) {}

  __device__ bool done() const { return slot >= slots; }
  __device__ bool last_of_slot() const { return tile + kStatSlots >= tiles; }
  __device__ void next() {
    if (last_of_slot()) {
      slot += step;
      tile = slot;
    } else {
      tile += kStatSlots;
    }
  }
};

template <int Atoms, class Q>
__global__ void __maxnreg__(80) tile_rows(const __grid_constant__ RowsArgs args) {
  extern __shared__ __align__(16) char shared[];
  const int actions = args.actions, atoms = args.atoms;
  const TileShape shape = tile_shape(args);
  const bool read_grad = shape.grad_bytes != 0;
  const TileLayout at(shape);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  float* support = reinterpret_cast<float*>(shared);
  char* mine = shared + support_bytes(shape) + warp * at.total;
  float* values = reinterpret_cast<float*>(mine + at.values);
  float* logits = reinterpret_cast<float*>(mine + at.logits);

  const int warps = blockDim.x / kWarp;
  TileWalk now(args.rows, blockIdx.x * warps + warp, gridDim.x * warps);
  const unsigned tile_items = kTileRows * shape.actions;
  const int64_t full_tiles = args.rows / kTileRows;
  const auto items_of = [&](int64_t tile) {
    return tile < full_tiles ? tile_items : static_cast<unsigned>(args.rows - tile * kTileRows) * shape.actions;
  };
  // A full tile is a multiple of 16 bytes, so the start of the arrays decides.
  const bool aligned = whole_chunks(args.q_logits, 16) && whole_chunks(args.pi_logits, 16) &&
                       (!read_grad || whole_chunks(args.pi_grad, 16));
  Staging logit_staging, grad_staging;
  const auto fetch_logits = [&](int64_t tile) {
    const int64_t first = tile * tile_items;
    const unsigned items = items_of(tile);
    logit_staging.fetch<2>(aligned && tile < full_tiles, {mine, mine + at.pi},
                           {static_cast<const Q*>(args.q_logits) + first * shape.atoms,
                            static_cast<const char*>(args.pi_logits) + first * shape.pi_bytes},
                           {items * shape.atoms * static_cast<unsigned>(sizeof(Q)), items * shape.pi_bytes});
  };
  const auto fetch_grad = [&](int64_t tile, int buffer) {
    grad_staging.fetch<1>(aligned && tile < full_tiles, {mine + at.grad + buffer * at.grad_size},
                          {static_cast<const char*>(args.pi_grad) + tile * tile_items * shape.grad_bytes},
                          {items_of(tile) * shape.grad_bytes});
  };

  allow_finish_to_start();
  uint64_t* barriers = reinterpret_cast<uint64_t*>(mine + at.barriers);
  logit_staging.init(barriers);
  grad_staging.init(barriers + 1);
  __syncwarp();
  if (!now.done()) {
    fetch_logits(now.tile);
    if (read_grad) fetch_grad(now.tile, 0);
  }
  // While these are on their way: the ISV and the support.
  const StepInput input = load_step_input(IsvMemory{args.isv}, args.grad_scale);
  const float middle = support_middle(args.support[0], args.support[(atoms - 1) * args.support_stride[1]]);
  stage_support(args, shape, middle, support);
  __syncthreads();

  const StepNumbers numbers = check_step_input(input, args.running_std, args.reduction_scale);
  const float reciprocal = 1.0f / static_cast<float>(actions);
  TileSum slot_sum;

  for (int buffer = 0; !now.done(); buffer ^= 1) {
    TileWalk following = now;
    following.next();
    logit_staging.wait();
    if (read_grad) grad_staging.wait();
    __syncwarp();
    if (numbers.halted) break;  // not before what was asked for has come

    const int64_t first = now.tile * kTileRows;
    const int items = items_of(now.tile);
#pragma unroll 1
    for (int item = lane; item < items; item += kWarp) {
      const int row_of_item = quotient(item, reciprocal);
      const int a = item - row_of_item * actions;
      logits[item] = action_logit(args, first + row_of_item, a, mine + at.pi, item);
      values[item] =
          reduce_atoms<Atoms>(reinterpret_cast<const Q*>(mine) + item * atoms, support_of(support, shape, a), atoms);
    }
    __syncwarp();
    if (!following.done()) {
      fetch_logits(following.tile);
      if (read_grad) fetch_grad(following.tile, buffer ^ 1);
    }

    // The actions of a row: four lanes, so that the warp has all eight rows.
    const int local = lane / kPartials;
    const int64_t row = first + local;
    const bool there = row < args.rows;
    float weight = 0.0f;
    if (there) weight = args.row_weights == nullptr ? 1.0f : args.row_weights[row * args.weight_stride];
    RowScales scales;
    RowShare share =
        reduce_row(values + local * actions, logits + local * actions, there ? actions : 0, weight, numbers, &scales);
    if (args.row0 && row != 0) share = out_of_statistic(share);
    slot_sum.add_tile(share, kPartials, lane % kPartials, lane % kPartials == 0);
    if (now.last_of_slot()) {
      if (lane < kPartials) slot_sum.store(args.slots + now.slot, lane);
      slot_sum = TileSum{};
    }
    __syncwarp();

    if (args.pi_grad != nullptr) {
      const char* staged_grad = mine + at.grad + buffer * at.grad_size;
#pragma unroll 1
      for (int base = 0; base < items; base += kWarp) {
        const int item = base + lane;
        const int from = quotient(item, reciprocal) * kPartials % kWarp;  // a lane that has the row's scales
        const RowScales of_row = {__shfl_sync(kFullWarp, scales.gradient, from),
                                  __shfl_sync(kFullWarp, scales.target, from),
                                  __shfl_sync(kFullWarp, scales.policy, from)};
        if (item < items) {
          update_gradient(args, first * actions + item, of_row, values[item], logits[item],
                          [&] { return load_element(staged_grad, args.grad_dtype, item); });
        }
      }
    }
    __syncwarp();
    now = following;
  }
}

}  // namespace

size_t tile_shared_bytes(const TileShape& shape, int warps) {
  return support_bytes(shape) + static_cast<size_t>(warps) * TileLayout(shape).total;
}

const void* tile_kernel(qpi_dtype q_dtype, int64_t atoms) {
  switch (q_dtype) {
    case QPI_FLOAT16:
      return reinterpret_cast<const void*>(tile_rows<0, __half>);
    case QPI_BFLOAT16:
      return reinterpret_cast<const void*>(tile_rows<0, __nv_bfloat16>);
    default:
      // 21 atoms is the seed kernels' number, worth a kernel of its own; each one more costs build time on every GPU.
      return atoms == 21 ? reinterpret_cast<const void*>(tile_rows<21, float>)
                         : reinterpret_cast<const void*>(tile_rows<0, float>);
  }
}

}  // namespace qpi::gpu
