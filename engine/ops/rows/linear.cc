#include "engine/ops/rows/linear.h"

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/rows/linear.h"

namespace voxserve {

absl::Status LinearStep::Run(const StepContext& context) const {
  const kernels::LinearParams params{.in = context.At(options_.in),
                                     .weights = options_.weights.data(),
                                     .out = context.At(options_.out),
                                     .epilogue = options_.epilogue.In(context)};
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) {
      RETURN_IF_CUDA_ERROR(kernels::cuda::Linear(params, *context.cuda()->gemm, context.stream()));
      return absl::OkStatus();
    }
  }
  kernels::cpu::Linear(params, *context.execution->pool);
  return absl::OkStatus();
}

absl::Status LinearStep::Upload(WeightUploader& uploader) {
  RETURN_IF_ERROR(uploader.Upload(options_.weights, options_.dtype));
  return uploader.Upload(options_.epilogue.bias, options_.out_dtype);  // as kernels/rows/linear.h asks for it
}

}  // namespace voxserve
