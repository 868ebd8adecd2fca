// The end of a call on rows, by one block: fold the slots in the fixed tree, then the moving averages and the law.
#pragma once

#include "device_rows.cuh"

namespace qpi::gpu {

// The ISV in shared memory: one word a thread, scattered back where it changed.
struct SharedIsv {
  uint32_t word[kNativeWords];
  uint32_t before[kNativeWords];

  __device__ void scatter(const IsvWords& isv) const {
    for (int i = threadIdx.x; i < kNativeWords; i += blockDim.x) {
      if (word[i] != before[i]) *isv.at(i) = word[i];
    }
  }
  __device__ IsvImage image(const IsvWords& isv) { return {word, isv.has(QPI_SLOT_observations), isv.flight}; }
};

__device__ inline StatTotal shuffle_total(const StatTotal& r, int lanes) {
  StatTotal other;
  other.weighted_kl = __shfl_xor_sync(kFullWarp, r.weighted_kl, lanes);
  other.weight = __shfl_xor_sync(kFullWarp, r.weight, lanes);
  other.weighted_variance = __shfl_xor_sync(kFullWarp, r.weighted_variance, lanes);
  other.rows = __shfl_xor_sync(kFullWarp, static_cast<long long>(r.rows), lanes);
  other.skipped = __shfl_xor_sync(kFullWarp, static_cast<long long>(r.skipped), lanes);
  other.clipped = __shfl_xor_sync(kFullWarp, static_cast<long long>(r.clipped), lanes);
  other.faults = __shfl_xor_sync(kFullWarp, r.faults, lanes);
  return other;
}

// Pairwise over the first `width` lanes; the others must hold zeros.
__device__ inline StatTotal fold_warp(StatTotal mine, int width) {
  for (int lanes = 1; lanes < width; lanes *= 2) add_total(mine, shuffle_total(mine, lanes));
  return mine;
}

struct FinishStorage {
  SharedIsv isv;
  StatTotal of_group[kFoldLanes / kWarp];
  RecordHead record;      // the workspace's, read ahead
  double summary_weight;  // of it
};

// What the end of a step reads besides the slots. Loads apart from stores, so that a caller can have all of its loads
// under way before it waits for any.
constexpr int kLoaders = 64;  // a block has at least as many threads
constexpr int kWordsPerLoader = (kNativeWords + kLoaders - 1) / kLoaders;

struct FinishLoads {
  uint32_t word[kWordsPerLoader];  // of the ISV, this thread's
  RecordHead record;               // thread 0's, and so is the next
  double summary_weight;
};

__device__ inline FinishLoads load_finish(const FinishArgs& args) {
  FinishLoads loads{};
#pragma unroll
  for (int i = 0; i < kWordsPerLoader; ++i) {
    const int word = threadIdx.x + i * kLoaders;
    if (threadIdx.x < kLoaders && word < kNativeWords) loads.word[i] = *args.isv.at(word);
  }
  if (threadIdx.x == 0) {
    loads.record = head_of(*args.record);
    loads.summary_weight = args.record->summary.weight;
  }
  return loads;
}

__device__ inline void store_finish(const FinishLoads& loads, FinishStorage& storage) {
#pragma unroll
  for (int i = 0; i < kWordsPerLoader; ++i) {
    const int at = threadIdx.x + i * kLoaders;
    if (threadIdx.x < kLoaders && at < kNativeWords) storage.isv.word[at] = storage.isv.before[at] = loads.word[i];
  }
  if (threadIdx.x == 0) {
    storage.record = loads.record;
    storage.summary_weight = loads.summary_weight;
  }
}

// The fixed tree over slots, `lanes` of it in use, then the end of the step. `of_lane(i)` is what lane i of the tree
// holds. store_finish and a __syncthreads lie behind.
template <class OfLane>
__device__ inline void finish_block(const FinishArgs& args, const StepNumbers& numbers, int lanes,
                                    FinishStorage& storage, OfLane of_lane) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  // The rest of the tree would add zeros, which changes nothing.
  const auto fold_group = [&](int group) {
    const int mine = group * kWarp + lane;
    return fold_warp(mine < lanes ? of_lane(mine) : StatTotal{}, lanes < kWarp ? lanes : kWarp);
  };
  if (lanes <= kWarp) {
    if (warp == 0) {
      const StatTotal total = fold_group(0);
      if (lane == 0) finish(args, storage.isv.image(args.isv), numbers, storage.record, storage.summary_weight, total);
    }
  } else {
    const int groups = (lanes + kWarp - 1) / kWarp;
    for (int group = warp; group < groups; group += blockDim.x / kWarp) {
      const StatTotal sum = fold_group(group);
      if (lane == 0) storage.of_group[group] = sum;
    }
    __syncthreads();
    if (warp == 0) {
      const StatTotal total = fold_warp(lane < groups ? storage.of_group[lane] : StatTotal{}, groups);
      if (lane == 0) finish(args, storage.isv.image(args.isv), numbers, storage.record, storage.summary_weight, total);
    }
  }
  __syncthreads();
  storage.isv.scatter(args.isv);
}

}  // namespace qpi::gpu
