#pragma once

// Clear sets memory to zero, as cudaMemsetAsync does. A memset keeps the kernel behind it from starting early
// (LaunchEarly in launch.cuh), and takes 3 us with the gaps around it; this is a kernel among kernels.

#include <cstddef>

#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels::cuda {

// data: 8-byte aligned; bytes: a multiple of 8.
cudaError_t Clear(void* data, size_t bytes, cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
