#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/fault.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {

absl::Status CudaStatus(cudaError_t error, const char* expression) {
  if (FaultAt(FaultSite::kCudaPoison)) error = cudaErrorIllegalAddress;
  if (FaultAt(FaultSite::kCudaError)) error = cudaErrorLaunchOutOfResources;
  if (error == cudaSuccess) return absl::OkStatus();
  // Clears the error, which the next launch would otherwise report again if it is not sticky.
  cudaGetLastError();
  const std::string text =
      absl::StrCat(cudaGetErrorName(error), " (", cudaGetErrorString(error), ") from ", expression);
  switch (error) {
    case cudaErrorMemoryAllocation:
      return OutOfMemoryError(text);
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorDevicesUnavailable:
    case cudaErrorUnknown:
      return WithReason(absl::UnavailableError(text), error_reason::kDeviceFailed);
    default:
      return WithReason(absl::InternalError(text), error_reason::kInternal);
  }
}

bool IsDeviceFailure(const absl::Status& status) { return ReasonOf(status) == error_reason::kDeviceFailed; }

}  // namespace voxserve
