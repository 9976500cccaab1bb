#include <algorithm>
#include <cstdint>

#include "kernels/core/clear.h"
#include "kernels/core/launch.cuh"

namespace voxserve::kernels::cuda {
namespace {

constexpr unsigned kMaxBlocks = 1024;

__global__ void __launch_bounds__(kBlockThreads) ClearKernel(uint64_t* words, int64_t num_words) {
  WaitForEarlierKernels();
  for (int64_t i = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; i < num_words;
       i += int64_t{gridDim.x} * kBlockThreads) {
    words[i] = 0;
  }
}

}  // namespace

cudaError_t Clear(void* data, size_t bytes, cudaStream_t stream) {
  const NvtxRange range("Clear");
  if (bytes % sizeof(uint64_t) != 0 || reinterpret_cast<uintptr_t>(data) % sizeof(uint64_t) != 0) {
    return cudaErrorInvalidValue;
  }
  const auto num_words = static_cast<int64_t>(bytes / sizeof(uint64_t));
  if (num_words == 0) return cudaSuccess;
  return LaunchEarly(ClearKernel, std::min(kMaxBlocks, NumBlocks(num_words)), kBlockThreads, 0, stream,
                     static_cast<uint64_t*>(data), num_words);
}

}  // namespace voxserve::kernels::cuda
