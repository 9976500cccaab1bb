#pragma once

// Sends words between the blocks of a thread-block cluster through distributed shared memory, without a barrier of the
// cluster: a store completes bytes of the receiver's own mbarrier (PTX ISA, st.async; sm_90). Only .cu files include
// this header.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace voxserve::kernels::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Returns the address of the same variable in another block of the cluster.
__device__ inline uint32_t AddressInBlock(uint32_t shared_address, uint32_t rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address), "r"(rank));
  return address;
}

// Waits for all threads of all blocks. Writes to shared memory before the call are visible after it.
__device__ inline void SynchronizeCluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// One thread calls it, before SynchronizeCluster. A phase ends with one arrival (ExpectBytes) and all its bytes.
__device__ inline void InitializeMailbox(uint64_t* barrier) {
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(SharedAddress(barrier))
      : "memory");
}

// One thread calls it. The current phase ends when this many bytes have come.
__device__ inline void ExpectBytes(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(bytes)
               : "memory");
}

// Waits until the phase of this parity (0 for the first) has ended.
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

// `to` and `barrier` are addresses of AddressInBlock; `to` is aligned to 16 bytes.
__device__ inline void Send(uint32_t to, uint32_t barrier, const uint4& words) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w), "r"(barrier)
      : "memory");
}

#endif

}  // namespace voxserve::kernels::cuda
