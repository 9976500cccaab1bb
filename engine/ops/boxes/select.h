#pragma once

// SelectStep selects the queries of each sample: the best peaks of an image of logits (kernels/boxes/select_peaks.h).

#include "engine/ops/step.h"
#include "kernels/boxes/select_peaks.h"

namespace voxserve {

class SelectStep final : public Step {
 public:
  struct Options {
    kernels::SelectPeaksParams parameters;  // without pointers and pitches
    BufferSlice scores;                     // images of all samples, one channel per class
    BufferSlice out;                        // k rows of kernels/boxes/selection.h for each sample, float32
  };

  explicit SelectStep(const Options& options) : options_(options) {}
  const Options& options() const { return options_; }

  absl::Status Run(const StepContext& context) const override;
  size_t ScratchBytes(const StepContext& context) const override;
  bool has_scratch_of_samples() const override { return true; }

 private:
  kernels::SelectPeaksParams ParamsIn(const StepContext& context) const;

  const Options options_;
};

}  // namespace voxserve
