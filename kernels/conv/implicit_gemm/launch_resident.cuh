#pragma once

// How the kernels of kernels/conv/implicit_gemm/implicit_gemm.h are launched. Included by .cu files alone.

#include <atomic>
#include <cstdint>

#include "kernels/core/device_code.h"
#include "kernels/core/launch.cuh"

namespace voxserve::kernels::cuda {

// Launches a persistent kernel on as many blocks as the current device runs at once, but on no more than max_blocks.
// Once a device it asks how many these are; `resident` is the kernel's own, by device, 0 at first. Asking again does no
// harm.
// waits_itself: the kernel calls WaitForEarlierKernels (barriers.cuh), and is launched before those have ended.
template <typename Kernel, typename Arguments>
cudaError_t LaunchResident(Kernel* kernel, const Arguments& arguments, int threads, int shared_bytes, bool waits_itself,
                           int64_t max_blocks, std::atomic<int>* resident, cudaStream_t stream) {
  if (max_blocks <= 0) return cudaSuccess;
  int device = 0;
  VOXSERVE_RETURN_IF_CUDA(cudaGetDevice(&device));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = waits_itself ? 1 : 0;
  int blocks = device < kMaxDevices ? resident[device].load(std::memory_order_relaxed) : 0;
  if (blocks == 0) {
    VOXSERVE_RETURN_IF_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    VOXSERVE_RETURN_IF_CUDA(
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
    int blocks_an_sm = 0, num_sms = 0;
    VOXSERVE_RETURN_IF_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_an_sm, kernel, threads,
                                                                          static_cast<size_t>(shared_bytes)));
    VOXSERVE_RETURN_IF_CUDA(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device));
    blocks = blocks_an_sm * num_sms;
    if (blocks == 0) return cudaErrorInvalidConfiguration;
    if (device < kMaxDevices) resident[device].store(blocks, std::memory_order_relaxed);
  }
  config.gridDim = dim3(static_cast<unsigned>(max_blocks < blocks ? max_blocks : blocks));
  VOXSERVE_RETURN_IF_CUDA(cudaLaunchKernelEx(&config, kernel, arguments));
  return LaunchStatus(stream);
}

}  // namespace voxserve::kernels::cuda
