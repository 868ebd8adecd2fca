// Rows kernel for packed arrays: one warp, one tile of rows at a time, no block barrier. For batches that keep the GPU
// busy.
//
// A tile's (row, action) pairs are items, and their q_logits one contiguous piece of memory. It is copied in chunks to
// buffers in the warp's own shared memory, each refilled as soon as it has been read. Then a lane (or eight, where
// the atoms are many) walks the atoms of an item; a lane (or four, where tiles are small) reduces the actions of a row;
// and all lanes write the gradient.
//
// Per row of 11 actions and 21 atoms in float32: 924 + 44 bytes read, 44 read and written; 231 + 22 exponentials. An
// H200 at its copy rate has time for 230 warp instructions a row; an atom takes 6, a row 132.
#include <cuda_runtime.h>

#include <type_traits>

#include "device_rows.cuh"
#include "launch.h"
#include "packed_rows.cuh"
#include "rows_kernels.cuh"
#include "staging.cuh"

namespace qpi::gpu {

namespace {

constexpr int kMaxBuffers = 2;
constexpr int kSide = kMaxBuffers;  // the buffer of policy logits, gradient and mask

// Byte offsets into a warp's shared memory; the chunks are at 0.
struct TileLayout {
  unsigned chunk, logits, grad, mask, values, barriers, total;

  __host__ __device__ TileLayout(const TileShape& shape, const TileLaunch& launch) {
    const unsigned items = shape.tile_rows * shape.actions;
    chunk = round_up_16(launch.chunk_items * shape.atoms * shape.q_bytes);
    logits = launch.buffers * chunk;
    grad = logits + round_up_16(staged_pi(shape) + items * shape.pi_bytes);
    mask = grad + round_up_16(items * shape.grad_bytes);
    values = mask + (shape.mask ? round_up_16(items) : 0);
    barriers = values + round_up_16(items * 4);
    total = barriers + round_up_16(8 * (kMaxBuffers + 1));
  }

  // Half-precision logits go to the upper half of their buffer: they are widened in place.
  __host__ __device__ static unsigned staged_pi(const TileShape& shape) {
    return round_up_16(shape.tile_rows * shape.actions * (4 - shape.pi_bytes));
  }
};

// A warp's tiles, in the order it takes them: those of one slot after the other. Slots are dealt out over the blocks
// first, so that every multiprocessor gets as many long ones as any other.
struct TileWalk {
  int64_t tiles;
  int64_t tile;
  int slot, slots, step;

  __device__ TileWalk(int64_t rows, int tile_rows, int first, int warps)
      : tiles(tile_count(rows, tile_rows)),
        tile(first),
        slot(first),
        slots(slots_in_use(rows, tile_rows)),
        step(warps) {}

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

// Registers for 12 warps a multiprocessor, or for 24.
constexpr int kFewWarps = 168, kManyWarps = 80;

// A loop over the atoms of items: which logits it is for. kUpToShort and kMoreThanShort stand for every number there.
constexpr int kUpToShort = 0, kMoreThanShort = -1;

template <class Type, int Atoms>
struct AtomLoop {
  using Q = Type;
  static constexpr int kAtoms = Atoms;

  __host__ __device__ static bool serves(qpi_dtype dtype, int64_t atoms) {
    constexpr qpi_dtype kDtype = std::is_same_v<Q, float>    ? QPI_FLOAT32
                                 : std::is_same_v<Q, __half> ? QPI_FLOAT16
                                                             : QPI_BFLOAT16;
    return dtype == kDtype && (Atoms > 0 ? atoms == Atoms : (atoms > kShortAtoms) == (Atoms == kMoreThanShort));
  }
};

// The first of `Loops` that serves is run. The plain step has kernels of its own; `Family` is for all others.
template <int Registers, bool Family, class... Loops>
__global__ void __maxnreg__(Registers)
    tile_rows(const __grid_constant__ RowsArgs args, const __grid_constant__ TileLaunch launch) {
  extern __shared__ __align__(16) char shared[];
  const int actions = args.actions, atoms = args.atoms;
  const TileShape shape = tile_shape(args);
  const bool read_grad = shape.grad_bytes != 0;
  const TileLayout at(shape, launch);
  const int chunk_items = launch.chunk_items;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  float* support = reinterpret_cast<float*>(shared);
  char* mine = shared + support_bytes(shape) + warp * at.total;
  float* values = reinterpret_cast<float*>(mine + at.values);
  float* logits = reinterpret_cast<float*>(mine + at.logits);

  TileWalk now(args.rows, args.tile_rows, warp * gridDim.x + blockIdx.x, gridDim.x * blockDim.x / kWarp);
  const unsigned tile_items = shape.tile_rows * shape.actions;
  const int64_t full_tiles = args.rows / args.tile_rows;
  const auto items_of = [&](int64_t tile) {
    return static_cast<int>(tile < full_tiles ? tile_items : (args.rows - tile * args.tile_rows) * actions);
  };

  Ring ring(reinterpret_cast<uint64_t*>(mine + at.barriers));
  // The chunk to fetch next: where it is, and how many items its tile still has from there on.
  const unsigned item_bytes = atoms * shape.q_bytes;
  TileWalk ahead = now;
  const char* ahead_q = nullptr;
  int ahead_items = 0;
  const auto look_ahead = [&] {
    if (ahead.done()) return;
    ahead_q = static_cast<const char*>(args.q_logits) + ahead.tile * tile_items * item_bytes;
    ahead_items = items_of(ahead.tile);
  };
  const auto fetch_chunk = [&](int buffer) {
    if (ahead_items == 0) return;
    const int here = ahead_items < chunk_items ? ahead_items : chunk_items;
    const unsigned bytes = here * item_bytes;
    ring.fetch<1>(buffer, whole_chunks(ahead_q, bytes), false, {mine + buffer * at.chunk}, {ahead_q}, {bytes});
    ahead_q += bytes;
    ahead_items -= here;
    if (ahead_items == 0) {
      ahead.next();
      look_ahead();
    }
  };
  char* staged_pi = mine + at.logits + TileLayout::staged_pi(shape);
  bool staged_mask = false;  // of the tile that was fetched last
  const auto fetch_side = [&](int64_t tile) {
    const unsigned items = items_of(tile);
    const char* pi = static_cast<const char*>(args.pi_logits) + tile * tile_items * shape.pi_bytes;
    const char* grad = static_cast<const char*>(args.pi_grad) + tile * tile_items * shape.grad_bytes;
    const unsigned pi_bytes = items * shape.pi_bytes, grad_bytes = items * shape.grad_bytes;
    const uint8_t* mask = args.legal_actions + tile * tile_items;
    const bool bulk = whole_chunks(pi, pi_bytes) && whole_chunks(grad, grad_bytes);
    staged_mask = shape.mask && bulk && whole_chunks(mask, items);
    ring.fetch<3>(kSide, bulk, true, {staged_pi, mine + at.grad, mine + at.mask}, {pi, grad, mask},
                  {pi_bytes, grad_bytes, staged_mask ? items : 0});
  };

  allow_finish_to_start();
  ring.init(kMaxBuffers + 1);
  __syncwarp();
  look_ahead();
  int fetched = 0;
  for (; fetched < launch.buffers && ahead_items > 0; ++fetched) fetch_chunk(fetched);
  if (!now.done()) fetch_side(now.tile);
  // While these are on their way: the ISV and the support.
  const StepNumbers numbers =
      check_step_input(load_step_input(IsvMemory{args.isv}, args.grad_scale), args.running_std, args.reduction_scale);
  stage_support(args, shape, support, threadIdx.x, blockDim.x);
  __syncthreads();
  if (numbers.halted) {  // not before what was asked for has come
    for (int buffer = 0; buffer < fetched; ++buffer) ring.wait(buffer);
    if (fetched > 0) ring.wait(kSide);
    return;
  }

  const float reciprocal = 1.0f / static_cast<float>(actions);
  const bool wide =
      actions > kNarrowActions;  // then a warp works on one row after the other, and keeps a row to a lane
  const int lanes_of_row = !wide && shape.tile_rows <= kWarp / kPartials ? kPartials : 1;
  const bool plain_logits =
      args.pi_dtype == QPI_FLOAT32 && args.legal_actions == nullptr && args.illegal_below == -kInfinity;
  LaneSum slot_sum;
  qpi_summary slot_summary{};

  for (int buffer = 0; !now.done(); now.next()) {
    const int64_t first = now.tile * args.tile_rows;
    const int items = items_of(now.tile);
    const int local = lane / lanes_of_row;
    const bool there = local < args.tile_rows && first + local < args.rows;
    const float weight = there ? weight_of(args, first + local) : 0.0f;

    for (int base = 0; base < items; base += chunk_items) {
      ring.wait(buffer);
      __syncwarp();
      const int here = items - base < chunk_items ? items - base : chunk_items;
      const auto support_at = [&](int item) {
        if (shape.shared_support) return support;
        return support + (item - quotient(item, reciprocal) * actions) * support_pitch(shape);
      };
      const auto reduce_items = [&](auto loop) {
        using Q = typename decltype(loop)::Q;
        constexpr int kAtoms = decltype(loop)::kAtoms;
        const Q* q = reinterpret_cast<const Q*>(mine + buffer * at.chunk);
        const bool quantiles = Family && args.family.critic == QPI_CRITIC_QUANTILE;
        if constexpr (kAtoms != kMoreThanShort) {
          if (quantiles) {
            for (int item = lane; item < here; item += kWarp)
              values[base + item] = quantile_short(q + item * atoms, atoms);
            return;
          }
          const int count = kAtoms > 0 ? kAtoms : atoms;
#pragma unroll 1
          for (int item = lane; item < here; item += kWarp)
            values[base + item] = reduce_short<kAtoms>(q + item * count, support_at(base + item), count);
        } else {
#pragma unroll 1
          for (int item = lane / kLongPartials; item - lane / kLongPartials < here; item += kWarp / kLongPartials) {
            const bool present = item < here;
            const int used = present ? item : 0;
            const Q* of_item = q + used * atoms;
            if (quantiles) {
              const float mean = quantile_long(of_item, present ? atoms : 0);
              if (present) values[base + item] = mean;
              continue;
            }
            const float value = atoms % 2 == 0 ? reduce_long<true>(of_item, support_at(base + used), atoms, present)
                                               : reduce_long<false>(of_item, support_at(base + used), atoms, present);
            if (present) values[base + item] = value;
          }
        }
      };
      // A kernel's only loop needs no question.
      (void)(... || ((sizeof...(Loops) == 1 || Loops::serves(args.q_dtype, atoms)) && (reduce_items(Loops{}), true)));
      __syncwarp();
      fetch_chunk(buffer);
      buffer = buffer + 1 < launch.buffers ? buffer + 1 : 0;
    }

    ring.wait(kSide);
    __syncwarp();
    if (!plain_logits) {
      with_type(args.pi_dtype, [&](auto type) {
        const auto* pi = reinterpret_cast<const decltype(type)*>(staged_pi);
        const auto* mask = reinterpret_cast<const uint8_t*>(mine + at.mask);
#pragma unroll 2
        for (int base = 0; base < items; base += kWarp) {
          const int item = base + lane;
          float x = 0.0f;
          if (item < items) {
            bool allowed = true;
            if (staged_mask) {
              allowed = mask[item] != 0;
            } else if (args.legal_actions != nullptr) {
              const int row = quotient(item, reciprocal);
              allowed = is_allowed(args, first + row, item - row * actions);
            }
            x = legal_logit(to_float(pi[item]), allowed, args.illegal_below);
          }
          if constexpr (sizeof type != 4) __syncwarp();  // what is overwritten has been read
          if (item < items) logits[item] = x;
        }
      });
      __syncwarp();
    }

    RowShare share{};
    RowSummary<float> summary{};
    const auto distill = [&](auto lanes, float* row_values, float* row_logits, int count, float of_row) {
      constexpr int kLanes = decltype(lanes)::value;
      if constexpr (Family) {
        return distill_family<kLanes>(row_values, row_logits, count, of_row, numbers, args.family, &summary);
      } else {
        return distill_row<kLanes>(row_values, row_logits, count, of_row, numbers);
      }
    };
    if (wide) {
      RowSummary<float> of_lane{};
      const int rows = static_cast<int>(args.rows - first < args.tile_rows ? args.rows - first : args.tile_rows);
#pragma unroll 1
      for (int row = 0; row < rows; ++row) {
        const RowShare of_row = distill(IntConstant<kWarp>{}, values + row * actions, logits + row * actions, actions,
                                        __shfl_sync(kFullWarp, weight, row));
        if (lane == row) share = of_row;
        if (Family && lane == row) of_lane = summary;
      }
      summary = of_lane;
    } else {
      float* row_values = values + local * actions;
      float* row_logits = logits + local * actions;
      const int count = there ? actions : 0;
      share = lanes_of_row == 1 ? distill(IntConstant<1>{}, row_values, row_logits, count, weight)
                                : distill(IntConstant<kPartials>{}, row_values, row_logits, count, weight);
    }
    if (args.row0 && first + local != 0) share = out_of_statistic(share);
    slot_sum.add(share);
    if constexpr (Family) {
      if (args.summary_slots != nullptr) {
        add_row(slot_summary, share.weight, summary);
        if (now.last_of_slot()) {
          const qpi_summary sum = merge_summaries(slot_summary, lanes_of_row, args.tile_rows * lanes_of_row);
          if (lane == 0) args.summary_slots[now.slot] = sum;
          slot_summary = qpi_summary{};
        }
      }
    }
    if (now.last_of_slot()) {
      store_slot(args.slots + now.slot, slot_sum, args.tile_rows, lanes_of_row);
      slot_sum = LaneSum{};
    }
    __syncwarp();

    if (args.pi_grad != nullptr) {
      with_type(args.grad_dtype, [&](auto type) {
        using G = decltype(type);
        G* to = static_cast<G*>(args.pi_grad) + now.tile * tile_items;
        const G* before = reinterpret_cast<const G*>(mine + at.grad);
#pragma unroll 2
        for (int item = lane; item < items; item += kWarp)
          store_step(to + item, values[item], read_grad, read_grad ? to_float(before[item]) : 0.0f);
      });
    }
    __syncwarp();
    TileWalk following = now;
    following.next();
    if (!following.done()) fetch_side(following.tile);
  }
}

// 51 atoms is what most C51 critics have, 21 what the seed kernels have; known numbers of atoms stay in registers. The
// loops over many atoms are bound by latency, and want twice as many warps more than they want registers.
using Half = __half;
using BFloat = __nv_bfloat16;

template <int Registers, bool Family, class... Loops>
struct TileKernel {
  static const void* address() { return reinterpret_cast<const void*>(tile_rows<Registers, Family, Loops...>); }
  static bool serves(qpi_dtype dtype, int64_t atoms, bool plain) {
    return plain != Family && (... || Loops::serves(dtype, atoms));
  }
};

template <class... Kernels>
const void* first_that_serves(qpi_dtype dtype, int64_t atoms, bool plain) {
  const void* found = nullptr;
  (void)(... || (Kernels::serves(dtype, atoms, plain) && (found = Kernels::address(), true)));
  return found;
}

}  // namespace

size_t tile_shared_bytes(const TileShape& shape, int warps, const TileLaunch& launch) {
  return support_bytes(shape) + static_cast<size_t>(warps) * TileLayout(shape, launch).total;
}

const void* tile_kernel(qpi_dtype q_dtype, int64_t atoms, bool plain) {
  return first_that_serves<
      // The plain step.
      TileKernel<kFewWarps, false, AtomLoop<float, 21>>, TileKernel<kManyWarps, false, AtomLoop<BFloat, 21>>,
      TileKernel<kFewWarps, false, AtomLoop<float, 51>, AtomLoop<float, kUpToShort>>,
      TileKernel<kFewWarps, false, AtomLoop<Half, 21>, AtomLoop<Half, 51>, AtomLoop<Half, kUpToShort>,
                 AtomLoop<BFloat, 51>, AtomLoop<BFloat, kUpToShort>>,
      TileKernel<kManyWarps, false, AtomLoop<float, kMoreThanShort>, AtomLoop<Half, kMoreThanShort>,
                 AtomLoop<BFloat, kMoreThanShort>>,
      // The rest of the family.
      TileKernel<kFewWarps, true, AtomLoop<float, kUpToShort>, AtomLoop<Half, kUpToShort>,
                 AtomLoop<BFloat, kUpToShort>>,
      TileKernel<kFewWarps, true, AtomLoop<float, kMoreThanShort>, AtomLoop<Half, kMoreThanShort>,
                 AtomLoop<BFloat, kMoreThanShort>>>(q_dtype, atoms, plain);
}

}  // namespace qpi::gpu
