// Rows kernel for any shape, stride and alignment: the reference that faster kernels are compared with.
//
// A block takes one tile of 8 rows at a time and as many of its rows together as fit in shared memory. Four lanes walk
// the atoms of an action straight from global memory, twice (maximum, then sums); four lanes then reduce the actions of
// a row in shared memory; all threads write the gradient.
//
// Bytes: every input once from DRAM, q_logits a second time from L1/L2. It is bound by latency, not by bandwidth.
#include <cuda_runtime.h>

#include "device_rows.cuh"
#include "rows_kernels.cuh"

namespace qpi::gpu {

namespace {

constexpr int kItems = QPI_MAX_ACTIONS;  // (row, action) pairs in shared memory
constexpr int kLanesOfAction = kPartials;

template <class Q>
__global__ void __launch_bounds__(kStreamThreads) stream_rows(const __grid_constant__ RowsArgs args) {
  __shared__ float values[kItems];
  __shared__ float logits[kItems];
  __shared__ RowScales scales[kTileRows];
  __shared__ RowShare shares[kTileRows];

  allow_finish_to_start();
  const StepNumbers numbers =
      check_step_input(load_step_input(IsvMemory{args.isv}, args.grad_scale), args.running_std, args.reduction_scale);
  if (numbers.halted) return;

  const int actions = args.actions, atoms = args.atoms;
  const float reciprocal = 1.0f / static_cast<float>(actions);
  int rows_at_once = kTileRows;
  while (rows_at_once > 1 && rows_at_once * actions > kItems) rows_at_once /= 2;

  const float middle = support_middle(args.support[0], args.support[(atoms - 1) * args.support_stride[1]]);
  const int64_t tiles = tile_count(args.rows);
  const int in_use = slots_in_use(args.rows);

  for (int slot = blockIdx.x; slot < in_use; slot += gridDim.x) {
    TileSum slot_sum;
    for (int64_t tile = slot; tile < tiles; tile += kStatSlots) {
      for (int chunk = 0; chunk < kTileRows; chunk += rows_at_once) {
        const int64_t first = tile * kTileRows + chunk;

        // Expected values: four lanes an action. The loop count is the same for every lane, the shuffles need them all.
        const int items = rows_at_once * actions;
        constexpr int kGroups = kStreamThreads / kLanesOfAction;
        for (int base = 0; base < items; base += kGroups) {
          const int item = base + static_cast<int>(threadIdx.x) / kLanesOfAction;
          const int lane = threadIdx.x % kLanesOfAction;
          const int row_of_item = quotient(item, reciprocal);
          const int64_t row = first + row_of_item;
          const int a = item - row_of_item * actions;

          float x = -kInfinity;
          const bool there = item < items && row < args.rows &&
                             (args.row_weights == nullptr || args.row_weights[row * args.weight_stride] != 0.0f);
          if (there) {
            const bool allowed = args.legal_actions == nullptr ||
                                 args.legal_actions[row * args.legal_stride[0] + a * args.legal_stride[1]] != 0;
            if (allowed) {
              x = legal_logit(
                  load_element(args.pi_logits, args.pi_dtype, row * args.pi_stride[0] + a * args.pi_stride[1]), true,
                  args.illegal_below);
            }
          }
          const bool legal = is_legal(x);
          const Q* q =
              static_cast<const Q*>(args.q_logits) + (legal ? row * args.q_stride[0] + a * args.q_stride[1] : 0);
          const float* support = args.support + (legal ? a * args.support_stride[0] : 0);

          AtomMaximum<float> maximum;
          if (legal) {
            for (int z = lane; z < atoms; z += kPartials) maximum.add(to_float(q[z * args.q_stride[2]]));
          }
          merge_four_lanes(maximum);
          AtomSums<float> sums;
          if (legal) {
            for (int z = lane; z < atoms; z += kPartials) {
              sums.add(to_float(q[z * args.q_stride[2]]), maximum.highest,
                       support[z * args.support_stride[1]] - middle);
            }
          }
          merge_four_lanes(sums);
          if (item < items && lane == 0) {
            values[item] = expected_value(maximum, sums);
            logits[item] = x;
          }
        }
        __syncthreads();

        // The actions of a row: one warp, four lanes a row. Lanes without a row repeat an absent one.
        if (threadIdx.x < warpSize) {
          const int local = threadIdx.x / kPartials;
          const bool mine = local < rows_at_once && first + local < args.rows;
          float weight = 0.0f;
          if (mine)
            weight = args.row_weights == nullptr ? 1.0f : args.row_weights[(first + local) * args.weight_stride];
          RowScales row_scales;
          const int row_actions = local < rows_at_once ? actions : 0;
          RowShare share =
              reduce_row(values + local * actions, logits + local * actions, row_actions, weight, numbers, &row_scales);
          if (args.row0 && first + local != 0) share = out_of_statistic(share);
          if (local < rows_at_once && threadIdx.x % kPartials == 0) {
            scales[local] = row_scales;
            shares[chunk + local] = share;
          }
        }
        __syncthreads();

        if (args.pi_grad != nullptr) {
          for (int item = threadIdx.x; item < items; item += kStreamThreads) {
            const int row_of_item = quotient(item, reciprocal);
            const int64_t row = first + row_of_item;
            const int a = item - row_of_item * actions;
            if (row < args.rows) {
              const int64_t i = row * args.grad_stride[0] + a * args.grad_stride[1];
              update_gradient(args, i, scales[row_of_item], values[item], logits[item],
                              [&] { return load_element(args.pi_grad, args.grad_dtype, i); });
            }
          }
        }
        __syncthreads();
      }
      // Lane i has row i mod 8; every group of eight lanes keeps one of the three sums.
      if (threadIdx.x < warpSize) {
        const int which = threadIdx.x / kTileRows;
        slot_sum.add_tile(shares[threadIdx.x % kTileRows], 1, which, which == 0);
      }
    }
    if (threadIdx.x < warpSize && threadIdx.x % kTileRows == 0)
      slot_sum.store(args.slots + slot, threadIdx.x / kTileRows);
  }
}

}  // namespace

const void* stream_kernel(qpi_dtype q_dtype) {
  switch (q_dtype) {
    case QPI_FLOAT16:
      return reinterpret_cast<const void*>(stream_rows<__half>);
    case QPI_BFLOAT16:
      return reinterpret_cast<const void*>(stream_rows<__nv_bfloat16>);
    default:
      return reinterpret_cast<const void*>(stream_rows<float>);
  }
}

}  // namespace qpi::gpu
