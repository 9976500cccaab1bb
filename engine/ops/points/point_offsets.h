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
    bool is_from_mean = false;  // true: from the mean of the voxel's points; false: from its centre
    int64_t max_points = 0;     // a mean counts only a voxel's first max_points points; 0: all
    // The two members below are read only for offsets from centres, and are in the axes' unit. Level 0 must then be one
    // of Program::key_levels.
    std::array<float, kernels::kMaxDimension> voxel_size = {1, 1, 1, 1};
    std::array<float, kernels::kMaxDimension> first_center = {0, 0, 0, 0};
  };

  explicit PointOffsetsStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;
  size_t ScratchBytes(const StepContext& context) const override;

 private:
  // Returns the parameters without the means.
  kernels::PointOffsetsParams ParamsIn(const StepContext& context) const;
  // Returns a view of the means, one row per voxel. data: memory of MeansBytes.
  kernels::Rows MeansIn(const StepContext& context, float* data) const;
  size_t MeansBytes(const StepContext& context) const;

  const Options options_;
};

}  // namespace voxserve
