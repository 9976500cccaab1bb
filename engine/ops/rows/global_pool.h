#pragma once

// GlobalPoolStep computes the maximum, average or sum of every channel over all sites of a sample: one row per sample.

#include "engine/ops/step.h"
#include "kernels/rows/pool.h"

namespace voxserve {

class GlobalPoolStep final : public Step {
 public:
  struct Options {
    BufferSlice in;   // on one of its segment's sample_levels (ProgramSegment)
    BufferSlice out;  // on kSampleLevel, with the same channels
    kernels::PoolReduce reduce = kernels::PoolReduce::kMax;
  };

  explicit GlobalPoolStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;
  size_t ScratchBytes(const StepContext& context) const override;
  bool has_scratch_of_samples() const override { return true; }

 private:
  const Options options_;
};

}  // namespace voxserve
