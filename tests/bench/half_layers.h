#pragma once

// Random inputs and weights of layers in float16, for benchmarks of single kernels.

#include <cuda_fp16.h>

#include <cstdint>

#include "tests/support/test_device.h"

namespace voxserve::bench {

// Returns values between -magnitude and magnitude, always the same.
support::DeviceArray<__half> RandomHalves(size_t count, float magnitude);

// Returns weights between -0.1 and 0.1 as the implicit GEMM reads them, always the same.
support::DeviceArray<__half> RandomWeights(int32_t num_offsets, int32_t in_channels, int32_t out_channels);

}  // namespace voxserve::bench
