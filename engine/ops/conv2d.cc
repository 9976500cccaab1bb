#include "engine/ops/conv2d.h"

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {

Conv2dStep::Conv2dStep(Options options, std::vector<float> weights) : options_(std::move(options)) {
  const int32_t in_channels = options_.in.channels, out_channels = options_.out.channels;
  if constexpr (kernels::kHasCuda) {
    if (options_.on_cuda) {
      weights_ = kernels::cuda::PackConv2dWeights(options_.geometry, in_channels, out_channels, options_.dtype,
                                                  weights.data());
      return;
    }
  }
  weights_ = kernels::cpu::PackConv2dWeights(options_.geometry, in_channels, out_channels, weights.data());
}

absl::Status Conv2dStep::Run(const StepContext& context) const {
  const Tensor in = context.At(options_.in);
  const Tensor out = context.At(options_.out);
  const kernels::Conv2dParams params{.geometry = options_.geometry,
                                     .num_images = context.num_samples(),
                                     .in_rows = options_.in_rows,
                                     .in_columns = options_.in_columns,
                                     .dtype = in.dtype,
                                     .out_dtype = out.dtype,
                                     .in = in.data,
                                     .in_pitch = in.pitch,
                                     .in_channels = in.channels,
                                     .weights = weights_.data(),
                                     .out = out.data,
                                     .out_pitch = out.pitch,
                                     .out_channels = out.channels,
                                     .epilogue = options_.epilogue.In(context),
                                     .allow_tf32 = options_.allow_tf32};
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) {
      RETURN_IF_CUDA_ERROR(kernels::cuda::Conv2d(params, context.stream()));
      return absl::OkStatus();
    }
  }
  kernels::cpu::Conv2d(params, *context.execution->pool);
  return absl::OkStatus();
}

absl::Status Conv2dStep::Upload(WeightUploader& uploader) {
  RETURN_IF_ERROR(uploader.Upload(weights_, options_.dtype));
  return uploader.Upload(options_.epilogue.bias, DType::kFloat32);
}

}  // namespace voxserve
