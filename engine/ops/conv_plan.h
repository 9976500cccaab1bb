#pragma once

// How one convolution of a network runs: the choices that a tuner makes (engine/compiler/plan.h).

#include "kernels/conv/conv_block.h"
#include "kernels/conv/matmul_grouping.h"
#include "kernels/coordinates/coordinate_table.h"

namespace voxserve {

// How the products are made. engine/ops/conv/dataflow.h has the table of what each of them is.
enum class Dataflow { kFetchOnDemand, kGatherGemmScatter, kImplicitGemm };

struct ConvPlan {
  // Convolutions that share a rulebook share the first one's.
  kernels::MapSearch map_search = kernels::MapSearch::kMerge;
  Dataflow dataflow = Dataflow::kFetchOnDemand;
  // Its rows are those that a CPU's thread keeps in its cache, and on a GPU a tile's.
  kernels::ConvBlock block = {};
  kernels::GroupingOptions grouping = {};  // where ConvDataflow::has_grouping

  bool operator==(const ConvPlan&) const = default;
};

// The same choices as far as `dataflow` has them.
constexpr ConvPlan ByDataflow(ConvPlan plan, Dataflow dataflow) {
  if (plan.dataflow == dataflow) return plan;
  plan.dataflow = dataflow;
  plan.block = {};
  return plan;
}

}  // namespace voxserve
