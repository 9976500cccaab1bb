#pragma once

// Clear sets memory to zero, as cudaMemsetAsync does. A memset keeps the kernel after it from starting early
// (LaunchEarly in launch.cuh), and takes 3 us with the gaps around it; this is a kernel among kernels.

#include <cstddef>

#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels::cuda {

// Returns cudaErrorInvalidValue if the address or the number of bytes is no multiple of 8.
cudaError_t Clear(void* data, size_t bytes, cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
