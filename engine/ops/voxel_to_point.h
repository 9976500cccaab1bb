#pragma once

// An output of the network: every point gets its voxel's row. Points without a voxel get the ignore label, or scores of
// 0. Writes each sample's output by itself; samples that failed, and scores that nobody asked for, are passed over.

#include "engine/ops/step.h"

namespace voxserve {

class VoxelToPointStep final : public Step {
 public:
  // in: labels (one column of uint8 or uint16) or scores (float32).
  VoxelToPointStep(const BufferSlice& in, bool is_labels) : in_(in), is_labels_(is_labels) {}

  absl::Status Run(const StepContext& context) const override;
  bool is_head() const override { return true; }

 private:
  const BufferSlice in_;
  const bool is_labels_;
};

}  // namespace voxserve
