#pragma once

// How a network's convolutions run. Without a tuned plan every convolution runs by the default below, which is
// documented because it serves whenever there is no plan.
//
// CPU default: rulebooks found by merging the sorted coordinates, fetch-on-demand with as many output rows a block as
// fit a core's second-level cache beside an offset's weights.
//
// GPU default: rulebooks found through a hash table. In 16 bits implicit GEMM with a block chosen from the
// convolution's shape; in float32, TensorFloat-32 too, and on GPUs that do not serve it, gather-GEMM-scatter with
// adaptive grouping by the parameters of kernels::GroupingOptions.

#include <string>

#include "absl/container/flat_hash_map.h"
#include "engine/ops/conv_plan.h"
#include "engine/tensor/dtype.h"

namespace voxserve {

// It is for 16-bit factors. PlanTable runs by gather-GEMM-scatter what a GPU does not serve so.
inline constexpr ConvPlan kDefaultCudaConvPlan = {.map_search = kernels::MapSearch::kHash,
                                                  .dataflow = Dataflow::kImplicitGemm};

// allow_tf32: float32 factors may be rounded to TensorFloat-32.
constexpr ConvPlan DefaultCudaConvPlan(DType dtype, bool allow_tf32) {
  if (dtype != DType::kFloat32) return kDefaultCudaConvPlan;
  ConvPlan plan = ByDataflow(kDefaultCudaConvPlan, Dataflow::kGatherGemmScatter);
  // Padding costs arithmetic, which is dear in true float32: groups are kept tight.
  if (!allow_tf32) plan.grouping.epsilon = 0.2;
  return plan;
}

struct Plan {
  ConvPlan fallback;                                   // of convolutions without an entry
  absl::flat_hash_map<std::string, ConvPlan> by_node;  // by the convolution's name

  const ConvPlan& ForNode(const std::string& name) const {
    const auto found = by_node.find(name);
    return found == by_node.end() ? fallback : found->second;
  }
};

}  // namespace voxserve
