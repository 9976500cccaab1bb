#pragma once

// An output of the network: every point that is answered gets its voxel's row. Points without a voxel get the ignore
// label, or scores of 0. Scores that nobody asked for are passed over, and so are samples that failed.
//
// On the CPU each sample's output is written by itself; on a GPU the rows of the whole batch are, and go to host memory
// in one copy, from which the executor hands each sample its own.

#include "engine/ops/step.h"

namespace voxserve {

class VoxelToPointStep final : public Step {
 public:
  // in: labels (one column of uint8 or uint16) or scores (float32).
  VoxelToPointStep(const BufferSlice& in, bool is_labels) : in_(in), is_labels_(is_labels) {}

  absl::Status Run(const StepContext& context) const override;
  int64_t OutputBytes(const StepContext& context) const override;
  bool is_head() const override { return true; }

 private:
  absl::Status RunOnCuda(const StepContext& context) const;
  // Outputs that share a block of memory begin at multiples of this.
  static int64_t AlignedBytes(int64_t bytes) { return (bytes + 255) / 256 * 256; }

  const BufferSlice in_;
  const bool is_labels_;
};

// Gives a sample the rows [begin, end) of the batch's answers.
void TakeOutput(const QueuedOutput& queued, int64_t begin, int64_t end, SampleOutput& output);

}  // namespace voxserve
