#pragma once

// CudaStatus converts CUDA's errors to absl::Status. No other code converts them. Any thread may call it.
//
//   out of memory                       RESOURCE_EXHAUSTED (OUT_OF_MEMORY)
//   errors after which a CUDA context   UNAVAILABLE (DEVICE_FAILED): illegal access, a failed launch, an ECC error, a
//   is unusable                         lost device; the caller must stop using the device
//   anything else                       INTERNAL

#include "absl/status/status.h"
#include "kernels/core/cuda_stream.h"

namespace voxserve {

// Returns OK for cudaSuccess. Else the message names the expression and CUDA's name and text of the error, and CUDA's
// last error is cleared.
absl::Status CudaStatus(cudaError_t error, const char* expression);

// Returns true if the status's reason is DEVICE_FAILED.
bool IsDeviceFailure(const absl::Status& status);

}  // namespace voxserve

#define RETURN_IF_CUDA_ERROR(expression) RETURN_IF_ERROR(::voxserve::CudaStatus((expression), #expression))
