#include "engine/ops/int8/int8_conv.h"

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/conv/implicit_gemm/int8_implicit_gemm.h"
#include "kernels/int8/int8_product.h"

namespace voxserve {
namespace {

const kernels::ConvBlock& BlockIn(const Int8ConvStep::Options& options, const StepContext& context) {
  return (*context.plans)[static_cast<size_t>(options.index)].block;
}

// Inline, so that an unoptimised build without CUDA, which never calls it, leaves it and its references out.
inline kernels::Int8ImplicitGemmParams DeviceParams(const Int8ConvStep::Options& options, const StepContext& context) {
  return {.tiles = context.device_geometry->tiles(options.conv.rulebook),
          .in = context.At(options.in),
          .weights = options.weights.on_device(),
          .out = context.At(options.out),
          .epilogue = options.epilogue.In(context),
          .shortcut_in = context.At(options.shortcut_in),
          .shortcut_weights = options.shortcut_weights.on_device(),
          .block = BlockIn(options, context),
          .workspace = context.scratch};
}

}  // namespace

absl::Status Int8ConvStep::RunOnCpu(const StepContext& context) const {
  const kernels::RulebookView rulebook = context.geometry->rulebook(options_.conv.rulebook);
  const kernels::Int8ConvParams params{.rulebook = rulebook,
                                       .in = context.At(options_.in),
                                       .weights = options_.weights.lines(),
                                       .out = context.At(options_.out),
                                       .epilogue = options_.epilogue.In(context),
                                       .shortcut_in = context.At(options_.shortcut_in),
                                       .shortcut_weights = options_.shortcut_weights.lines(),
                                       .block_rows = BlockIn(options_, context).rows};
  RETURN_IF_ERROR(CheckRows(name, rulebook, params.in.capacity, params.out.capacity));
  kernels::cpu::Int8Conv(params, *context.execution->pool, context.execution->memory.get());
  return absl::OkStatus();
}

absl::Status Int8ConvStep::Run(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) {
      const kernels::Int8ImplicitGemmParams params = DeviceParams(options_, context);
      RETURN_IF_ERROR(CheckRows(name, context.device_geometry->neighbours(options_.conv.rulebook), params.in.capacity,
                                params.out.capacity));
      RETURN_IF_CUDA_ERROR(kernels::cuda::Int8ImplicitGemm(params, context.stream()));
      return absl::OkStatus();
    }
  }
  return RunOnCpu(context);
}

size_t Int8ConvStep::ScratchBytes(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr)
      return kernels::cuda::Int8ImplicitGemmWorkspaceBytes(DeviceParams(options_, context));
  }
  return 0;
}

absl::Status Int8ConvStep::Upload(WeightUploader& uploader) {
  RETURN_IF_ERROR(CheckKernelVolume(options_.conv));
  RETURN_IF_ERROR(options_.weights.Upload(uploader));
  RETURN_IF_ERROR(options_.shortcut_weights.Upload(uploader));
  return options_.epilogue.Upload(uploader);
}

}  // namespace voxserve
