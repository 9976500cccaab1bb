#pragma once

// Barriers in shared memory that count arrivals and bytes (mbarrier), and the bulk copies that they wait for. They
// exist from sm_90 on; whoever calls them guards the code. Included by .cu files alone.
//
// A barrier is in phase 0 at first and moves on to the next when all have arrived and all bytes have landed. Waiting
// for the parity of a phase returns when that phase is over.

#include <cstdint>

namespace voxserve::kernels::cuda {

// By one thread a barrier; its PublishBarriers and __syncthreads follow before any other use.
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

// True where that phase is over.
__device__ inline bool TestBarrier(uint32_t barrier, uint32_t parity) {
  uint32_t is_over;
  asm volatile(
      "{\n"
      ".reg .pred over;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 over, [%1], %2;\n"
      "selp.u32 %0, 1, 0, over;\n"
      "}\n"
      : "=r"(is_over)
      : "r"(barrier), "r"(parity)
      : "memory");
  return is_over != 0;
}

// Copies bytes, a multiple of 16, between addresses aligned to 16; the barrier counts them.
__device__ inline void CopyBulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

__device__ inline int32_t LoadShared(uint32_t from) {
  int32_t value;
  asm volatile("ld.shared.s32 %0, [%1];\n" : "=r"(value) : "r"(from) : "memory");
  return value;
}

// Waits until the earlier kernels of the stream have ended and what they wrote is there, where the kernel was launched
// before, and lets the next kernel be launched so. What a kernel reads before it calls this must not be written by the
// kernel in front of it: all those before that one have ended, since a kernel lets the next one begin only here, after
// its own wait.
__device__ inline void WaitForEarlierKernels() {
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;\n" ::: "memory");
}

}  // namespace voxserve::kernels::cuda
