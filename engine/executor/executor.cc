#include "engine/executor/executor.h"

#include "engine/executor/cpu_executor.h"
#include "engine/executor/cuda_executor.h"

namespace voxserve {

std::unique_ptr<Executor> Executor::Create(ExecutionContext* context) {
  if constexpr (kernels::kHasCuda) {
    if (context->cuda != nullptr) return std::make_unique<CudaExecutor>(context);
  }
  return std::make_unique<CpuExecutor>(context);
}

}  // namespace voxserve
