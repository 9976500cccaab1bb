#pragma once

// From CUDA's errors to absl::Status, the one place.
//
//   out of memory                       RESOURCE_EXHAUSTED (OUT_OF_MEMORY)
//   errors that a context does not get  UNAVAILABLE (DEVICE_FAILED): illegal access, a failed launch, an ECC error, a
//   over                                lost device; whoever sees one stops using the device
//   anything else                       INTERNAL

#include "absl/status/status.h"
#include "kernels/core/cuda_stream.h"

namespace voxserve {

// OK for cudaSuccess. The text names the expression, and CUDA's name and words for the error. Clears the error.
absl::Status CudaStatus(cudaError_t error, const char* expression);

// True for DEVICE_FAILED.
bool IsDeviceFailure(const absl::Status& status);

}  // namespace voxserve

#define RETURN_IF_CUDA_ERROR(expression) RETURN_IF_ERROR(::voxserve::CudaStatus((expression), #expression))
