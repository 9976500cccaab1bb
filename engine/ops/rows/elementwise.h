#pragma once

// ElementwiseStep combines two tensors on one level, value by value.

#include <utility>

#include "engine/ops/step.h"
#include "kernels/rows/elementwise.h"

namespace voxserve {

class ElementwiseStep final : public Step {
 public:
  struct Options {
    kernels::Elementwise function = kernels::Elementwise::kMultiply;
    float epsilon = 0;      // of kDivide, added to the divisor
    BufferSlice a, b, out;  // on one level; a and b have out's channels, or 1 channel
  };

  explicit ElementwiseStep(Options options) : options_(std::move(options)) {}

  absl::Status Run(const StepContext& context) const override;

 private:
  Options options_;
};

}  // namespace voxserve
