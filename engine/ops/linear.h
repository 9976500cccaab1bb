#pragma once

// A linear layer, row by row: out = epilogue(in W). Also a 1x1 convolution, which is the same thing.

#include <utility>

#include "engine/ops/step.h"

namespace voxserve {

class LinearStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;  // on one level; do not overlap
    StepValues weights;   // [in channels, out channels]
    FusedEpilogue epilogue;
  };

  explicit LinearStep(Options options) : options_(std::move(options)) {}

  absl::Status Run(const StepContext& context) const override;

  const Options& options() const { return options_; }

 private:
  const Options options_;
};

}  // namespace voxserve
