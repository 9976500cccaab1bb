#include "engine/ops/conv/sparse_conv.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {
namespace {

// The CPU's dataflows have parameters of the same names.
template <typename Params>
Params CpuParams(const SparseConvStep::Options& options, const ConvPlan& plan, const Weights& weights,
                 const StepContext& context) {
  const kernels::Rows in = context.At(options.in);
  const kernels::Rows out = context.At(options.out);
  return {.rulebook = context.geometry->rulebook(options.rulebook),
          .in = in.floats(),
          .in_pitch = in.pitch,
          .in_channels = in.channels,
          .weights = weights.floats(),
          .out = out.floats(),
          .out_pitch = out.pitch,
          .out_channels = out.channels,
          .epilogue = options.epilogue.In(context),
          .block_rows = plan.block_rows};
}

}  // namespace

SparseConvStep::SparseConvStep(Options options, std::vector<float> weights)
    : options_(std::move(options)),
      weights_(options_.packs_weights ? kernels::cpu::PackWeights(weights.data(), options_.num_offsets,
                                                                  options_.in.channels, options_.out.channels)
                                      : std::move(weights)) {}

const ConvPlan& SparseConvStep::PlanIn(const StepContext& context) const {
  return (*context.plans)[static_cast<size_t>(options_.conv)];
}

absl::Status SparseConvStep::CheckRows(const StepContext& context, int64_t num_in_rows, int64_t num_out_rows) const {
  const int64_t in_rows = context.At(options_.in).capacity, out_rows = context.At(options_.out).capacity;
  if (in_rows == num_in_rows && out_rows == num_out_rows) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("convolution \"", name, "\" of ", in_rows, " to ", out_rows,
                                          " rows got a rulebook of ", num_in_rows, " to ", num_out_rows));
}

size_t SparseConvStep::ScratchBytes(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    return ScratchBytesOnCuda(context);
  }
  return 0;
}

absl::Status SparseConvStep::Run(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) return RunOnCuda(context);
  }
  const kernels::RulebookView rulebook = context.geometry->rulebook(options_.rulebook);
  RETURN_IF_ERROR(CheckRows(context, rulebook.num_in_rows, rulebook.num_out_rows));
  if (options_.packs_weights) {
    kernels::cpu::FetchOnDemand(CpuParams<kernels::FetchOnDemandParams>(options_, PlanIn(context), weights_, context),
                                *context.execution->pool);
  } else {
    kernels::cpu::GatherGemmScatter(
        CpuParams<kernels::GatherGemmScatterParams>(options_, PlanIn(context), weights_, context),
        *context.execution->pool);
  }
  return absl::OkStatus();
}

absl::Status SparseConvStep::Upload(WeightUploader& uploader) {
  if (options_.num_offsets > kernels::kMaxKernelVolume) {
    return WithReason(
        absl::InvalidArgumentError(absl::StrCat("its kernel has ", options_.num_offsets, " cells; at most ",
                                                kernels::kMaxKernelVolume, " are possible on a GPU")),
        error_reason::kBadModel);
  }
  // A group of offsets lies side by side then (kernels/conv/matmul_grouping.h).
  const auto matrix = static_cast<size_t>(options_.in.channels) * static_cast<size_t>(options_.out.channels);
  std::vector<float> ordered;
  ordered.reserve(weights_.values().size());
  for (const int32_t k : kernels::WalkOrder(options_.num_offsets, options_.is_symmetric)) {
    const auto begin = weights_.values().begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(k) * matrix);
    ordered.insert(ordered.end(), begin, begin + static_cast<std::ptrdiff_t>(matrix));
  }
  weights_ = Weights(std::move(ordered));
  RETURN_IF_ERROR(uploader.Upload(weights_, options_.dtype));
  return uploader.Upload(options_.epilogue.bias, DType::kFloat32);
}

}  // namespace voxserve
