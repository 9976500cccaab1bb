#include "engine/ops/conv/sparse_conv.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace voxserve {

SparseConvStep::SparseConvStep(Options options, std::vector<float> weights, std::unique_ptr<LinearStep> shortcut,
                               std::unique_ptr<RowNormStep> norm)
    : options_(std::move(options)),
      weights_(std::move(weights)),
      shortcut_(std::move(shortcut)),
      norm_(std::move(norm)) {
  if (options_.conv.is_on_cuda) return;  // Upload packs the weights
  for (const ServedDataflow& served : options_.conv.served) {
    packed_.emplace_back(served.dataflow, DataflowOf(served.dataflow).PackWeights(options_.conv, weights_));
  }
  weights_ = {};
}

const Weights* SparseConvStep::WeightsFor(Dataflow dataflow) const {
  const auto found = std::find_if(packed_.begin(), packed_.end(), [&](const auto& p) { return p.first == dataflow; });
  return found == packed_.end() ? nullptr : &found->second;
}

ConvRun SparseConvStep::RunIn(const StepContext& context) const {
  const ConvPlan& plan = (*context.plans)[static_cast<size_t>(options_.index)];
  const Weights* const weights = WeightsFor(plan.dataflow);
  kernels::ConvOperands operands = {.in = context.At(options_.in),
                                    .out = context.At(options_.out),
                                    .weights = weights == nullptr ? nullptr : weights->data(),
                                    .epilogue = options_.epilogue.In(context)};
  if (shortcut_ != nullptr) {
    operands.shortcut_in = context.At(shortcut_->options().in);
    operands.shortcut_weights = shortcut_->options().weights.data();
  }
  return {.context = context, .plan = plan, .conv = options_.conv, .operands = operands};
}

absl::Status SparseConvStep::CheckRows(const ConvRun& run) const {
  const auto check = [&](const auto& map) {
    return voxserve::CheckRows(name, map, run.operands.in.capacity, run.operands.out.capacity);
  };
  if constexpr (kernels::kHasCuda) {
    if (run.context.cuda() != nullptr) return check(run.context.device_geometry->neighbours(run.conv.rulebook));
  }
  return check(run.context.geometry->rulebook(run.conv.rulebook));
}

size_t SparseConvStep::ScratchBytes(const StepContext& context) const {
  const ConvRun run = RunIn(context);
  return DataflowOf(run.plan.dataflow).WorkspaceBytes(run);
}

absl::Status SparseConvStep::Run(const StepContext& context) const {
  ConvRun run = RunIn(context);
  RETURN_IF_ERROR(CheckRows(run));
  if (WeightsFor(run.plan.dataflow) == nullptr) {
    return absl::InternalError(absl::StrCat("convolution \"", name, "\" has no weights for the dataflow ",
                                            DataflowOf(run.plan.dataflow).name()));
  }
  const ConvDataflow& dataflow = DataflowOf(run.plan.dataflow);
  if (shortcut_ == nullptr || dataflow.AddsShortcut(run)) {
    if (norm_ != nullptr) run.norm = norm_->ParamsIn(context);
    if (run.norm && dataflow.Norms(run)) return dataflow.Launch(run);
    run.norm.reset();
    RETURN_IF_ERROR(dataflow.Launch(run));
  } else {
    run.operands.shortcut_in = {};
    run.operands.epilogue.activation = {};
    RETURN_IF_ERROR(dataflow.Launch(run));
    RETURN_IF_ERROR(shortcut_->Run(context));
  }
  return norm_ == nullptr ? absl::OkStatus() : norm_->Run(context);
}

bool SparseConvStep::NeedsSizes(const std::vector<ConvPlan>& plans) const {
  return !DataflowOf(plans[static_cast<size_t>(options_.index)].dataflow).is_capturable() ||
         (shortcut_ != nullptr && shortcut_->NeedsSizes(plans)) || (norm_ != nullptr && norm_->NeedsSizes(plans));
}

absl::Status SparseConvStep::Upload(WeightUploader& uploader) {
  const ProgramConv& conv = options_.conv;
  RETURN_IF_ERROR(CheckKernelVolume(conv));
  for (const ServedDataflow& served : conv.served) {
    Weights packed(DataflowOf(served.dataflow).PackWeights(conv, weights_));
    RETURN_IF_ERROR(uploader.Upload(packed, conv.dtype));
    packed_.emplace_back(served.dataflow, std::move(packed));
  }
  weights_ = {};
  if (shortcut_ != nullptr) RETURN_IF_ERROR(shortcut_->Upload(uploader));
  if (norm_ != nullptr) RETURN_IF_ERROR(norm_->Upload(uploader));
  return uploader.Upload(options_.epilogue.bias, DType::kFloat32);
}

}  // namespace voxserve
