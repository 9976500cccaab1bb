#pragma once

// Where each point lies in its voxel, as a tensor on points. kernels/points/point_offsets.h defines it.

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/ops/step.h"
#include "kernels/points/point_offsets.h"

namespace voxserve {

class PointOffsetsStep final : public Step {
 public:
  struct Options {
    BufferSlice out;  // on points, a channel an axis
    int32_t dimension = 3;
    bool is_from_mean = false;
    int64_t max_points = 0;  // of a mean; 0: all
    // For offsets from centres, for which level 0 is one of Program::key_levels.
    std::array<float, kernels::kMaxDimension> voxel_size = {1, 1, 1, 1};
    std::array<float, kernels::kMaxDimension> first_center = {0, 0, 0, 0};
  };

  explicit PointOffsetsStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;
  size_t ScratchBytes(const StepContext& context) const override;

 private:
  // Without the means.
  kernels::PointOffsetsParams ParamsIn(const StepContext& context) const;
  // A row a voxel. data: MeansBytes.
  kernels::Rows MeansIn(const StepContext& context, float* data) const;
  size_t MeansBytes(const StepContext& context) const;

  const Options options_;
};

}  // namespace voxserve
