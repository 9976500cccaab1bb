#pragma once

// PReluStep computes out = in for values from 0, and out = slope * in for values below 0, with one slope per channel.

#include <utility>

#include "engine/ops/step.h"

namespace voxserve {

class PReluStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;  // on one level, with the same channels
    Weights slopes;       // [channels]
  };

  explicit PReluStep(Options options) : options_(std::move(options)) {}

  absl::Status Run(const StepContext& context) const override;
  absl::Status Upload(WeightUploader& uploader) override;

 private:
  Options options_;
};

}  // namespace voxserve
