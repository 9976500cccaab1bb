#include "engine/ops/rows/linear.h"

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/conv/implicit_gemm/implicit_gemm.h"
#include "kernels/rows/linear.h"

namespace voxserve {

absl::Status LinearStep::Run(const StepContext& context) const {
  const kernels::LinearParams params{.in = context.At(options_.in),
                                     .weights = options_.weights.data(),
                                     .out = context.At(options_.out),
                                     .epilogue = options_.epilogue.In(context)};
  if constexpr (kernels::kHasCuda) {
    if (is_implicit_gemm_) {
      RETURN_IF_CUDA_ERROR(kernels::cuda::ImplicitGemm(
          {.tiles = {.num_offsets = 1, .num_out = params.in.num_rows, .out_capacity = params.in.capacity},
           .operands = {.in = params.in, .out = params.out, .weights = params.weights, .epilogue = params.epilogue}},
          context.stream()));
      return absl::OkStatus();
    }
    if (context.cuda() != nullptr) {
      ASSIGN_OR_RETURN(kernels::cuda::Gemm* const gemm, context.cuda()->ReadyGemm());
      RETURN_IF_CUDA_ERROR(kernels::cuda::Linear(params, *gemm, context.stream()));
      return absl::OkStatus();
    }
  }
  kernels::cpu::Linear(params, *context.execution->pool);
  return absl::OkStatus();
}

absl::Status LinearStep::Upload(WeightUploader& uploader) {
  DType bias_dtype = options_.out_dtype;  // kernels/rows/linear.h requires this type
  if constexpr (kernels::kHasCuda) {
    const int32_t in_channels = options_.in.channels, out_channels = options_.out.channels;
    is_implicit_gemm_ =
        options_.dtype != DType::kFloat32 && !kernels::cuda::ImplicitGemmBlocks(options_.dtype, out_channels).empty();
    if (is_implicit_gemm_) {
      options_.weights = kernels::PackImplicitGemmWeights(/*num_offsets=*/1, in_channels, out_channels, options_.dtype,
                                                          options_.weights.values().data());
      bias_dtype = DType::kFloat32;
    }
  }
  RETURN_IF_ERROR(uploader.Upload(options_.weights, options_.dtype));
  return uploader.Upload(options_.epilogue.bias, bias_dtype);
}

}  // namespace voxserve
