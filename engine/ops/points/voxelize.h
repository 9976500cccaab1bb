#pragma once

// VoxelFeaturesStep makes the network's input: one row per voxel of level 0, with the features of its first point or
// the mean of its points. The geometry pass has found the voxels (geometry/batch_geometry.h).

#include "engine/ops/step.h"
#include "kernels/points/voxel_features.h"

namespace voxserve {

class VoxelFeaturesStep final : public Step {
 public:
  struct Options {
    BufferSlice out;       // a whole buffer: the step also sets the buffer's padding
    int first_column = 0;  // the first column of the features in StepContext::points
    kernels::VoxelReduce reduce = kernels::VoxelReduce::kFirst;
    int64_t max_points_per_voxel = 0;  // for kMean: counts only the first points; 0: all
  };

  explicit VoxelFeaturesStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;

 private:
  const Options options_;
};

}  // namespace voxserve
