#pragma once

// Instance and group norm: every group of channels of a sample is brought to mean 0 and variance 1 over the sample's
// own sites, then scaled and shifted by channel. Two passes over the values, for their means and for the squares of
// what is left, so that a large mean does not eat the variance; in a fixed order, so that they are deterministic.

#include <cstdint>
#include <utility>

#include "engine/ops/step.h"

namespace voxserve {

class SampleNormStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;     // on a level whose samples are known, with the same channels; may be the same
    int32_t num_groups = 1;  // divides the channels
    float epsilon = 0;
    Weights weight;  // [channels]; empty: 1
    FusedEpilogue epilogue;
  };

  explicit SampleNormStep(Options options) : options_(std::move(options)) {}

  absl::Status Run(const StepContext& context) const override;
  bool IsCapturable(const std::vector<Buffer>&) const override { return true; }
  absl::Status Upload(WeightUploader& uploader) override;
  size_t ScratchBytes(const StepContext& context) const override;
  bool has_scratch_of_samples() const override { return true; }

 private:
  // Runs the passes with means and scales [samples, channels]; workspace as SampleReduce asks for it.
  absl::Status RunWith(const StepContext& context, float* means, float* scales, void* workspace) const;

  Options options_;
};

}  // namespace voxserve
