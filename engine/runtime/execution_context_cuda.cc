#include <cuda_runtime_api.h>

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "engine/runtime/execution_context.h"

namespace voxserve {

absl::StatusOr<std::unique_ptr<CudaContext>> CudaContext::Create(DevicePool* pool) {
  ASSIGN_OR_RETURN(Stream stream, Stream::CreateOn(pool->device()));
  auto context = std::unique_ptr<CudaContext>(new CudaContext(std::move(stream)));
  const StreamView view = context->stream.view();
  context->pool = pool;
  ASSIGN_OR_RETURN(context->gemm_workspace,
                   DeviceBuffer::Create(*pool, static_cast<int64_t>(kernels::cuda::Gemm::kWorkspaceBytes), view));
  RETURN_IF_CUDA_ERROR(kernels::cuda::Gemm::Create(view.get(), context->gemm_workspace.data(), &context->gemm));
  context->batch = DeviceArena(pool, view);
  context->features = DeviceArena(pool, view);
  for (Event& event : context->stage_ends) {
    ASSIGN_OR_RETURN(event, Event::Create());
  }
  return context;
}

absl::Status CudaContext::MakeCurrent() const {
  RETURN_IF_CUDA_ERROR(cudaSetDevice(pool->device()));
  return absl::OkStatus();
}

void CudaContext::ReleaseMemory() {
  batch.Release();
  features.Release();
}

}  // namespace voxserve
