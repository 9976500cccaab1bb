#include <cuda_runtime_api.h>

#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "engine/runtime/pinned_memory.h"

namespace voxserve {

absl::StatusOr<char*> AllocatePinned(int64_t bytes) {
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
            RETURN_IF_CUDA_ERROR(cudaSetDevice(device));
            return AllocatePinned(bytes);
          },
          .free =
              [device](char* data) {
                cudaSetDevice(device);  // FreePinned logs what is wrong with it
                FreePinned(data);
              }};
}

}  // namespace voxserve
