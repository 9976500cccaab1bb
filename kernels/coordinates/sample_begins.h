#pragma once

// SampleBegins finds each sample's first row among a level's keys, on the GPU. A sample without keys begins where the
// next sample begins.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels {

struct SampleBeginsParams {
  int32_t dimension = 3;
  int32_t num_samples = 0;
  const uint64_t* keys = nullptr;     // MortonKeys, ascending
  const int64_t* num_keys = nullptr;  // [1] on the device
  int64_t* sample_begin = nullptr;    // output: [num_samples + 1]; the last entry is num_keys
};
static_assert(std::is_trivially_copyable_v<SampleBeginsParams>);

namespace cuda {
cudaError_t SampleBegins(const SampleBeginsParams& params, cudaStream_t stream);
}  // namespace cuda
}  // namespace voxserve::kernels
