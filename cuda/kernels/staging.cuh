// Global to shared memory, ahead of its use: with the bulk copy engine (compute capability 9.0), with
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
__device__ inline void copy_chunks(char* to, const char* from, unsigned begin, unsigned end, unsigned worker,
                                   unsigned workers) {
  for (unsigned i = begin + worker * Bytes; i < end; i += workers * Bytes) copy_chunk<Bytes>(to + i, from + i);
}

// `to` is 16-byte aligned; `from` is as aligned as its elements are (2 or 4 bytes), or better.
__device__ inline void copy_by(char* to, const void* source, unsigned bytes, unsigned worker, unsigned workers) {
  const char* from = static_cast<const char*>(source);
  const unsigned misaligned = static_cast<unsigned>(reinterpret_cast<uintptr_t>(from));
  if (misaligned % 16 == 0) {
    const unsigned whole = bytes / 16 * 16;
    copy_chunks<16>(to, from, 0, whole, worker, workers);
    if (whole != bytes) copy_chunks<2>(to, from, whole, bytes, worker, workers);
  } else if (misaligned % 4 == 0 && bytes % 4 == 0) {
    copy_chunks<4>(to, from, 0, bytes, worker, workers);
  } else {
    copy_chunks<2>(to, from, 0, bytes, worker, workers);
  }
}

// By the whole block; wait_for_copies and a __syncthreads must follow.
__device__ inline void copy_by_block(char* to, const void* from, unsigned bytes) {
  copy_by(to, from, bytes, threadIdx.x, blockDim.x);
}

__device__ inline void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// By a warp. Not inlined: it is called from several places, and rarely where there is a copy engine.
static __device__ __noinline__ void stage(char* to, const void* from, unsigned bytes) {
  copy_by(to, from, bytes, threadIdx.x % 32, 32);
}

#if __CUDA_ARCH__ >= 900
constexpr bool kBulkCopies = true;
#else
constexpr bool kBulkCopies = false;
#endif

// Can the copy engine take this piece?
__device__ inline bool whole_chunks(const void* from, unsigned bytes) {
  return bytes == 0 || (static_cast<unsigned>(reinterpret_cast<uintptr_t>(from)) | bytes) % 16 == 0;
}

// Buffers of a warp's shared memory, each with one fetch under way at most. Every lane of the warp calls every
// function.
class Ring {
 public:
  // `barriers` is 8 bytes a buffer of the warp's shared memory.
  __device__ explicit Ring(uint64_t* barriers) : barriers_(static_cast<unsigned>(__cvta_generic_to_shared(barriers))) {}

  // Once, before anything else. A __syncwarp must follow.
  __device__ void init(int buffers) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0) {
      for (int i = 0; i < buffers; ++i)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers_ + 8 * i) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
#endif
  }

  // `bulk`: every piece starts at a multiple of 16 bytes and is one; the others take the slow road. `written`: threads
  // have written to the buffer. A __syncwarp must lie between the last use of the buffer and this.
  template <int Pieces>
  __device__ void fetch(int buffer, bool bulk, bool written, char* const (&to)[Pieces],
                        const void* const (&from)[Pieces], const unsigned (&bytes)[Pieces]) {
#if __CUDA_ARCH__ >= 900
    const unsigned bit = 1u << buffer;
    written = written || (bulk_ & bit) == 0;
    bulk_ = bulk ? bulk_ | bit : bulk_ & ~bit;
    if (bulk) {
      if (threadIdx.x % 32 == 0) {
        const unsigned barrier = barriers_ + 8 * buffer;
        // What threads wrote comes before what the copy engine writes.
        if (written) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        unsigned total = 0;
#pragma unroll
        for (int i = 0; i < Pieces; ++i) total += bytes[i];
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(total) : "memory");
#pragma unroll
        for (int i = 0; i < Pieces; ++i) {
          if (bytes[i] == 0) continue;  // there is nothing to read
          asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                           static_cast<unsigned>(__cvta_generic_to_shared(to[i]))),
                       "l"(from[i]), "r"(bytes[i]), "r"(barrier)
                       : "memory");
        }
      }
      return;
    }
#endif
#pragma unroll
    for (int i = 0; i < Pieces; ++i) stage(to[i], from[i], bytes[i]);
  }

  // What another warp of the block has fetched in bulk, once. A __syncthreads must lie behind.
  __device__ void wait_for(int buffer) {
    bulk_ |= 1u << buffer;
    wait(buffer);
  }

  // A __syncwarp must follow.
  __device__ void wait(int buffer) {
#if __CUDA_ARCH__ >= 900
    if (bulk_ >> buffer & 1u) {
      unsigned done = 0;
      while (done == 0) {
        asm volatile(
            "{\n"
            " .reg .pred p;\n"
            " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            " selp.u32 %0, 1, 0, p;\n"
            "}\n"
            : "=r"(done)
            : "r"(barriers_ + 8 * buffer), "r"(parity_ >> buffer & 1u)
            : "memory");
      }
      parity_ ^= 1u << buffer;
      return;
    }
#endif
    wait_for_copies();
  }

 private:
  unsigned barriers_;
  unsigned parity_ = 0, bulk_ = 0;  // a bit for each buffer
};

}  // namespace qpi::gpu
