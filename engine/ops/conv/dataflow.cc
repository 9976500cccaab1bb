#include "engine/ops/conv/dataflow.h"

#include <algorithm>
#include <utility>

#include "engine/ops/conv/fetch_on_demand.h"
#include "engine/ops/conv/gather_gemm_scatter.h"

namespace voxserve {

const std::vector<const ConvDataflow*>& Dataflows() {
  static const GatherGemmScatterDataflow gather_gemm_scatter;
  static const FetchOnDemandDataflow fetch_on_demand;
  static const std::vector<const ConvDataflow*> dataflows = {&gather_gemm_scatter, &fetch_on_demand};
  return dataflows;
}

const ConvDataflow& DataflowOf(Dataflow id) {
  const std::vector<const ConvDataflow*>& all = Dataflows();
  return **std::find_if(all.begin(), all.end(), [id](const ConvDataflow* dataflow) { return dataflow->id() == id; });
}

bool ServedDataflow::Serves(const ConvPlan& plan) const {
  if (plan.dataflow != dataflow) return false;
  return plan.block_rows == 0 || !block_rows ||
         std::find(block_rows->begin(), block_rows->end(), plan.block_rows) != block_rows->end();
}

std::vector<ServedDataflow> ServedDataflows(const ConvShape& shape, bool on_cuda) {
  std::vector<ServedDataflow> all;
  for (const ConvDataflow* dataflow : Dataflows()) {
    if (std::optional<ServedDataflow> served = dataflow->Serves(shape, on_cuda)) all.push_back(*std::move(served));
  }
  return all;
}

}  // namespace voxserve
