// Global to shared memory, by all threads of a block: asynchronous where the hardware can (compute capability 8.0).
#pragma once

#include <cstdint>

namespace qpi::gpu {

template <int Bytes>
struct Chunk;
template <>
struct Chunk<16> {
  using Type = uint4;
};
template <>
struct Chunk<4> {
  using Type = uint32_t;
};
template <>
struct Chunk<2> {
  using Type = uint16_t;
};

template <int Bytes>
__device__ inline void copy_chunk(char* to, const char* from) {
#if __CUDA_ARCH__ >= 800
  if constexpr (Bytes >= 4) {
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
    if constexpr (Bytes == 16) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
    } else {
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(from) : "memory");
    }
    return;
  }
#endif
  using Type = typename Chunk<Bytes>::Type;
  *reinterpret_cast<Type*>(to) = *reinterpret_cast<const Type*>(from);
}

template <int Bytes>
__device__ inline int64_t copy_chunks(char* to, const char* from, int64_t bytes) {
  const int64_t whole = bytes / Bytes * Bytes;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * Bytes; i < whole; i += static_cast<int64_t>(blockDim.x) * Bytes)
    copy_chunk<Bytes>(to + i, from + i);
  return whole;
}

// `to` is 16-byte aligned; `from` is as aligned as its elements are (2 or 4 bytes), or better.
__device__ inline void stage(char* to, const void* source, int64_t bytes) {
  const char* from = static_cast<const char*>(source);
  const auto address = reinterpret_cast<uintptr_t>(from);
  int64_t done = 0;
  if (address % 16 == 0) done += copy_chunks<16>(to, from, bytes);
  if (address % 4 == 0) done += copy_chunks<4>(to + done, from + done, bytes - done);
  copy_chunks<2>(to + done, from + done, bytes - done);
}

__device__ inline void stage_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait until at most `Pending` of the committed groups are under way.
template <int Pending>
__device__ inline void stage_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#endif
}

}  // namespace qpi::gpu
