#pragma once

// AllowSharedMemory raises a kernel's limit of shared memory. Only .cu files include this header.

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "kernels/core/launch.cuh"

namespace voxserve::kernels::cuda {

// Lets the kernel's blocks have up to `bytes` of dynamic shared memory, once on each device. done: of the kernel, a bit
// for each of the first 64 devices, initially 0. Several threads may call this function; setting the limit twice does
// no harm.
template <typename Kernel>
cudaError_t AllowSharedMemory(const Kernel& kernel, int bytes, int device, std::atomic<uint64_t>& done) {
  const uint64_t bit = uint64_t{1} << (device % 64);
  if (device < 64 && (done.load(std::memory_order_relaxed) & bit) != 0) return cudaSuccess;
  VOXSERVE_RETURN_IF_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  VOXSERVE_RETURN_IF_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
  done.fetch_or(bit, std::memory_order_relaxed);
  return cudaSuccess;
}

}  // namespace voxserve::kernels::cuda
