// What the kernels for packed arrays share: their shape in shared memory, and the reduction of an action's atoms there.
#pragma once

#include <type_traits>

#include "device_rows.cuh"
#include "launch.h"

namespace qpi::gpu {

__host__ __device__ constexpr unsigned round_up_16(unsigned bytes) { return (bytes + 15) / 16 * 16; }

__device__ inline unsigned element_bytes(qpi_dtype dtype) { return dtype == QPI_FLOAT32 ? 4 : 2; }

__device__ inline TileShape tile_shape(const RowsArgs& args) {
  const bool read_grad = args.pi_grad != nullptr && !args.write;
  return {static_cast<unsigned>(args.actions),
          static_cast<unsigned>(args.atoms),
          static_cast<unsigned>(args.tile_rows),
          element_bytes(args.q_dtype),
          element_bytes(args.pi_dtype),
          read_grad ? element_bytes(args.grad_dtype) : 0u,
          args.support_stride[0] == 0,
          args.legal_actions != nullptr && args.legal_stride[0] == args.actions && args.legal_stride[1] == 1};
}

// ---- the support about its middle, each action's 16-byte aligned -------------------------------------------------

__host__ __device__ constexpr unsigned support_pitch(const TileShape& shape) {
  return round_up_16(4 * shape.atoms) / 4;
}
__host__ __device__ constexpr unsigned support_bytes(const TileShape& shape) {
  return 4 * support_pitch(shape) * (shape.shared_support ? 1 : shape.actions);
}

// By `threads` threads, of which the caller is one.
__device__ inline void stage_support(const RowsArgs& args, const TileShape& shape, float* support, unsigned thread,
                                     unsigned threads) {
  if (args.support == nullptr) return;
  const float middle = support_middle(args.support[0], args.support[(args.atoms - 1) * args.support_stride[1]]);
  for (unsigned a = 0; a < (shape.shared_support ? 1 : shape.actions); ++a) {
    for (unsigned z = thread; z < shape.atoms; z += threads) {
      support[a * support_pitch(shape) + z] =
          args.support[a * args.support_stride[0] + z * args.support_stride[1]] - middle;
    }
  }
}

// ---- the atoms of one action: their expected value, or the mark that there is none ---------------------------------

// The general way, by one thread. Rare, so out of line.
template <class Q>
__device__ __noinline__ float reduce_any(const Q* q, const float* centred, int atoms) {
  AtomMaximum<float> maxima[kPartials];
  AtomSums<float> sums[kPartials];
  const auto for_each = [&](auto body) {
#pragma unroll 1
    for (int z = 0; z < atoms; z += kPartials) {
#pragma unroll
      for (int k = 0; k < kPartials; ++k) {
        if (k > 0 && z + k >= atoms) break;
        body(k, z + k);
      }
    }
  };
  for_each([&](int k, int z) { maxima[k].add(to_float(q[z])); });
  const AtomMaximum<float> maximum = RowTeam<1>::merge(maxima);
  for_each([&](int k, int z) { sums[k].add(maximum.weight(to_float(q[z])), centred[z]); });
  return marked_value(maximum, RowTeam<1>::merge(sums).mean());
}

// Calls body(z, IntConstant<n>) for groups of n atoms, whole ones of 16 as long as there are.
template <class Body>
__device__ inline void for_each_group(int atoms, Body body) {
  constexpr int kTogether = 16;
  int z = 0;
#pragma unroll 1
  for (; z + kTogether <= atoms; z += kTogether) body(z, IntConstant<kTogether>{}, kTogether);
#pragma unroll 1
  for (; z < atoms; z += kPartials) body(z, IntConstant<kPartials>{}, atoms - z);
}

// The logits of `Count` neighbouring atoms as they lie in memory, `left` of them there, and their largest.
template <class Q>
struct Neighbours {
  template <int Count>
  struct Group {
    float x[Count];

    __device__ Group(const Q* q, int left) {
#pragma unroll
      for (int i = 0; i < Count; ++i) x[i] = i < left ? q[i] : 0.0f;
    }
    __device__ float operator[](int i) const { return x[i]; }
  };

  AtomMaximum<float> maxima[kPartials];

  template <int Count>
  __device__ void add(const Group<Count>& group, int left) {
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      if (i < left) maxima[i % kPartials].add(group[i]);
    }
  }
  __device__ AtomMaximum<float> maximum() { return RowTeam<1>::merge(maxima); }
};

__device__ inline __half2 as_pair(uint32_t word, __half) { return *reinterpret_cast<const __half2*>(&word); }
__device__ inline __nv_bfloat162 as_pair(uint32_t word, __nv_bfloat16) {
  return *reinterpret_cast<const __nv_bfloat162*>(&word);
}
template <class Pair>
__device__ inline uint32_t as_word(Pair pair) {
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ inline float low_half(uint32_t word, __half type) { return __low2float(as_pair(word, type)); }
__device__ inline float high_half(uint32_t word, __half type) { return __high2float(as_pair(word, type)); }
__device__ inline float low_half(uint32_t word, __nv_bfloat16) { return __uint_as_float(word << 16); }
__device__ inline float high_half(uint32_t word, __nv_bfloat16) { return __uint_as_float(word & 0xffff0000u); }

// Half-precision logits stay in pairs: half the loads, half the registers and half the comparisons.
template <class Q>
struct HalfNeighbours {
  template <int Count>
  struct Group {
    static constexpr int kWords = (Count + 1) / 2;
    uint32_t word[kWords];

    __device__ Group(const Q* q, int left) {
      // Where the first one is the upper half of a word, all of them move down by a half.
      const auto address = reinterpret_cast<uintptr_t>(q);
      const int odd = address / 2 % 2;
      const auto* words = reinterpret_cast<const uint32_t*>(address - 2 * odd);
      uint32_t raw[kWords + 1];
#pragma unroll
      for (int i = 0; i <= kWords; ++i) raw[i] = 2 * i < left + odd ? words[i] : 0;
#pragma unroll
      for (int i = 0; i < kWords; ++i) word[i] = __funnelshift_r(raw[i], raw[i + 1], 16 * odd);
    }
    __device__ float operator[](int i) const {
      return i % 2 == 0 ? low_half(word[i / 2], Q{}) : high_half(word[i / 2], Q{});
    }
  };

  uint32_t largest[2] = {kLowest, kLowest};

  __device__ void add_word(uint32_t word, int which = 0) {
    largest[which] = as_word(__hmax2_nan(as_pair(largest[which], Q{}), as_pair(word, Q{})));
  }
  template <int Count>
  __device__ void add(const Group<Count>& group, int left) {
#pragma unroll
    for (int i = 0; i < Group<Count>::kWords; ++i) {
      uint32_t word = group.word[i];
      if (2 * i + 1 >= left) word = __byte_perm(word, 0, 0x1010);  // its upper half is not ours
      if (2 * i < left) add_word(word, i % 2);
    }
  }
  __device__ AtomMaximum<float> maximum() const {
    const uint32_t both = as_word(__hmax2_nan(as_pair(largest[0], Q{}), as_pair(largest[1], Q{})));
    return {lane_max_or_nan(low_half(both, Q{}), high_half(both, Q{}))};
  }

 private:
  static constexpr uint32_t kLowest = std::is_same_v<Q, __half> ? 0xfc00fc00u : 0xff80ff80u;  // minus infinity
};
template <>
struct Neighbours<__half> : HalfNeighbours<__half> {};
template <>
struct Neighbours<__nv_bfloat16> : HalfNeighbours<__nv_bfloat16> {};

// `centred` is 16-byte aligned.
template <int Count, class Group>
__device__ inline void add_weights(AtomSums<float> (&sums)[kPartials], const AtomWeights& weight, const Group& x,
                                   const float* centred, int left) {
#pragma unroll
  for (int i = 0; i < Count; i += kPartials) {
    const float4 c = *reinterpret_cast<const float4*>(centred + i);
    const float of_support[kPartials] = {c.x, c.y, c.z, c.w};
#pragma unroll
    for (int k = 0; k < kPartials && i + k < Count; ++k) {
      if (i + k < left) sums[k].add(weight(x[i + k]), of_support[k]);
    }
  }
}

// By one thread. With Atoms > 0 their number is known, and they stay in registers between the two passes.
template <int Atoms, class Q>
__device__ inline float reduce_short(const Q* q, const float* centred, int runtime_atoms) {
  const int atoms = Atoms > 0 ? Atoms : runtime_atoms;
  Neighbours<Q> all;
  AtomSums<float> sums[kPartials];
  if constexpr (Atoms > 0) {
    const typename Neighbours<Q>::template Group<Atoms> x(q, Atoms);
    all.add(x, Atoms);
    add_weights<Atoms>(sums, AtomWeights(all.maximum()), x, centred, Atoms);
  } else {
    const auto for_each = [&](auto body) {
      for_each_group(atoms, [&](int z, auto count, int left) {
        const typename Neighbours<Q>::template Group<decltype(count)::value> x(q + z, left);
        body(z, count, x, left);
      });
    };
    for_each([&](int, auto, const auto& x, int left) { all.add(x, left); });
    const AtomWeights weight(all.maximum());
    for_each([&](int z, auto count, const auto& x, int left) {
      add_weights<decltype(count)::value>(sums, weight, x, centred + z, left);
    });
  }
  const float mean = RowTeam<1>::merge(sums).mean();
  return is_finite(mean) ? mean : reduce_any(q, centred, atoms);
}

// The mean of one action's quantiles, by one thread, or by kLongPartials adjacent lanes with every lane of the warp
// calling.
template <class Q>
__device__ inline float quantile_short(const Q* q, int atoms) {
  AtomSums<float> sums[kPartials];
#pragma unroll 1
  for (int z = 0; z < atoms; z += kPartials) {
#pragma unroll
    for (int k = 0; k < kPartials; ++k) {
      if (z + k < atoms) sums[k].add(1.0f, to_float(q[z + k]));
    }
  }
  return quantile_value(RowTeam<1>::merge(sums).mean());
}
template <class Q>
__device__ inline float quantile_long(const Q* q, int atoms) {
  AtomSums<float> sums;
  for (int z = 2 * (threadIdx.x % kLongPartials); z < atoms; z += 2 * kLongPartials) {
    sums.add(1.0f, to_float(q[z]));
    if (z + 1 < atoms) sums.add(1.0f, to_float(q[z + 1]));
  }
  merge_lanes(sums, 1, kLongPartials);
  return quantile_value(sums.mean());
}

// Two neighbours that start at an even index of an array with an even number of elements.
__device__ inline float2 load_pair(const float* from) { return *reinterpret_cast<const float2*>(from); }
__device__ inline float2 load_pair(const __half* from) {
  return __half22float2(*reinterpret_cast<const __half2*>(from));
}
__device__ inline float2 load_pair(const __nv_bfloat16* from) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
}

// Calls body(x, c) for the logit and the support value of each atom of this lane. With `Even`, the number of atoms is.
template <bool Even, class Q, class Body>
__device__ inline void for_each_long_atom(const Q* q, const float* centred, int atoms, Body body) {
  const int lane = threadIdx.x % kLongPartials;
#pragma unroll 4
  for (int z = 2 * lane; z + 1 < atoms; z += 2 * kLongPartials) {
    const float2 c = load_pair(centred + z);
    if constexpr (Even) {
      const float2 x = load_pair(q + z);
      body(x.x, c.x);
      body(x.y, c.y);
    } else {
      body(to_float(q[z]), c.x);
      body(to_float(q[z + 1]), c.y);
    }
  }
  // The last of an odd number has no neighbour.
  if (!Even && atoms > 0 && (atoms - 1) / 2 % kLongPartials == lane) body(to_float(q[atoms - 1]), centred[atoms - 1]);
}

// The general way. Every lane of the warp calls it.
template <bool Even, class Q>
__device__ __noinline__ float reduce_any_long(const Q* q, const float* centred, int atoms) {
  AtomMaximum<float> maximum;
  for_each_long_atom<Even>(q, centred, atoms, [&](float x, float) { maximum.add(x); });
  merge_lanes(maximum, 1, kLongPartials);
  AtomSums<float> sums;
  for_each_long_atom<Even>(q, centred, atoms, [&](float x, float c) { sums.add(maximum.weight(x), c); });
  merge_lanes(sums, 1, kLongPartials);
  return marked_value(maximum, sums.mean());
}

// By kLongPartials adjacent lanes, every lane of the warp calling; all of them get the value. `there`: is this item?
template <bool Even, class Q>
__device__ inline float reduce_long(const Q* q, const float* centred, int atoms, bool there) {
  const int mine = there ? atoms : 0;
  AtomMaximum<float> maximum;
  if constexpr (Even && sizeof(Q) == 2) {
    Neighbours<Q> pairs;
#pragma unroll 4
    for (int z = 2 * (threadIdx.x % kLongPartials); z < mine; z += 2 * kLongPartials)
      pairs.add_word(*reinterpret_cast<const uint32_t*>(q + z));
    maximum = pairs.maximum();
  } else {
    for_each_long_atom<Even>(q, centred, mine, [&](float x, float) { maximum.add(x); });
  }
  merge_lanes(maximum, 1, kLongPartials);
  const AtomWeights weight(maximum);
  AtomSums<float> sums;
  for_each_long_atom<Even>(q, centred, mine, [&](float x, float c) { sums.add(weight(x), c); });
  merge_lanes(sums, 1, kLongPartials);
  const float mean = sums.mean();
  const bool good = is_finite(mean);
  if (__all_sync(kFullWarp, good || !there)) return mean;
  const float any = reduce_any_long<Even>(q, centred, mine);
  return good ? mean : any;
}

}  // namespace qpi::gpu
