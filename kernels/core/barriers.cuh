#pragma once

// Barriers in shared memory that count arrivals and bytes (mbarrier), and the bulk copies whose bytes they count. They
// exist from sm_90 on: the caller guards the code. Only .cu files include this header.
//
// A barrier begins in phase 0. It enters the next phase when all threads have arrived and all expected bytes have
// landed. A wait for the parity of a phase returns when that phase is over.

#include <cstdint>

namespace voxserve::kernels::cuda {

// One thread calls this for a barrier. PublishBarriers and __syncthreads must follow before any other use.
__device__ inline void InitBarrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void PublishBarriers() { asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory"); }

__device__ inline void ArriveAtBarrier(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

// Arrives once the thread's earlier asynchronous copies have landed. It counts as one ordinary arrival.
__device__ inline void ArriveWithCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(barrier) : "memory");
}

// Arrives, and makes the phase wait for this many bytes more.
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

// Returns true if that phase is over.
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

// Copies `bytes`, a multiple of 16, between 16-byte aligned addresses. The barrier counts them.
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

// Waits until the earlier kernels of the stream have ended and their writes are visible, and lets the next kernel start
// early. Needed in a kernel that is launched before its predecessor has ended (programmatic dependent launch).
//
// Before this call a kernel must not read anything that its direct predecessor writes. It may read results of the
// kernels before that one: they have ended, because a kernel releases its successor only here, after its own wait.
__device__ inline void WaitForEarlierKernels() {
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;\n" ::: "memory");
}

}  // namespace voxserve::kernels::cuda
