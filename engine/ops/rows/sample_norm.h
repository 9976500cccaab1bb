#pragma once

// SampleNormStep computes instance and group norm. Every group of channels of a sample is normalised to mean 0 and
// variance 1 over the sample's sites, then scaled and shifted per channel.
//
// It makes two passes over the values: one for the means, one for the squared differences from them. A single pass
// would lose the variance's digits where the mean is large. Sums run in a fixed order, so the result is deterministic.

#include <cstdint>
#include <utility>

#include "engine/ops/step.h"

namespace voxserve {

class SampleNormStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;     // on one of its segment's sample_levels, with the same channels; may be the same
    int32_t num_groups = 1;  // divides the channels
    float epsilon = 0;
    Weights weight;  // [channels]; empty: 1
    FusedEpilogue epilogue;
  };

  explicit SampleNormStep(Options options) : options_(std::move(options)) {}

  absl::Status Run(const StepContext& context) const override;
  absl::Status Upload(WeightUploader& uploader) override;
  size_t ScratchBytes(const StepContext& context) const override;
  bool has_scratch_of_samples() const override { return true; }

 private:
  // Runs the passes. means, scales: memory for [samples, channels]; workspace: as SampleReduce requires.
  absl::Status RunWith(const StepContext& context, float* means, float* scales, void* workspace) const;

  Options options_;
};

}  // namespace voxserve
