#include <cuda_runtime_api.h>

#include "engine/geometry/geometry_memory.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {

void GeometryMemory::Begin(CudaContext& context) {
  context_ = &context;
  context.features.Reset();
  sized_end_ = {};
}

void GeometryMemory::ReturnTo(const DeviceArena::Mark& sized_end) {
  sized_end_ = sized_end;
  ReleaseScratch();
}

absl::StatusOr<void*> GeometryMemory::TakeScratch(size_t bytes) {
  ReleaseScratch();
  ASSIGN_OR_RETURN(char* data, context_->features.Take(static_cast<int64_t>(bytes)));
  return data;
}

absl::Status GeometryMemory::Upload(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream().get()));
  return absl::OkStatus();
}

}  // namespace voxserve
