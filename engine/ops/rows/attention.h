#pragma once

// AttentionStep computes dot-product attention within each sample (kernels/rows/attention/attention.h).

#include "engine/ops/step.h"
#include "kernels/rows/attention/attention.h"

namespace voxserve {

class AttentionStep final : public Step {
 public:
  struct Options {
    // A slice of sites is on one of its segment's sample_levels (ProgramSegment). Keys and values have the same rows,
    // which are sites or rows of samples, not points. `out` has the queries' rows and the values' channels, and
    // overlaps no input.
    BufferSlice queries, keys, values, out;
    int num_heads = 1;
    float scale = 1;
    bool keys_are_of_samples = false;  // queries and keys are rows of samples
  };

  explicit AttentionStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;
  size_t ScratchBytes(const StepContext& context) const override;
  bool has_scratch_of_samples() const override { return options_.keys_are_of_samples; }

 private:
  kernels::AttentionParams ParamsIn(const StepContext& context) const;

  const Options options_;
};

}  // namespace voxserve
