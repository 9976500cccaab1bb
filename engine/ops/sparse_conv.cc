#include "engine/ops/sparse_conv.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/fetch_on_demand.h"
#include "kernels/gather_scatter.h"

namespace voxserve {
namespace {

// Both dataflows' parameters have the same names.
template <typename Params>
Params MakeParams(const SparseConvStep::Options& options, const StepValues& weights, const StepContext& context) {
  const Tensor in = context.At(options.in);
  const Tensor out = context.At(options.out);
  return {.rulebook = context.geometry->rulebook(options.rulebook),
          .in = in.floats(),
          .in_pitch = in.pitch,
          .in_channels = in.channels,
          .weights = weights.data(),
          .out = out.floats(),
          .out_pitch = out.pitch,
          .out_channels = out.channels,
          .epilogue = options.epilogue.In(context),
          .block_rows = options.block_rows};
}

}  // namespace

SparseConvStep::SparseConvStep(Options options, StepValues weights, int32_t num_offsets)
    : options_(std::move(options)),
      weights_(options_.dataflow == Dataflow::kFetchOnDemand
                   ? kernels::cpu::PackWeights(weights.data(), num_offsets, options_.in.channels, options_.out.channels)
                   : std::move(weights)) {}

absl::Status SparseConvStep::Run(const StepContext& context) const {
  const kernels::RulebookView rulebook = context.geometry->rulebook(options_.rulebook);
  const int64_t in_rows = context.At(options_.in).rows, out_rows = context.At(options_.out).rows;
  if (in_rows != rulebook.num_in_rows || out_rows != rulebook.num_out_rows) {
    return absl::InternalError(absl::StrCat("convolution \"", name, "\" of ", in_rows, " to ", out_rows,
                                            " rows got a rulebook of ", rulebook.num_in_rows, " to ",
                                            rulebook.num_out_rows));
  }
  if (options_.dataflow == Dataflow::kFetchOnDemand) {
    kernels::cpu::FetchOnDemand(MakeParams<kernels::FetchOnDemandParams>(options_, weights_, context),
                                *context.execution->pool);
  } else {
    kernels::cpu::GatherGemmScatter(MakeParams<kernels::GatherGemmScatterParams>(options_, weights_, context),
                                    *context.execution->pool);
  }
  return absl::OkStatus();
}

}  // namespace voxserve
