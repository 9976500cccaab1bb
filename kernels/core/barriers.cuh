#pragma once

// This header wraps PTX's barriers in shared memory that count arrivals and bytes (mbarrier), and the bulk copies whose
// bytes they count. `barrier` is always an address in shared memory (SharedAddress in tensor_cores.cuh). InitBarrier,
// ArriveAtBarrier, TestBarrier and WaitForBarrier exist from sm_80 on, the others from sm_90 on, and the caller guards
// the code. At the end are loads and stores of shared memory by address, and a barrier for some of a block's threads.
// Only .cu files include this header.
//
// A barrier begins in phase 0. It enters the next phase when all threads have arrived and all expected bytes have
// landed. A wait for a phase's parity (the phase's number modulo 2) returns when that phase is over.

#include <cstdint>

namespace voxserve::kernels::cuda {

// One thread calls InitBarrier for a barrier, then PublishBarriers. __syncthreads must follow before any other use of
// the barrier.
__device__ inline void InitBarrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void PublishBarriers() { asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory"); }

__device__ inline void ArriveAtBarrier(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

// One thread of a warp arrives for all of them, once they have met: at __syncwarp or a shuffle. compute-sanitizer's
// racecheck does not know such meetings. It takes what the other threads read before for races with what is written
// after the barrier. So in a build with VOXSERVE_RACECHECK all threads of a warp arrive.
#ifdef VOXSERVE_RACECHECK
inline constexpr int kArrivalsAWarp = 32;
#else
inline constexpr int kArrivalsAWarp = 1;
#endif

// Returns true in the threads of a warp that arrive for it. lane: the thread's number in its warp.
__device__ inline bool ArrivesForWarp(int32_t lane) { return kArrivalsAWarp > 1 || lane == 0; }

// Makes the thread arrive at the barrier as soon as its earlier asynchronous copies (CopyAsync16) have landed. This
// counts as one ordinary arrival.
__device__ inline void ArriveWithCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(barrier) : "memory");
}

// Arrives at the barrier, and makes the current phase wait for `bytes` more bytes.
__device__ inline void ArriveExpecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}

// Returns true if the phase with this parity is over.
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

// Before sm_90 the thread asks again and again; from then on it may sleep meanwhile.
__device__ inline void WaitForBarrier(uint32_t barrier, uint32_t parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
#else
  while (!TestBarrier(barrier, parity)) {
  }
#endif
}

// Starts to copy `bytes` bytes, a multiple of 16, from global memory to shared memory. Both addresses are 16-byte
// aligned. The barrier counts the bytes as they land.
__device__ inline void CopyBulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

// Waits until the first kThreads threads of the block have called it. Only they may call it.
template <int kThreads>
__device__ void SyncFirstThreads() {
  static_assert(kThreads % 32 == 0);
  asm volatile("bar.sync 1, %0;\n" ::"n"(kThreads) : "memory");  // barrier 0 is that of __syncthreads
}

// Waits until all threads of a warp group have called it. group: its number in the block, below 14.
__device__ inline void SyncWarpGroup(int32_t group) {
  asm volatile("bar.sync %0, 128;\n" ::"r"(2 + group) : "memory");  // barrier 1 is that of SyncFirstThreads
}

__device__ inline void StoreSharedFloat(uint32_t to, float value) {
  asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(to), "f"(value) : "memory");
}

// Loads two neighbouring values. The address is 8-byte aligned. The load is not moved before an earlier barrier.
__device__ inline float2 LoadTwoSharedFloats(uint32_t from) {
  float2 values;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];\n" : "=f"(values.x), "=f"(values.y) : "r"(from) : "memory");
  return values;
}

// Loads four neighbouring values. The address is 16-byte aligned. The load is not moved before an earlier barrier.
__device__ inline float4 LoadSharedFloats(uint32_t from) {
  float4 values;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n"
               : "=f"(values.x), "=f"(values.y), "=f"(values.z), "=f"(values.w)
               : "r"(from)
               : "memory");
  return values;
}

__device__ inline int32_t LoadShared(uint32_t from) {
  int32_t value;
  asm volatile("ld.shared.s32 %0, [%1];\n" : "=r"(value) : "r"(from) : "memory");
  return value;
}

}  // namespace voxserve::kernels::cuda
