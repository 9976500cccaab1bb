#pragma once

// The largest, the average or the sum of every channel over all sites of a sample: a row a sample.

#include "engine/ops/step.h"
#include "kernels/rows/pool.h"

namespace voxserve {

class GlobalPoolStep final : public Step {
 public:
  struct Options {
    BufferSlice in;   // on a level whose samples are known (ProgramSegment::sample_levels)
    BufferSlice out;  // on kSampleLevel, with the same channels
    kernels::PoolReduce reduce = kernels::PoolReduce::kMax;
  };

  explicit GlobalPoolStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;
  bool IsCapturable(const std::vector<Buffer>&) const override { return true; }
  size_t ScratchBytes(const StepContext& context) const override;
  bool has_scratch_of_samples() const override { return true; }

 private:
  const Options options_;
};

}  // namespace voxserve
