#pragma once

// A ConvPlan says how one convolution of a network runs. A default or the tuner chooses its values
// (engine/compiler/plan.h).

#include "kernels/conv/conv_block.h"
#include "kernels/conv/matmul_grouping.h"
#include "kernels/coordinates/coordinate_table.h"

namespace voxserve {

// Says how a convolution's matrix products are computed. engine/ops/conv/dataflow.h has the table of dataflows.
enum class Dataflow { kFetchOnDemand, kGatherGemmScatter, kImplicitGemm };

struct ConvPlan {
  // Convolutions that share a rulebook use the map_search of the first one.
  kernels::MapSearch map_search = kernels::MapSearch::kMerge;
  Dataflow dataflow = Dataflow::kFetchOnDemand;
  // The part of the output that is computed at once: on the CPU, the rows that a thread keeps in its cache; on a GPU, a
  // tile.
  kernels::ConvBlock block = {};
  kernels::GroupingOptions grouping = {};  // read if ConvDataflow::has_grouping

  bool operator==(const ConvPlan&) const = default;
};

// Returns the plan with another dataflow. The block is reset to the default, since blocks belong to one dataflow.
constexpr ConvPlan ByDataflow(ConvPlan plan, Dataflow dataflow) {
  if (plan.dataflow == dataflow) return plan;
  plan.dataflow = dataflow;
  plan.block = {};
  return plan;
}

}  // namespace voxserve
