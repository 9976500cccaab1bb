#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "engine/runtime/execution_context.h"

namespace voxserve {

absl::StatusOr<std::unique_ptr<CudaContext>> CudaContext::Create(DevicePool* pool, StreamPriority priority) {
  ASSIGN_OR_RETURN(Stream stream, Stream::CreateOn(pool->device(), priority));
  auto context = std::unique_ptr<CudaContext>(new CudaContext(std::move(stream)));
  const StreamView view = context->stream.view();
  context->pool = pool;
  if (const char* missing = kernels::cuda::Gemm::MissingLibrary(); missing != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a GPU needs cuBLAS, which comes with the CUDA toolkit or with NVIDIA's package nvidia-cublas: ", missing));
  }
  RETURN_IF_CUDA_ERROR(kernels::cuda::Gemm::Create(view.get(), /*workspace=*/nullptr, &context->gemm));
  context->batch = DeviceArena(pool, view);
  context->features = DeviceArena(pool, view);
  for (Event& event : context->stage_ends) {
    ASSIGN_OR_RETURN(event, Event::Create());
  }
  return context;
}

// Makes the device current, since the members free memory of the device, on any thread.
CudaContext::~CudaContext() {
  if (const absl::Status status = MakeCurrent(); !status.ok()) {
    Log(LogLevel::kError, "a GPU's context ends on a broken device", {{"error", std::string(status.message())}});
  }
}

absl::Status CudaContext::MakeCurrent() const { return pool->MakeCurrent(); }

absl::StatusOr<kernels::cuda::Gemm*> CudaContext::ReadyGemm() {
  if (gemm_workspace.data() != nullptr) return gemm.get();
  constexpr auto kBytes = static_cast<int64_t>(kernels::cuda::Gemm::kWorkspaceBytes);
  ASSIGN_OR_RETURN(DeviceBuffer workspace, DeviceBuffer::Create(*pool, kBytes, stream.view()));
  RETURN_IF_CUDA_ERROR(gemm->SetWorkspace(workspace.data()));
  gemm_workspace = std::move(workspace);
  return gemm.get();
}

void CudaContext::ReleaseArenas() {
  batch.Release();
  features.Release();
}

void CudaContext::ReleaseMemory() {
  ReleaseArenas();
  if (copies != nullptr) copies->Clear();
}

}  // namespace voxserve
