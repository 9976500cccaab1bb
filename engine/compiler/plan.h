#pragma once

// A Plan says how a network's convolutions run: for each one a ConvPlan with its dataflow (the algorithm of its matrix
// products) and the search for its rulebook. Without a tuned plan every convolution uses the default of its device.
//
// CPU default: rulebooks are found by merging the sorted coordinates. Fetch-on-demand computes the matrix products,
// with as many output rows per block as fit a core's second-level cache beside the weights of one offset.
//
// GPU default: rulebooks are found through a hash table. In 16 bits implicit GEMM computes the matrix products, with a
// block chosen from the convolution's shape. In float32 and TensorFloat-32, and on GPUs without implicit GEMM,
// gather-GEMM-scatter computes them, with adaptive grouping and the defaults of kernels::GroupingOptions. Only epsilon
// differs for float32 without TensorFloat-32: it is 0.2.

#include <string>

#include "absl/container/flat_hash_map.h"
#include "engine/ops/conv_plan.h"
#include "engine/tensor/dtype.h"

namespace voxserve {

// The default for 16-bit factors. Where a GPU does not support it, PlanTable uses gather-GEMM-scatter instead.
inline constexpr ConvPlan kDefaultCudaConvPlan = {.map_search = kernels::MapSearch::kHash,
                                                  .dataflow = Dataflow::kImplicitGemm};

// Returns the default plan of a convolution on a GPU. allow_tf32: float32 factors may be rounded to TensorFloat-32.
constexpr ConvPlan DefaultCudaConvPlan(DType dtype, bool allow_tf32) {
  if (dtype != DType::kFloat32) return kDefaultCudaConvPlan;
  ConvPlan plan = ByDataflow(kDefaultCudaConvPlan, Dataflow::kGatherGemmScatter);
  // Padding of a group adds arithmetic. Without TensorFloat-32 that is expensive, so groups get little padding.
  if (!allow_tf32) plan.grouping.epsilon = 0.2;
  return plan;
}

struct Plan {
  ConvPlan fallback;                                   // for convolutions without an entry
  absl::flat_hash_map<std::string, ConvPlan> by_node;  // by the convolution's name

  const ConvPlan& ForNode(const std::string& name) const {
    const auto found = by_node.find(name);
    return found == by_node.end() ? fallback : found->second;
  }
};

}  // namespace voxserve
