#pragma once

// An output of the network: rows of sites, samples or cells as they are, each sample's own. Rows of points are
// PointOutputStep's (ops/points/point_output.h).

#include <cstdint>

#include "engine/ops/batch_outputs.h"
#include "engine/ops/step.h"

namespace voxserve {

class TensorOutputStep final : public Step {
 public:
  struct Options {
    BufferSlice in;  // float32; on a level whose samples and keys are known, or on kSampleLevel
    int level = 0;
    int tensor = 0;  // of the program's
  };
  explicit TensorOutputStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;
  int64_t OutputBytes(const StepContext& context) const override;

 private:
  absl::Status RunOnCuda(const StepContext& context) const;
  BatchOutputs::Spec SpecOf(const StepContext& context) const;

  const Options options_;
};

}  // namespace voxserve
