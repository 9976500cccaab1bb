#pragma once

// PointFeaturesStep copies the cloud's features to a tensor on points.

#include "engine/ops/step.h"

namespace voxserve {

class PointFeaturesStep final : public Step {
 public:
  // first_column: the first column of the features in StepContext::points.
  PointFeaturesStep(const BufferSlice& out, int first_column) : out_(out), first_column_(first_column) {}

  absl::Status Run(const StepContext& context) const override;

 private:
  const BufferSlice out_;
  const int first_column_;
};

}  // namespace voxserve
