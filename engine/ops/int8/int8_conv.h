#pragma once

// Int8ConvStep computes a sparse convolution (sparse_conv.h) in 8 bits on the CPU. It has one way to compute; the
// batch's plan chooses the rows of a block.

#include <utility>
#include <vector>

#include "engine/ops/conv/dataflow.h"
#include "engine/ops/int8/int8_epilogue.h"
#include "engine/ops/step.h"

namespace voxserve {

class Int8ConvStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;  // `in` in 8 bits; they do not overlap
    int index = 0;        // of the convolution in the program; its plan is StepContext::plans[index]
    ProgramConv conv;
    std::vector<kernels::Int8Line> weights;  // of PackInt8Weights
    FusedInt8Epilogue epilogue;
  };

  explicit Int8ConvStep(Options options) : options_(std::move(options)) {}

  absl::Status Run(const StepContext& context) const override;

  const Options& options() const { return options_; }

 private:
  Options options_;
};

}  // namespace voxserve
