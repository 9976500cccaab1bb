#include "engine/ops/rows/linear.h"

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/conv/fetch_on_demand.h"
#include "kernels/conv/implicit_gemm/implicit_gemm.h"
#include "kernels/rows/linear.h"

namespace voxserve {
namespace {

bool IsImplicitGemm(const LinearStep::Options& options) {
  if constexpr (kernels::kHasCuda) {
    return options.on_cuda && options.dtype != DType::kFloat32 &&
           !kernels::cuda::ImplicitGemmBlocks(options.dtype, options.out.channels).empty();
  }
  return false;
}

}  // namespace

bool LinearStep::CanRotate(DType dtype) {
  return IsImplicitGemm({.out = {.channels = 2}, .dtype = dtype, .on_cuda = true});
}

LinearStep::LinearStep(Options options) : options_(std::move(options)), is_implicit_gemm_(IsImplicitGemm(options_)) {
  if (options_.on_cuda) return;  // Upload packs the weights, where they must be
  options_.weights = kernels::cpu::PackWeights(options_.weights.values().data(), /*num_offsets=*/1,
                                               options_.in.channels, options_.out.channels);
}

bool LinearStep::CanLabel() const {
  return is_implicit_gemm_ && options_.out_dtype == DType::kFloat32 &&
         options_.out.channels <= kernels::kMaxLabelChannels && options_.epilogue.residual.buffer < 0 &&
         options_.epilogue.activation == kernels::Activation();
}

absl::Status LinearStep::Label(const StepContext& context, const kernels::Rows& labels) const {
  if (!CanLabel()) return absl::InternalError("the kernel of this linear layer writes no labels");
  return RunImplicitGemm(context, labels);
}

absl::Status LinearStep::RunImplicitGemm([[maybe_unused]] const StepContext& context,
                                         [[maybe_unused]] const kernels::Rows& labels) const {
  if constexpr (kernels::kHasCuda) {
    const kernels::ConstRows in = context.At(options_.in);
    const Options::Rotation& rotation = options_.rotation;
    RETURN_IF_CUDA_ERROR(
        kernels::cuda::ImplicitGemm({.tiles = {.num_offsets = 1, .num_out = in.num_rows, .out_capacity = in.capacity},
                                     .operands = {.in = in,
                                                  .out = context.At(options_.out),
                                                  .weights = options_.weights.data(),
                                                  .epilogue = options_.epilogue.In(context)},
                                     .labels = labels,
                                     .not_finite_label = context.ignore_label,
                                     .rotation = {.angles = context.At(rotation.angles),
                                                  .head_pairs = rotation.head_pairs,
                                                  .num_columns = rotation.num_columns}},
                                    context.stream()));
  }
  return absl::OkStatus();
}

absl::Status LinearStep::Run(const StepContext& context) const {
  if (is_implicit_gemm_) return RunImplicitGemm(context, /*labels=*/{});
  if (options_.rotation.angles.buffer >= 0)
    return absl::InternalError("the kernel of this linear layer rotates nothing");
  const kernels::LinearParams params{.in = context.At(options_.in),
                                     .weights = options_.weights.data(),
                                     .out = context.At(options_.out),
                                     .epilogue = options_.epilogue.In(context)};
  if constexpr (kernels::kHasCuda) {
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
