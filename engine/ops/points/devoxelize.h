#pragma once

// These steps interpolate rows of sites at positions between the sites: at points, or at the sites of another level.
// InterpolationWeightsStep finds the sites around each position and their weights, once for all tensors on the same
// sites. DevoxelizeStep computes the weighted sums.

#include <array>

#include "engine/ops/step.h"
#include "kernels/points/interpolation_weights.h"

namespace voxserve {

class InterpolationWeightsStep final : public Step {
 public:
  struct Options {
    BufferSlice out;  // on the positions' level: 2^dimension neighbours of 4 bytes, then as many float32 weights
    int32_t dimension = 3;
    int position_level = kPointLevel;  // the level of the positions; kPointLevel: they are the points
    int level = 0;                     // the level of the sites
    kernels::SiteRatio ratio;          // from the positions' unit to the sites' unit
    // Read only where positions are points; kernels/points/interpolation_weights.h defines them.
    kernels::VoxelRounding rounding = kernels::VoxelRounding::kHalfEven;
    std::array<float, kernels::kMaxDimension> voxel_size = {1, 1, 1, 1};
    std::array<float, kernels::kMaxDimension> shift = {0, 0, 0, 0};
  };

  explicit InterpolationWeightsStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;
  size_t ScratchBytes(const StepContext& context) const override;

 private:
  kernels::InterpolationWeightsParams ParamsIn(const StepContext& context) const;

  const Options options_;
};

class DevoxelizeStep final : public Step {
 public:
  struct Options {
    BufferSlice in;          // on sites
    BufferSlice out;         // on the positions' level
    BufferSlice weights;     // InterpolationWeightsStep's output; empty: each point takes its voxel's row
    FusedEpilogue epilogue;  // without a bias
  };

  explicit DevoxelizeStep(Options options) : options_(std::move(options)) {}

  absl::Status Run(const StepContext& context) const override;

 private:
  const Options options_;
};

}  // namespace voxserve
