#pragma once

// How one convolution of a network runs: the choices that a tuner makes (engine/compiler/plan.h).

#include "kernels/conv/matmul_grouping.h"
#include "kernels/coordinates/coordinate_table.h"

namespace voxserve {

// How the products are made. kFetchOnDemand reads input rows in place (kernels/conv/fetch_on_demand.h),
// kGatherGemmScatter copies them into a buffer and calls the library's GEMM (kernels/conv/gather_gemm_scatter.h).
enum class Dataflow { kFetchOnDemand, kGatherGemmScatter };

struct ConvPlan {
  // Convolutions that share a rulebook share the first one's.
  kernels::MapSearch map_search = kernels::MapSearch::kMerge;
  Dataflow dataflow = Dataflow::kFetchOnDemand;
  // Output rows of a block, which a CPU's thread keeps in its cache and a GPU's block (kFetchOnDemand) in its shared
  // memory; 0: the dataflow's default.
  int block_rows = 0;
  kernels::GroupingOptions grouping = {};  // GPU, kGatherGemmScatter

  bool operator==(const ConvPlan&) const = default;
};

}  // namespace voxserve
