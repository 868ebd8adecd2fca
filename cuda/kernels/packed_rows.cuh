// What the kernels for packed arrays share: their shape in shared memory, and the way from a (row, action) pair to its
// expected value and policy logit.
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
          element_bytes(args.q_dtype),
          element_bytes(args.pi_dtype),
          read_grad ? element_bytes(args.grad_dtype) : 0u,
          args.support_stride[0] == 0};
}

// ---- the support about its middle, each action's 16-byte aligned -------------------------------------------------

__host__ __device__ constexpr unsigned support_pitch(const TileShape& shape) {
  return round_up_16(4 * shape.atoms) / 4;
}
__host__ __device__ constexpr unsigned support_bytes(const TileShape& shape) {
  return 4 * support_pitch(shape) * (shape.shared_support ? 1 : shape.actions);
}

__device__ inline void stage_support(const RowsArgs& args, const TileShape& shape, float middle, float* support) {
  for (unsigned a = 0; a < (shape.shared_support ? 1 : shape.actions); ++a) {
    for (unsigned z = threadIdx.x; z < shape.atoms; z += blockDim.x) {
      support[a * support_pitch(shape) + z] =
          args.support[a * args.support_stride[0] + z * args.support_stride[1]] - middle;
    }
  }
}

__device__ inline const float* support_of(const float* support, const TileShape& shape, int action) {
  return shape.shared_support ? support : support + action * support_pitch(shape);
}

// ---- one (row, action) pair ----

// Its policy logit, -inf if the action is illegal or the row is not there. `staged` holds the logits from item 0 on.
__device__ inline float action_logit(const RowsArgs& args, int64_t row, int action, const void* staged, int item) {
  const bool allowed = (args.row_weights == nullptr || args.row_weights[row * args.weight_stride] != 0.0f) &&
                       (args.legal_actions == nullptr ||
                        args.legal_actions[row * args.legal_stride[0] + action * args.legal_stride[1]] != 0);
  return legal_logit(load_element(staged, args.pi_dtype, item), allowed, args.illegal_below);
}

// The expected value of one action, or the mark that it has none. `centred` is 16-byte aligned. With Atoms > 0 their
// number is known, and a few of them stay in registers between the two passes.
template <int Atoms, class Q>
__device__ float reduce_atoms(const Q* q, const float* centred, int runtime_atoms) {
  const int atoms = Atoms > 0 ? Atoms : runtime_atoms;
  constexpr bool kKeep = Atoms > 0 && Atoms <= 32;
  constexpr int kUnroll = kKeep ? (Atoms + kPartials - 1) / kPartials : 2;
  float kept[kKeep ? Atoms : 1] = {};
  const auto logit = [&](int z) {
    if constexpr (kKeep) return kept[z];
    return to_float(q[z]);
  };

  if constexpr (kKeep) {
#pragma unroll
    for (int z = 0; z < Atoms; ++z) kept[z] = to_float(q[z]);
  }
  AtomMaximum<float> maximum[kPartials];
#pragma unroll kUnroll
  for (int z = 0; z < atoms; z += kPartials) {
#pragma unroll
    for (int k = 0; k < kPartials; ++k) {
      if (k > 0 && z + k >= atoms) break;
      maximum[k].add(logit(z + k));
    }
  }
  maximum[0].merge(maximum[1]);
  maximum[2].merge(maximum[3]);
  maximum[0].merge(maximum[2]);
  const float highest = maximum[0].highest;

  AtomSums<float> sums[kPartials];
#pragma unroll kUnroll
  for (int z = 0; z < atoms; z += kPartials) {
    const float4 c = *reinterpret_cast<const float4*>(centred + z);
    sums[0].add(logit(z), highest, c.x);
    if (z + 1 < atoms) sums[1].add(logit(z + 1), highest, c.y);
    if (z + 2 < atoms) sums[2].add(logit(z + 2), highest, c.z);
    if (z + 3 < atoms) sums[3].add(logit(z + 3), highest, c.w);
  }
  sums[0].merge(sums[1]);
  sums[2].merge(sums[3]);
  sums[0].merge(sums[2]);
  return expected_value(maximum[0], sums[0]);
}

}  // namespace qpi::gpu
