#pragma once

// SitePositionStep gives each voxel a position, which it makes from the positions of the voxel's points
// (kernels/image/sites/voxel_positions.h).

#include <array>
#include <cstddef>

#include "engine/ops/step.h"
#include "kernels/coordinates/conv_geometry.h"

namespace voxserve {

class SitePositionStep final : public Step {
 public:
  struct Options {
    BufferSlice out;               // on level 0, one channel per axis
    bool is_mean = false;          // true: the mean of the voxel's points; false: its first point
    bool is_from_minimum = false;  // true: the sample's minimum is subtracted
    std::array<float, kernels::kMaxDimension> scale = {1, 1, 1, 1};
    std::array<float, kernels::kMaxDimension> shift = {0, 0, 0, 0};
  };

  explicit SitePositionStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;
  size_t ScratchBytes(const StepContext& context) const override;
  bool has_scratch_of_samples() const override { return true; }

 private:
  const Options options_;
};

}  // namespace voxserve
