// Global to shared memory by one warp, ahead of its use: with the bulk copy engine (compute capability 9.0), with
// asynchronous copies (8.0), or with plain loads and stores.
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
__device__ inline void copy_chunks(char* to, const char* from, unsigned begin, unsigned end) {
  for (unsigned i = begin + threadIdx.x % 32 * Bytes; i < end; i += 32 * Bytes) copy_chunk<Bytes>(to + i, from + i);
}

// `to` is 16-byte aligned; `from` is as aligned as its elements are (2 or 4 bytes), or better. Not inlined: it is
// called from several places, and rarely where there is a copy engine.
static __device__ __noinline__ void stage(char* to, const void* source, unsigned bytes) {
  const char* from = static_cast<const char*>(source);
  const unsigned misaligned = static_cast<unsigned>(reinterpret_cast<uintptr_t>(from));
  if (misaligned % 16 == 0) {
    const unsigned whole = bytes / 16 * 16;
    copy_chunks<16>(to, from, 0, whole);
    if (whole != bytes) copy_chunks<2>(to, from, whole, bytes);
  } else if (misaligned % 4 == 0 && bytes % 4 == 0) {
    copy_chunks<4>(to, from, 0, bytes);
  } else {
    copy_chunks<2>(to, from, 0, bytes);
  }
}

// Can the copy engine take this piece?
__device__ inline bool whole_chunks(const void* from, unsigned bytes) {
  return bytes == 0 || (static_cast<unsigned>(reinterpret_cast<uintptr_t>(from)) | bytes) % 16 == 0;
}

// One fetch at a time. Every lane of the warp calls every function.
class Staging {
 public:
  // Once, before anything else; `barrier` is 8 bytes of the warp's shared memory. A __syncwarp must follow.
  __device__ void init(uint64_t* barrier) {
    barrier_ = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier_) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
#endif
  }

  // `bulk`: every piece starts at a multiple of 16 bytes and is one; the others take the slow road.
  template <int Pieces>
  __device__ void fetch(bool bulk, char* const (&to)[Pieces], const void* const (&from)[Pieces],
                        const unsigned (&bytes)[Pieces]) {
#if __CUDA_ARCH__ >= 900
    const bool after_plain = !bulk_;
    bulk_ = bulk;
    if (bulk_) {
      if (threadIdx.x % 32 == 0) {
        // Ordinary copies into this buffer come before what the copy engine does there.
        if (after_plain) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        unsigned total = 0;
#pragma unroll
        for (int i = 0; i < Pieces; ++i) total += bytes[i];
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier_), "r"(total) : "memory");
#pragma unroll
        for (int i = 0; i < Pieces; ++i) {
          if (bytes[i] == 0) continue;  // there is nothing to read
          asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                           static_cast<unsigned>(__cvta_generic_to_shared(to[i]))),
                       "l"(from[i]), "r"(bytes[i]), "r"(barrier_)
                       : "memory");
        }
      }
      return;
    }
#endif
#pragma unroll
    for (int i = 0; i < Pieces; ++i) stage(to[i], from[i], bytes[i]);
  }

  // A __syncwarp must follow.
  __device__ void wait() {
#if __CUDA_ARCH__ >= 900
    if (bulk_) {
      unsigned done = 0;
      while (done == 0) {
        asm volatile(
            "{\n"
            " .reg .pred p;\n"
            " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            " selp.u32 %0, 1, 0, p;\n"
            "}\n"
            : "=r"(done)
            : "r"(barrier_), "r"(parity_)
            : "memory");
      }
      parity_ ^= 1;
      return;
    }
#endif
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
  }

 private:
  unsigned barrier_ = 0;
  unsigned parity_ = 0;
  bool bulk_ = false;
};

}  // namespace qpi::gpu
