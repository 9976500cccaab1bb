#include "engine/ops/sparse_conv.h"

#include "absl/strings/str_cat.h"
#include "kernels/fetch_on_demand.h"
#include "kernels/gather_scatter.h"

namespace voxserve {

absl::Status SparseConv(const SparseConvArgs& args, ExecutionContext& context) {
  if (args.in.rows != args.rulebook.num_in_rows || args.out.rows != args.rulebook.num_out_rows) {
    return absl::InternalError(absl::StrCat("a sparse convolution of ", args.in.rows, " to ", args.out.rows,
                                            " rows got a rulebook of ", args.rulebook.num_in_rows, " to ",
                                            args.rulebook.num_out_rows));
  }
  if (args.dataflow == Dataflow::kFetchOnDemand) {
    kernels::cpu::FetchOnDemand({.rulebook = args.rulebook,
                                 .in = args.in.floats(),
                                 .in_pitch = args.in.pitch,
                                 .in_channels = args.in.channels,
                                 .weights = args.weights,
                                 .out = args.out.floats(),
                                 .out_pitch = args.out.pitch,
                                 .out_channels = args.out.channels,
                                 .epilogue = args.epilogue,
                                 .block_rows = args.block_rows},
                                *context.pool);
  } else {
    kernels::cpu::GatherGemmScatter({.rulebook = args.rulebook,
                                     .in = args.in.floats(),
                                     .in_pitch = args.in.pitch,
                                     .in_channels = args.in.channels,
                                     .weights = args.weights,
                                     .out = args.out.floats(),
                                     .out_pitch = args.out.pitch,
                                     .out_channels = args.out.channels,
                                     .epilogue = args.epilogue,
                                     .block_rows = args.block_rows},
                                    *context.pool);
  }
  return absl::OkStatus();
}

std::vector<float> PrepareSparseConvWeights(std::vector<float> weights, int32_t num_offsets, int32_t in_channels,
                                            int32_t out_channels, Dataflow dataflow) {
  if (dataflow == Dataflow::kGatherGemmScatter) return weights;
  return kernels::cpu::PackWeights(weights.data(), num_offsets, in_channels, out_channels);
}

}  // namespace voxserve
