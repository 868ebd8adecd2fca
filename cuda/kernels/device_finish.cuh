// The end of a call on rows, by one block: fold the slots in the fixed tree, then the moving averages and the law.
#pragma once

#include "device_rows.cuh"

namespace qpi::gpu {

// The ISV in shared memory: one word a thread, scattered back where it changed.
struct SharedIsv {
  uint32_t word[kNativeWords];
  uint32_t before[kNativeWords];

  // By `threads` threads, of which the caller is one.
  __device__ void scatter(const IsvWords& isv, int thread, int threads) const {
    for (int i = thread; i < kNativeWords; i += threads) {
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

// What the end of a step reads besides the sums, by one warp. Loads apart from stores, so that a caller can have all of
// its loads under way before it waits for any.
class FinishLoads {
 public:
  RecordHead record;      // the workspace's; only the first lane has it
  double summary_weight;  // of it

  // Nothing is read but where `reads`.
  __device__ FinishLoads(const FinishArgs& args, const IsvWords& isv, bool reads) : record{}, summary_weight(0.0) {
    if (!reads) return;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if (mine(i) < kNativeWords) word_[i] = *isv.at(mine(i));
    }
    if (threadIdx.x % kWarp == 0) {
      record = head_of(*args.record);
      summary_weight = args.record->summary.weight;
    }
  }
  __device__ void store(SharedIsv& isv) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if (mine(i) < kNativeWords) isv.word[mine(i)] = isv.before[mine(i)] = word_[i];
    }
  }

 private:
  static constexpr int kWords = (kNativeWords + kWarp - 1) / kWarp;
  __device__ static int mine(int i) { return threadIdx.x % kWarp + i * kWarp; }

  uint32_t word_[kWords];
};

// The end of the step, by a warp whose first lane knows the sum of the call.
__device__ inline void finish_by_warp(const FinishArgs& args, const IsvWords& words, const StepNumbers& numbers,
                                      const LamStart& lam, const FinishLoads& loads, SharedIsv& isv,
                                      const StatTotal& total) {
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) finish(args, isv.image(words), numbers, lam, loads.record, loads.summary_weight, total);
  __syncwarp();
  isv.scatter(words, lane, kWarp);
}

}  // namespace qpi::gpu
