#include "engine/ops/image/conv2d.h"

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/core/device_code.h"

namespace voxserve {
namespace {

absl::Status StatusOf(const std::string& refusal) {
  if (refusal.empty()) return absl::OkStatus();
  return WithReason(absl::InternalError(absl::StrCat("a convolution of images cannot be computed: ", refusal)),
                    error_reason::kInternal);
}

}  // namespace

Conv2dStep::Conv2dStep(Options options, std::vector<float> weights) : options_(std::move(options)) {
  const int32_t in_channels = options_.in.channels, out_channels = options_.out.channels;
  if constexpr (kernels::kHasCuda) {
    if (options_.on_cuda) {
      weights_ = kernels::cuda::PackConv2dWeights(options_.geometry, in_channels, out_channels, options_.dtype,
                                                  weights.data());
      return;
    }
  }
  std::vector<float> packed;
  refusal_ = kernels::cpu::PackConv2dWeights(options_.geometry, in_channels, out_channels, weights.data(), &packed);
  weights_ = std::move(packed);
}

bool Conv2dStep::CanLeaveOutBoxes([[maybe_unused]] DType dtype) {
  if constexpr (kernels::kHasCuda) {
    return dtype != DType::kFloat32 && kernels::cuda::CodeVersion() == kernels::cuda::kWarpGroupCode;
  }
  return false;
}

kernels::Conv2dParams Conv2dStep::FixedParams() const {
  return {.geometry = options_.geometry,
          .in_rows = options_.in_rows,
          .in_columns = options_.in_columns,
          .in = {.channels = options_.in.channels},
          .weights = weights_.data(),
          .out = {.channels = options_.out.channels},
          .allow_tf32 = options_.allow_tf32};
}

absl::Status Conv2dStep::Run(const StepContext& context) const {
  kernels::Conv2dParams params = FixedParams();
  params.num_images = context.num_samples();
  params.in = context.At(options_.in);
  params.out = context.At(options_.out);
  params.epilogue = options_.epilogue.In(context);
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) {
      const Options::ActiveBoxes& active = options_.active;
      if (active.lists != nullptr) params.active = active.lists->ListOf(context, active.number);
      RETURN_IF_CUDA_ERROR(kernels::cuda::Conv2d(params, context.stream()));
      return absl::OkStatus();
    }
  }
  return StatusOf(refusal_.empty() ? kernels::cpu::Conv2d(params, *context.execution->pool) : refusal_);
}

absl::Status Conv2dStep::Check() const {
  if (options_.on_cuda) return absl::OkStatus();
  return StatusOf(refusal_.empty() ? kernels::cpu::CheckConv2d(FixedParams()) : refusal_);
}

absl::Status Conv2dStep::Upload(WeightUploader& uploader) {
  RETURN_IF_ERROR(uploader.Upload(weights_, options_.dtype));
  return uploader.Upload(options_.epilogue.bias, DType::kFloat32);
}

}  // namespace voxserve
