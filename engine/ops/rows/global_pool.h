#pragma once

// GlobalPoolStep computes one row per sample: the largest, the average, the sum or the generalised mean of every
// channel over all sites of the sample.

#include "engine/ops/step.h"
#include "kernels/rows/pool.h"

namespace voxserve {

class GlobalPoolStep final : public Step {
 public:
  struct Options {
    BufferSlice in;   // on one of its segment's sample_levels (ProgramSegment)
    BufferSlice out;  // on kSampleLevel, with the same channels
    kernels::PoolReduce reduce = kernels::PoolReduce::kMax;
    float exponent = 0;  // with kAverage: the exponent of a generalised mean; 0: the average
    float least = 0;     // in a generalised mean, lower values count as `least`
  };

  explicit GlobalPoolStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;
  size_t ScratchBytes(const StepContext& context) const override;
  bool has_scratch_of_samples() const override { return true; }

 private:
  const Options options_;
};

}  // namespace voxserve
