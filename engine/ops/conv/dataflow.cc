#include "engine/ops/conv/dataflow.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/ops/conv/fetch_on_demand.h"
#include "engine/ops/conv/gather_gemm_scatter.h"
#include "engine/ops/conv/implicit_gemm.h"
#include "kernels/conv/gather_scatter.h"

namespace voxserve {

const std::vector<const ConvDataflow*>& Dataflows() {
  static const GatherGemmScatterDataflow gather_gemm_scatter;
  static const FetchOnDemandDataflow fetch_on_demand;
  static const ImplicitGemmDataflow implicit_gemm;
  static const std::vector<const ConvDataflow*> dataflows = {&gather_gemm_scatter, &fetch_on_demand, &implicit_gemm};
  return dataflows;
}

const ConvDataflow& DataflowOf(Dataflow id) {
  const std::vector<const ConvDataflow*>& all = Dataflows();
  return **std::find_if(all.begin(), all.end(), [id](const ConvDataflow* dataflow) { return dataflow->id() == id; });
}

bool ServedDataflow::Serves(const ConvPlan& plan) const {
  if (plan.dataflow != dataflow) return false;
  if (plan.block == kernels::ConvBlock{}) return true;
  if (!blocks) return plan.block == kernels::ConvBlock{.rows = plan.block.rows};
  return std::find(blocks->begin(), blocks->end(), plan.block) != blocks->end();
}

const ServedDataflow* ProgramConv::Find(Dataflow dataflow) const {
  const auto found = std::find_if(served.begin(), served.end(), [dataflow](const ServedDataflow& of_device) {
    return of_device.dataflow == dataflow;
  });
  return found == served.end() ? nullptr : &*found;
}

absl::Status CheckKernelVolume(const ProgramConv& conv) {
  if (conv.num_offsets <= kernels::kMaxKernelVolume) return absl::OkStatus();
  return WithReason(absl::InvalidArgumentError(absl::StrCat("its kernel has ", conv.num_offsets, " cells; at most ",
                                                            kernels::kMaxKernelVolume, " are possible on a GPU")),
                    error_reason::kBadModel);
}

std::string Describe(const kernels::ConvBlock& block) {
  std::string text =
      block.columns == 0 ? absl::StrCat(block.rows, " rows") : absl::StrCat(block.rows, " x ", block.columns);
  if (block.uses_mma_sync) text += " by warps";
  if (block.split_k > 1) absl::StrAppend(&text, ", split ", block.split_k);
  return text;
}

std::vector<ServedDataflow> ServedDataflows(const ProgramConv& conv) {
  std::vector<ServedDataflow> all;
  for (const ConvDataflow* dataflow : Dataflows()) {
    if (std::optional<ServedDataflow> served = dataflow->Serves(conv)) all.push_back(*std::move(served));
  }
  return all;
}

}  // namespace voxserve
