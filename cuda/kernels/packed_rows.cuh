// What the kernels for packed arrays share: their shape in shared memory, and the reduction of an action's atoms there.
#pragma once

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

__device__ inline void stage_support(const RowsArgs& args, const TileShape& shape, float* support) {
  const float middle = support_middle(args.support[0], args.support[(args.atoms - 1) * args.support_stride[1]]);
  for (unsigned a = 0; a < (shape.shared_support ? 1 : shape.actions); ++a) {
    for (unsigned z = threadIdx.x; z < shape.atoms; z += blockDim.x) {
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

template <int Count>
__device__ inline void add_maxima(AtomMaximum<float> (&maxima)[kPartials], const float (&x)[Count], int left) {
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    if (i < left) maxima[i % kPartials].add(x[i]);
  }
}

// `centred` is 16-byte aligned.
template <int Count>
__device__ inline void add_weights(AtomSums<float> (&sums)[kPartials], const AtomWeights& weight,
                                   const float (&x)[Count], const float* centred, int left) {
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
  AtomMaximum<float> maxima[kPartials];
  AtomSums<float> sums[kPartials];
  if constexpr (Atoms > 0) {
    float x[Atoms];
#pragma unroll
    for (int z = 0; z < Atoms; ++z) x[z] = to_float(q[z]);
    add_maxima(maxima, x, Atoms);
    add_weights(sums, AtomWeights(RowTeam<1>::merge(maxima)), x, centred, Atoms);
  } else {
    const auto load = [&](auto& x, int z, int left) {
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof x / sizeof x[0]); ++i) x[i] = i < left ? to_float(q[z + i]) : 0.0f;
    };
    for_each_group(atoms, [&](int z, auto count, int left) {
      float x[decltype(count)::value];
      load(x, z, left);
      add_maxima(maxima, x, left);
    });
    const AtomWeights weight(RowTeam<1>::merge(maxima));
    for_each_group(atoms, [&](int z, auto count, int left) {
      float x[decltype(count)::value];
      load(x, z, left);
      add_weights(sums, weight, x, centred + z, left);
    });
  }
  const float mean = RowTeam<1>::merge(sums).mean();
  return is_finite(mean) ? mean : reduce_any(q, centred, atoms);
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
  for_each_long_atom<Even>(q, centred, mine, [&](float x, float) { maximum.add(x); });
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
