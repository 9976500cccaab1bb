#pragma once

// Int8LinearStep computes a linear layer (linear.h), or a sparse convolution of one cell, in 8 bits. On a GPU it is an
// implicit GEMM of one offset.

#include <utility>
#include <vector>

#include "engine/ops/int8/int8_epilogue.h"
#include "engine/ops/int8/int8_weights.h"
#include "engine/ops/step.h"

namespace voxserve {

class Int8LinearStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;  // on one level, `in` in 8 bits; they do not overlap
    Int8Weights weights;  // of one offset
    FusedInt8Epilogue epilogue;
  };

  explicit Int8LinearStep(Options options) : options_(std::move(options)) {}

  absl::Status Run(const StepContext& context) const override;
  absl::Status Upload(WeightUploader& uploader) override;

  const Options& options() const { return options_; }

 private:
  Options options_;
};

}  // namespace voxserve
