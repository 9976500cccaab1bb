#pragma once

// PointOffsetsStep computes each point's position in its voxel, a tensor on points. kernels/points/point_offsets.h
// defines the values.

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/ops/step.h"
#include "kernels/points/point_offsets.h"

namespace voxserve {

class PointOffsetsStep final : public Step {
 public:
  struct Options {
    BufferSlice out;  // on points, one channel per axis
    int32_t dimension = 3;
    bool is_from_mean = false;  // else from the centres of cells
    int64_t max_points = 0;     // points that a mean counts, the first ones; 0: all
    // For offsets from centres. Level 0 must then be one of Program::key_levels.
    std::array<float, kernels::kMaxDimension> voxel_size = {1, 1, 1, 1};
    std::array<float, kernels::kMaxDimension> first_center = {0, 0, 0, 0};
  };

  explicit PointOffsetsStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;
  size_t ScratchBytes(const StepContext& context) const override;

 private:
  // Returns the parameters without the means.
  kernels::PointOffsetsParams ParamsIn(const StepContext& context) const;
  // Returns the means, one row per voxel. data: MeansBytes.
  kernels::Rows MeansIn(const StepContext& context, float* data) const;
  size_t MeansBytes(const StepContext& context) const;

  const Options options_;
};

}  // namespace voxserve
