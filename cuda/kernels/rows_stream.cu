// Rows kernel for any shape, stride and alignment: the reference that faster kernels are compared with.
//
// A block takes one tile at a time, and as many of its rows together as fit in shared memory. Four lanes (eight, where
// the atoms are many) walk the atoms of an action straight from global memory, in as many passes as the formulas have.
// Four lanes then reduce the actions of a row in shared memory, and all threads write the gradient.
//
// Bytes: every input once from DRAM, q_logits again from L1/L2. It is bound by latency, not by bandwidth.
#include <cuda_runtime.h>

#include "device_rows.cuh"
#include "rows_kernels.cuh"

namespace qpi::gpu {

namespace {

constexpr int kItems = QPI_MAX_ACTIONS;           // (row, action) pairs in shared memory
constexpr int kRowsTogether = kWarp / kPartials;  // what one warp reduces
constexpr int kSlotLanes = kMaxTileRows;          // a lane for each row of a tile

// The expected value of one action by `Lanes` adjacent lanes; the number of loops differs between them, the calls that
// need every lane do not. Partial sums as in row_math.h. `q` is the element of its first atom.
template <int Lanes>
__device__ inline float walk_atoms(const RowsArgs& args, int64_t q, const float* support, float middle, bool legal) {
  const int lane = threadIdx.x % Lanes;
  const int64_t q_step = args.q_stride[2], support_step = args.support_stride[1];
  const int atoms = legal ? args.atoms : 0;
  const auto for_each = [&](auto body) {
    if constexpr (Lanes == kPartials) {
      for (int z = lane; z < atoms; z += kPartials) body(z);
    } else {
      for (int z = 2 * lane; z < atoms; z += 2 * kLongPartials) {
        body(z);
        if (z + 1 < atoms) body(z + 1);
      }
    }
  };
  const auto logit = [&](int z) { return load_element(args.q_logits, args.q_dtype, q + z * q_step); };
  if (args.family.critic == QPI_CRITIC_QUANTILE) {
    AtomSums<float> sums;
    for_each([&](int z) { sums.add(1.0f, logit(z)); });
    merge_lanes(sums, 1, Lanes);
    return quantile_value(sums.mean());
  }
  const auto mean_of = [&](auto weight) {
    AtomSums<float> sums;
    for_each([&](int z) { sums.add(weight(logit(z)), support[z * support_step] - middle); });
    merge_lanes(sums, 1, Lanes);
    return sums.mean();
  };
  AtomMaximum<float> maximum;
  for_each([&](int z) { maximum.add(logit(z)); });
  merge_lanes(maximum, 1, Lanes);
  const float mean = mean_of(AtomWeights(maximum));
  const float any = marked_value(maximum, mean_of([&](float x) { return maximum.weight(x); }));
  return is_finite(mean) ? mean : any;
}

__global__ void __launch_bounds__(kStreamThreads) stream_rows(const __grid_constant__ RowsArgs args) {
  __shared__ float values[kItems];
  __shared__ float logits[kItems];
  __shared__ RowShare shares[kSlotLanes];
  __shared__ RowSummary<float> summaries[kSlotLanes];  // of the rows, and what those of a slot add up to
  __shared__ qpi_summary slot_summary[kSlotLanes];
  const bool summary = args.summary_slots != nullptr;

  allow_finish_to_start();
  const StepNumbers numbers =
      check_step_input(load_step_input(IsvMemory{args.isv}, args.grad_scale), args.running_std, args.reduction_scale);
  if (numbers.halted) return;

  const int actions = args.actions, tile_rows = args.tile_rows;
  const float reciprocal = 1.0f / static_cast<float>(actions);
  int together = tile_rows < kRowsTogether ? tile_rows : kRowsTogether;
  while (together > 1 && together * actions > kItems) together /= 2;

  const float middle = args.support == nullptr
                           ? 0.0f
                           : support_middle(args.support[0], args.support[(args.atoms - 1) * args.support_stride[1]]);
  const auto distill = [&](auto lanes, float* row_values, float* row_logits, int count, float weight,
                           RowSummary<float>* of_row) {
    constexpr int kLanes = decltype(lanes)::value;
    return args.family.plain
               ? distill_row<kLanes>(row_values, row_logits, count, weight, numbers)
               : distill_family<kLanes>(row_values, row_logits, count, weight, numbers, args.family, of_row);
  };

  const int64_t tiles = tile_count(args.rows, tile_rows);
  const int in_use = slots_in_use(args.rows, tile_rows);

  for (int slot = blockIdx.x; slot < in_use; slot += gridDim.x) {
    LaneSum slot_sum;  // of the first warp: lane r has row r of each tile
    if (summary && threadIdx.x < kSlotLanes) slot_summary[threadIdx.x] = qpi_summary{};
    for (int64_t tile = slot; tile < tiles; tile += kStatSlots) {
      for (int part = 0; part < tile_rows; part += together) {
        const int64_t first = tile * tile_rows + part;
        const int items = together * actions;
        const auto walk = [&](auto lanes_of_action) {
          constexpr int kLanes = decltype(lanes_of_action)::value;
          // Every lane makes every turn: the shuffles need them all.
          for (int base = 0; base < items; base += kStreamThreads / kLanes) {
            const int item = base + static_cast<int>(threadIdx.x) / kLanes;
            const int row_of_item = quotient(item, reciprocal);
            const int64_t row = first + row_of_item;
            const int a = item - row_of_item * actions;
            float x = -kInfinity;
            if (item < items && row < args.rows && weight_of(args, row) != 0.0f && is_allowed(args, row, a)) {
              x = load_element(args.pi_logits, args.pi_dtype, row * args.pi_stride[0] + a * args.pi_stride[1]);
              x = legal_logit(x, true, args.illegal_below);
            }
            const bool legal = is_legal(x);
            const int64_t q = legal ? row * args.q_stride[0] + a * args.q_stride[1] : 0;
            const float* support = args.support + (legal ? a * args.support_stride[0] : 0);
            const float value = walk_atoms<kLanes>(args, q, support, middle, legal);
            if (item < items && threadIdx.x % kLanes == 0) {
              values[item] = value;
              logits[item] = x;
            }
          }
        };
        if (args.atoms <= kShortAtoms) {
          walk(IntConstant<kPartials>{});
        } else {
          walk(IntConstant<kLongPartials>{});
        }
        __syncthreads();

        if (actions > kNarrowActions) {
          // A warp to a row.
          for (int local = threadIdx.x / kWarp; local < together; local += kStreamThreads / kWarp) {
            const bool there = first + local < args.rows;
            RowShare share =
                distill(IntConstant<kWarp>{}, values + local * actions, logits + local * actions, there ? actions : 0,
                        there ? weight_of(args, first + local) : 0.0f, &summaries[part + local]);
            if (args.row0 && first + local != 0) share = out_of_statistic(share);
            if (threadIdx.x % kWarp == 0) shares[part + local] = share;
          }
        } else if (threadIdx.x < kWarp) {
          const int local = threadIdx.x / kPartials;
          const bool there = local < together && first + local < args.rows;
          const float weight = there ? weight_of(args, first + local) : 0.0f;
          RowSummary<float> of_row;
          RowShare share = distill(IntConstant<kPartials>{}, values + local * actions, logits + local * actions,
                                   there ? actions : 0, weight, &of_row);
          if (args.row0 && first + local != 0) share = out_of_statistic(share);
          if (local < together && threadIdx.x % kPartials == 0) {
            shares[part + local] = share;
            if (summary) summaries[part + local] = of_row;
          }
        }
        __syncthreads();

        if (args.pi_grad != nullptr) {
          with_type(args.grad_dtype, [&](auto type) {
            using G = decltype(type);
            for (int item = threadIdx.x; item < items; item += kStreamThreads) {
              const int row_of_item = quotient(item, reciprocal);
              const int64_t row = first + row_of_item;
              if (row >= args.rows) continue;
              const int a = item - row_of_item * actions;
              G* to = static_cast<G*>(args.pi_grad) + row * args.grad_stride[0] + a * args.grad_stride[1];
              store_step(to, values[item], !args.write, args.write ? 0.0f : to_float(*to));
            }
          });
        }
        __syncthreads();
      }
      if (threadIdx.x < tile_rows) {
        slot_sum.add(shares[threadIdx.x]);
        if (summary) add_row(slot_summary[threadIdx.x], shares[threadIdx.x].weight, summaries[threadIdx.x]);
      }
    }
    if (threadIdx.x < kWarp) {
      store_slot(args.slots + slot, slot_sum, tile_rows, 1);
      if (summary) {
        const qpi_summary sum = merge_summaries(slot_summary[threadIdx.x], 1, tile_rows);
        if (threadIdx.x == 0) args.summary_slots[slot].sums = sum;
      }
    }
  }
}

}  // namespace

const void* stream_kernel() { return reinterpret_cast<const void*>(stream_rows); }

}  // namespace qpi::gpu
