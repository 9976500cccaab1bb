#include "engine/ops/conv/sparse_conv.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "kernels/conv/fetch_on_demand.h"
#include "kernels/conv/gather_scatter.h"

namespace voxserve {

SparseConvStep::SparseConvStep(Options options, std::vector<float> weights)
    : options_(std::move(options)),
      weights_(options_.on_cuda ? std::move(weights)
                                : kernels::cpu::PackWeights(weights.data(), options_.shape.num_offsets,
                                                            options_.shape.in_channels, options_.shape.out_channels)) {}

ConvRun SparseConvStep::RunIn(const StepContext& context) const {
  return {.context = context,
          .plan = (*context.plans)[static_cast<size_t>(options_.conv)],
          .shape = options_.shape,
          .rulebook = options_.rulebook,
          .operands = {.in = context.At(options_.in),
                       .out = context.At(options_.out),
                       .weights = weights_.data(),
                       .epilogue = options_.epilogue.In(context)}};
}

absl::Status SparseConvStep::CheckRows(const ConvRun& run) const {
  const auto check = [&](const auto& map) {
    const int64_t in_rows = run.operands.in.capacity, out_rows = run.operands.out.capacity;
    if (in_rows == map.num_in_rows && out_rows == map.num_out_rows) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("convolution \"", name, "\" of ", in_rows, " to ", out_rows,
                                            " rows got a rulebook of ", map.num_in_rows, " to ", map.num_out_rows));
  };
  if constexpr (kernels::kHasCuda) {
    if (run.context.cuda() != nullptr) return check(run.context.device_geometry->neighbours(run.rulebook));
  }
  return check(run.context.geometry->rulebook(run.rulebook));
}

size_t SparseConvStep::ScratchBytes(const StepContext& context) const {
  const ConvRun run = RunIn(context);
  return DataflowOf(run.plan.dataflow).WorkspaceBytes(run);
}

absl::Status SparseConvStep::Run(const StepContext& context) const {
  const ConvRun run = RunIn(context);
  RETURN_IF_ERROR(CheckRows(run));
  return DataflowOf(run.plan.dataflow).Launch(run);
}

absl::Status SparseConvStep::Upload(WeightUploader& uploader) {
  const ConvShape& shape = options_.shape;
  if (shape.num_offsets > kernels::kMaxKernelVolume) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat("its kernel has ", shape.num_offsets, " cells; at most ",
                                                              kernels::kMaxKernelVolume, " are possible on a GPU")),
                      error_reason::kBadModel);
  }
  // A group of offsets lies side by side then (kernels/conv/matmul_grouping.h).
  const auto matrix = static_cast<size_t>(shape.in_channels) * static_cast<size_t>(shape.out_channels);
  std::vector<float> ordered;
  ordered.reserve(weights_.values().size());
  for (const int32_t k : kernels::WalkOrder(shape.num_offsets, shape.is_symmetric)) {
    const auto begin = weights_.values().begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(k) * matrix);
    ordered.insert(ordered.end(), begin, begin + static_cast<std::ptrdiff_t>(matrix));
  }
  weights_ = Weights(std::move(ordered));
  RETURN_IF_ERROR(uploader.Upload(weights_, shape.dtype));
  return uploader.Upload(options_.epilogue.bias, DType::kFloat32);
}

}  // namespace voxserve
