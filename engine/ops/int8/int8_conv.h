#pragma once

// Int8ConvStep computes a sparse convolution (sparse_conv.h) in 8 bits, and the shortcut of its residual block if the
// compiler has fused them. On the CPU the batch's plan chooses the rows of a block, on a GPU the block of the implicit
// GEMM. The choice changes no byte.

#include <cstddef>
#include <utility>
#include <vector>

#include "engine/ops/conv/dataflow.h"
#include "engine/ops/int8/int8_epilogue.h"
#include "engine/ops/int8/int8_weights.h"
#include "engine/ops/step.h"

namespace voxserve {

class Int8ConvStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;  // `in` in 8 bits; they do not overlap
    int index = 0;        // of the convolution in the program; its plan is StepContext::plans[index]
    ProgramConv conv;
    Int8Weights weights;
    BufferSlice shortcut_in;  // in the type of `in`; on a GPU the rows of both are whole vectors of 16 bytes
    Int8Weights shortcut_weights;
    FusedInt8Epilogue epilogue;
  };

  explicit Int8ConvStep(Options options) : options_(std::move(options)) {}

  absl::Status Run(const StepContext& context) const override;
  // Also returns INVALID_ARGUMENT (BAD_MODEL) for a kernel of more than kernels::kMaxKernelVolume cells.
  absl::Status Upload(WeightUploader& uploader) override;
  size_t ScratchBytes(const StepContext& context) const override;

  const Options& options() const { return options_; }

 private:
  absl::Status RunOnCpu(const StepContext& context) const;

  Options options_;
};

}  // namespace voxserve
