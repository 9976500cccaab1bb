#pragma once

// These functions send words between the blocks of a thread-block cluster through distributed shared memory, without a
// barrier of the whole cluster. A mailbox is memory of the receiving block and an mbarrier beside it. Each store to the
// memory also counts its bytes at the mbarrier. The receiving block waits until the mbarrier has counted all bytes (PTX
// ISA, st.async; sm_90). Only .cu files include this header.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace voxserve::kernels::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Converts an address in this block's shared memory to the address of the same variable in the cluster's block `rank`.
__device__ inline uint32_t AddressInBlock(uint32_t shared_address, uint32_t rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address), "r"(rank));
  return address;
}

// Waits until all threads of all blocks of the cluster have called this function. Writes to shared memory before the
// call are visible to all these threads after the call.
__device__ inline void SynchronizeCluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Initialises the mbarrier of a mailbox. One thread of the receiving block calls this function. SynchronizeCluster must
// follow before any block sends. An mbarrier counts in phases: a phase ends when ExpectBytes has been called once and
// the number of bytes that it named has arrived; the next phase then begins.
__device__ inline void InitializeMailbox(uint64_t* barrier) {
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(SharedAddress(barrier))
      : "memory");
}

// Sets the number of bytes after which the present phase ends. One thread of the receiving block calls this function
// once in every phase.
__device__ inline void ExpectBytes(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(bytes)
               : "memory");
}

// Waits until a phase has ended. parity: the phase's number modulo 2; the first phase has number 0.
__device__ inline void WaitForPhase(uint64_t* barrier, uint32_t parity) {
  uint32_t has_ended = 0;
  while (has_ended == 0) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(has_ended)
        : "r"(SharedAddress(barrier)), "r"(parity)
        : "memory");
  }
}

// Stores the words at `to` and counts their 16 bytes at `barrier`, both in the receiving block. Does not wait. `to` and
// `barrier` are addresses that AddressInBlock has returned; `to` is aligned to 16 bytes.
__device__ inline void Send(uint32_t to, uint32_t barrier, const uint4& words) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w), "r"(barrier)
      : "memory");
}

#endif

}  // namespace voxserve::kernels::cuda
