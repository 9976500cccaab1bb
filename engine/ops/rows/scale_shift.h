#pragma once

// ScaleShiftStep computes out = epilogue(in * scale), row by row. It runs a batch norm, addition or activation that
// could not be fused into a layer, and it copies the inputs of concatenations that could not be written in place.

#include <utility>

#include "engine/ops/step.h"

namespace voxserve {

class ScaleShiftStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;  // on one level, with the same channels
    Weights scale;        // [channels]; empty: 1
    FusedEpilogue epilogue;
  };

  explicit ScaleShiftStep(Options options) : options_(std::move(options)) {}

  absl::Status Run(const StepContext& context) const override;
  absl::Status Upload(WeightUploader& uploader) override;

 private:
  Options options_;
};

}  // namespace voxserve
