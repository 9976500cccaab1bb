#pragma once

// TensorOutputStep writes a tensor of sites, samples or cells into each sample's result, unchanged. PointOutputStep
// (ops/points/point_output.h) writes rows of points.

#include <cstdint>

#include "engine/ops/output_collector.h"
#include "engine/ops/step.h"

namespace voxserve {

class TensorOutputStep final : public Step {
 public:
  struct Options {
    BufferSlice in;  // float32; on a level of sample_levels and key_levels, or on kSampleLevel
    int level = 0;   // the level of `in`
    int tensor = 0;  // index of the program's tensor
  };
  explicit TensorOutputStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;
  int64_t OutputBytes(const StepContext& context) const override;

 private:
  absl::Status RunOnCuda(const StepContext& context) const;
  OutputCollector::Spec SpecOf(const StepContext& context) const;

  const Options options_;
};

}  // namespace voxserve
