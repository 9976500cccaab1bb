#include <cuda_runtime_api.h>

#include "engine/base/fault.h"
#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_devices.h"
#include "engine/runtime/cuda_status.h"
#include "engine/runtime/pinned_memory.h"

namespace voxserve {

absl::StatusOr<char*> AllocatePinned(int64_t bytes) {
  if (FaultAt(FaultSite::kPageLocked)) return CudaStatus(cudaErrorMemoryAllocation, "cudaHostAlloc");
  void* data = nullptr;
  RETURN_IF_CUDA_ERROR(cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocPortable));
  return static_cast<char*>(data);
}

void FreePinned(char* data) {
  if (data == nullptr) return;
  if (const cudaError_t error = cudaFreeHost(data); error != cudaSuccess) {
    Log(LogLevel::kError, "cudaFreeHost failed", {{"error", cudaGetErrorName(error)}});
  }
}

PinnedPool::Source PinnedSource(int device) {
  return {.allocate = [device](int64_t bytes) -> absl::StatusOr<char*> {
            const CurrentDeviceGuard current(device);
            RETURN_IF_ERROR(current.status());
            return AllocatePinned(bytes);
          },
          .free =
              [device](char* data) {
                const CurrentDeviceGuard current(device);
                FreePinned(data);
              }};
}

}  // namespace voxserve
