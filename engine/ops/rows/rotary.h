#pragma once

// RotaryStep rotates pairs of channels by angles that grow with the rows' positions (kernels/rows/rotary.h).
// RotaryAnglesStep makes the table of a level's angles, with which linear layers rotate their results on a GPU.

#include "engine/ops/step.h"

namespace voxserve {

class RotaryStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;  // on sites, with the same channels; they do not overlap
    // One channel per axis, on the same sites. None: the positions are the coordinates of the sites; their level must
    // be one of Program::key_levels.
    BufferSlice positions;
    int dimension = 3;
    int num_heads = 1;
    float base = 0;
  };

  explicit RotaryStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;

 private:
  const Options options_;
};

class RotaryAnglesStep final : public Step {
 public:
  struct Options {
    BufferSlice out;        // float32, kernels::AngleTableChannels
    BufferSlice positions;  // as in RotaryStep
    int dimension = 3;
    int pairs = 1;  // in the chunk of an axis
    float base = 0;
  };

  explicit RotaryAnglesStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;
  const Options& options() const { return options_; }

 private:
  const Options options_;
};

}  // namespace voxserve
