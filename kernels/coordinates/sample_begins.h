#pragma once

// SampleBegins finds each sample's first row among the keys of levels, on the GPU. A sample without keys begins where
// the next sample begins.

#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels {

struct SampleBeginsParams {
  int32_t dimension = 3;
  int32_t num_samples = 0;
  const uint64_t* keys = nullptr;     // MortonKeys of samples below num_samples, ascending
  const int64_t* num_keys = nullptr;  // [1] on the device
  int64_t* sample_begin = nullptr;    // output: [num_samples + 1]; the last entry is num_keys
};
static_assert(std::is_trivially_copyable_v<SampleBeginsParams>);

namespace cuda {
// Serves several levels; one launch has up to 16 of them. Returns cudaErrorInvalidValue if the levels differ in
// dimension or num_samples.
cudaError_t SampleBegins(std::span<const SampleBeginsParams> levels, cudaStream_t stream);
}  // namespace cuda
}  // namespace voxserve::kernels
