// Rows kernel for packed arrays whose tiles fit in shared memory.
//
// A block works on up to four adjacent tiles (32 rows) together. Their q_logits, policy logits and gradient are three
// contiguous pieces of memory; they are copied to shared memory one group of rows ahead of the arithmetic. Then
// one thread per (row, action) walks its atoms, four lanes reduce the actions of a row, and all threads write the
// gradient.
//
// Per row of 11 actions and 21 atoms in float32: 924 + 44 bytes read, 44 read and written, 231 + 22 exponentials. At
// 4 TB/s and 30 T instructions/s there are about 30 instructions an exponential before arithmetic is the bound.
#include <cuda_runtime.h>

#include "device_rows.cuh"
#include "launch.h"
#include "rows_kernels.cuh"
#include "staging.cuh"

namespace qpi::gpu {

namespace {

__host__ __device__ constexpr size_t round_up_16(size_t bytes) { return (bytes + 15) / 16 * 16; }

// Byte offsets into dynamic shared memory. The first three pieces exist twice: one is filled while the other is used.
struct TileLayout {
  size_t pi, grad, stage;  // within a stage; q is at 0; `stage` is its size
  size_t values, logits, scales, support, total;

  __host__ __device__ explicit TileLayout(const TileShape& shape) {
    const size_t items = static_cast<size_t>(shape.rows) * shape.actions;
    pi = round_up_16(items * shape.atoms * shape.q_bytes);
    grad = pi + round_up_16(items * shape.pi_bytes);
    stage = grad + round_up_16(items * shape.grad_bytes);
    values = 2 * stage;
    logits = values + round_up_16(items * sizeof(float));
    scales = logits + round_up_16(items * sizeof(float));
    support = scales + round_up_16(shape.rows * sizeof(RowScales));
    total = support + sizeof(float) * shape.atoms * (shape.shared_support ? 1 : shape.actions);
  }
};

__host__ __device__ constexpr int element_bytes(qpi_dtype dtype) { return dtype == QPI_FLOAT32 ? 4 : 2; }

// A block's groups of rows, in the order it takes them: the groups of one slot after the other.
struct GroupWalk {
  int64_t groups;
  int slot_groups;  // groups that have slots of their own
  int slot_group;
  int64_t group;

  __device__ GroupWalk(int64_t groups_, int tiles_at_once)
      : groups(groups_),
        slot_groups(groups_ < kStatSlots / tiles_at_once ? static_cast<int>(groups_) : kStatSlots / tiles_at_once),
        slot_group(blockIdx.x),
        group(blockIdx.x) {}

  __device__ bool done() const { return slot_group >= slot_groups; }
  __device__ bool last_of_slot() const { return group + slot_groups >= groups; }
  __device__ void next() {
    if (last_of_slot()) {
      slot_group += gridDim.x;
      group = slot_group;
    } else {
      group += slot_groups;
    }
  }
};

template <class Q>
__global__ void __launch_bounds__(kTileMaxThreads) tile_rows(const __grid_constant__ RowsArgs args, int rows_at_once) {
  extern __shared__ __align__(16) char shared[];

  const IsvView isv(args.isv);
  const StepNumbers numbers = read_step_numbers(isv, args.running_std, args.reduction_scale, args.grad_scale);
  if (numbers.halted) return;

  const int actions = args.actions, atoms = args.atoms;
  const bool read_grad = args.pi_grad != nullptr && !args.write;
  const int pi_bytes = element_bytes(args.pi_dtype);
  const int grad_bytes = element_bytes(args.grad_dtype);
  const bool shared_support = args.support_stride[0] == 0;
  const TileLayout at(TileShape{rows_at_once, actions, atoms, static_cast<int>(sizeof(Q)), pi_bytes,
                                read_grad ? grad_bytes : 0, shared_support});
  float* values = reinterpret_cast<float*>(shared + at.values);
  float* logits = reinterpret_cast<float*>(shared + at.logits);
  RowScales* scales = reinterpret_cast<RowScales*>(shared + at.scales);
  float* support = reinterpret_cast<float*>(shared + at.support);

  const int tiles_at_once = rows_at_once / kTileRows;
  GroupWalk now((args.rows + rows_at_once - 1) / rows_at_once, tiles_at_once);
  if (now.done()) return;

  const auto rows_of = [&](int64_t group) {
    const int64_t left = args.rows - group * rows_at_once;
    return static_cast<int>(left < rows_at_once ? left : rows_at_once);
  };
  const auto fetch = [&](int64_t group, int buffer) {
    char* to = shared + buffer * at.stage;
    const int64_t item = group * rows_at_once * actions;
    const int64_t items = static_cast<int64_t>(rows_of(group)) * actions;
    stage(to, static_cast<const Q*>(args.q_logits) + item * atoms, items * atoms * sizeof(Q));
    stage(to + at.pi, static_cast<const char*>(args.pi_logits) + item * pi_bytes, items * pi_bytes);
    if (read_grad) {
      stage(to + at.grad, static_cast<const char*>(args.pi_grad) + item * grad_bytes, items * grad_bytes);
    }
    stage_commit();
  };

  fetch(now.group, 0);
  const float middle = support_middle(args.support[0], args.support[(atoms - 1) * args.support_stride[1]]);
  for (int i = threadIdx.x; i < (shared_support ? atoms : actions * atoms); i += blockDim.x)
    support[i] = args.support[i / atoms * args.support_stride[0] + i % atoms * args.support_stride[1]] - middle;

  const int lane = threadIdx.x % kPartials;
  const int reduce_row_index = threadIdx.x / kPartials;
  const int64_t tiles = tile_count(args.rows);
  qpi_record slot_sum{};

  for (int buffer = 0; !now.done(); buffer ^= 1) {
    GroupWalk following = now;
    following.next();
    if (!following.done()) {
      fetch(following.group, buffer ^ 1);
      stage_wait<1>();
    } else {
      stage_wait<0>();
    }
    __syncthreads();

    char* staged = shared + buffer * at.stage;
    const int64_t first = now.group * rows_at_once;
    const int rows = rows_of(now.group);
    const int items = rows * actions;

    for (int item = threadIdx.x; item < items; item += blockDim.x) {
      const int a = item % actions;
      const int64_t row = first + item / actions;
      const bool there = args.row_weights == nullptr || args.row_weights[row * args.weight_stride] != 0.0f;
      const bool allowed =
          there && (args.legal_actions == nullptr ||
                    args.legal_actions[row * args.legal_stride[0] + a * args.legal_stride[1]] != 0);
      const float x = legal_logit(load_element(staged + at.pi, args.pi_dtype, item), allowed, args.illegal_below);
      const Q* q = reinterpret_cast<const Q*>(staged) + item * atoms;
      const float* centred = support + (shared_support ? 0 : a * atoms);

      AtomMaximum<float> maximum[kPartials];
      AtomSums<float> sums[kPartials];
      int z = 0;
      for (; z + kPartials <= atoms; z += kPartials) {
#pragma unroll
        for (int k = 0; k < kPartials; ++k) maximum[k].add(to_float(q[z + k]));
      }
#pragma unroll
      for (int k = 0; k < kPartials - 1; ++k) {
        if (z + k < atoms) maximum[k].add(to_float(q[z + k]));
      }
      maximum[0].merge(maximum[1]);
      maximum[2].merge(maximum[3]);
      maximum[0].merge(maximum[2]);
      const float highest = maximum[0].highest;

      for (z = 0; z + kPartials <= atoms; z += kPartials) {
#pragma unroll
        for (int k = 0; k < kPartials; ++k) sums[k].add(to_float(q[z + k]), highest, centred[z + k]);
      }
#pragma unroll
      for (int k = 0; k < kPartials - 1; ++k) {
        if (z + k < atoms) sums[k].add(to_float(q[z + k]), highest, centred[z + k]);
      }
      sums[0].merge(sums[1]);
      sums[2].merge(sums[3]);
      sums[0].merge(sums[2]);

      values[item] = expected_value(maximum[0], sums[0]);
      logits[item] = x;
    }
    __syncthreads();

    // Whole warps: eight rows each, one tile.
    if (reduce_row_index < rows_at_once) {
      const bool mine = reduce_row_index < rows;
      const int64_t row = first + reduce_row_index;
      float weight = 0.0f;
      if (mine) weight = args.row_weights == nullptr ? 1.0f : args.row_weights[row * args.weight_stride];
      RowScales row_scales;
      qpi_record share = reduce_row(values + reduce_row_index * actions, logits + reduce_row_index * actions,
                                    mine ? actions : 0, weight, numbers, &row_scales);
      if (args.row0 && row != 0) share = qpi_record{};
      if (lane == 0) scales[reduce_row_index] = row_scales;
      add_record(slot_sum, fold_tile(share, kPartials));
      const int tile_in_group = reduce_row_index / kTileRows;
      if (now.last_of_slot()) {
        const int64_t slot = static_cast<int64_t>(now.slot_group) * tiles_at_once + tile_in_group;
        if (threadIdx.x % warpSize == 0 && slot < tiles) args.slots[slot] = slot_sum;
        slot_sum = qpi_record{};
      }
    }
    __syncthreads();

    if (args.pi_grad != nullptr) {
      for (int item = threadIdx.x; item < items; item += blockDim.x) {
        update_gradient(args, first * actions + item, scales[item / actions], values[item], logits[item],
                        [&] { return load_element(staged + at.grad, args.grad_dtype, item); });
      }
    }
    __syncthreads();  // this buffer is filled again two groups later
    now = following;
  }
}

}  // namespace

size_t tile_shared_bytes(const TileShape& shape) { return TileLayout(shape).total; }

const void* tile_kernel(qpi_dtype q_dtype) {
  switch (q_dtype) {
    case QPI_FLOAT16: return reinterpret_cast<const void*>(tile_rows<__half>);
    case QPI_BFLOAT16: return reinterpret_cast<const void*>(tile_rows<__nv_bfloat16>);
    default: return reinterpret_cast<const void*>(tile_rows<float>);
  }
}

}  // namespace qpi::gpu
