#pragma once

// Launches the persistent implicit GEMM kernels. Only .cu files include this header.

#include <atomic>
#include <cstdint>

#include "kernels/core/device_code.h"
#include "kernels/core/launch.cuh"

namespace voxserve::kernels::cuda {

// Launches a persistent kernel on as many blocks as the current device can run at once, but at most max_blocks.
//
// resident: the kernel's own table, by device, of the number of blocks that the device can run at once; initially 0.
// The first launch on a device fills its entry; if two threads fill it at once, both write the same value.
// waits_itself: true if the kernel calls WaitForEarlierKernels (launch.cuh), so that it may start before earlier
// kernels have ended.
//
// Returns cudaErrorInvalidConfiguration if a multiprocessor cannot run even one block, else CUDA's error.
template <typename Kernel, typename Arguments>
cudaError_t LaunchResident(Kernel* kernel, const Arguments& arguments, int threads, int shared_bytes, bool waits_itself,
                           int64_t max_blocks, std::atomic<int>* resident, cudaStream_t stream) {
  if (max_blocks <= 0) return cudaSuccess;
  int device = 0;
  VOXSERVE_RETURN_IF_CUDA(cudaGetDevice(&device));
  int blocks = device < kMaxDevices ? resident[device].load(std::memory_order_relaxed) : 0;
  if (blocks == 0) {
    VOXSERVE_RETURN_IF_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    VOXSERVE_RETURN_IF_CUDA(
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
    int blocks_an_sm = 0;
    VOXSERVE_RETURN_IF_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_an_sm, kernel, threads,
                                                                          static_cast<size_t>(shared_bytes)));
    blocks = blocks_an_sm * NumSms();
    if (blocks == 0) return cudaErrorInvalidConfiguration;
    if (device < kMaxDevices) resident[device].store(blocks, std::memory_order_relaxed);
  }
  const dim3 grid(static_cast<unsigned>(max_blocks < blocks ? max_blocks : blocks));
  if (waits_itself) {
    return LaunchEarly(kernel, grid, threads, static_cast<size_t>(shared_bytes), stream, arguments);
  }
  kernel<<<grid, static_cast<unsigned>(threads), static_cast<size_t>(shared_bytes), stream>>>(arguments);
  return LaunchStatus(stream);
}

}  // namespace voxserve::kernels::cuda
