#pragma once

// MultiplyStep computes the element-wise product of two tensors on one level.

#include <utility>

#include "engine/ops/step.h"

namespace voxserve {

class MultiplyStep final : public Step {
 public:
  struct Options {
    BufferSlice in, factor, out;  // on one level, with the same channels
  };

  explicit MultiplyStep(Options options) : options_(std::move(options)) {}

  absl::Status Run(const StepContext& context) const override;

 private:
  Options options_;
};

}  // namespace voxserve
