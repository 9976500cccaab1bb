#pragma once

// Barriers in shared memory that count arrivals and bytes (mbarrier), and the bulk copies that they wait for. They
// exist from sm_90 on; whoever calls them guards his code. Included by .cu files alone.
//
// A barrier is in phase 0 at first and moves on to the next when all have arrived and all bytes have landed. Waiting
// for the parity of a phase returns when that phase is over.

#include <cstdint>

namespace voxserve::kernels::cuda {

// By one thread; PublishBarriers and __syncthreads follow before any other use.
__device__ inline void InitBarrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void PublishBarriers() { asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory"); }

__device__ inline void ArriveAtBarrier(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

// Arrives when the thread's asynchronous copies so far have landed; it is counted as any other arrival.
__device__ inline void ArriveWithCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(barrier) : "memory");
}

// Arrives, and lets the phase wait for so many bytes more.
__device__ inline void ArriveExpecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ inline void WaitForBarrier(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Copies bytes, a multiple of 16, between addresses aligned to 16; the barrier counts them.
__device__ inline void CopyBulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

// Meets all threads of the cluster's blocks.
__device__ inline void SyncCluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}

// Arrives at the barrier of the same address in a block's shared memory, by the block's rank in the cluster.
__device__ inline void ArriveAtClusterBarrier(uint32_t barrier, int32_t block) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n"
      "}\n" ::"r"(barrier),
      "r"(block)
      : "memory");
}

// As WaitForBarrier, for what threads of other blocks did before they arrived.
__device__ inline void WaitForClusterBarrier(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

__device__ inline void StoreShared(uint32_t to, float value) {
  asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(to), "f"(value) : "memory");
}

// The value at the same address of a block's shared memory, by its rank in the cluster.
__device__ inline float LoadClusterShared(uint32_t from, int32_t block) {
  float value;
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [there];\n"
      "}\n"
      : "=f"(value)
      : "r"(from), "r"(block)
      : "memory");
  return value;
}

}  // namespace voxserve::kernels::cuda
