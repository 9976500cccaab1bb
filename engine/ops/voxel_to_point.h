#pragma once

// An output of the network: every point that is answered gets its voxel's row. Points without a voxel get the ignore
// label, or scores of 0.

#include "engine/ops/output.h"

namespace voxserve {

class VoxelToPointStep final : public Step {
 public:
  // in: labels (one column of uint8 or uint16) or scores (float32).
  VoxelToPointStep(const BufferSlice& in, bool is_labels)
      : in_(in), kind_(is_labels ? OutputKind::kLabels : OutputKind::kScores) {}

  absl::Status Run(const StepContext& context) const override;
  int64_t OutputBytes(const StepContext& context) const override;
  bool is_head() const override { return true; }

 private:
  absl::Status RunOnCuda(const StepContext& context) const;

  const BufferSlice in_;
  const OutputKind kind_;
};

}  // namespace voxserve
