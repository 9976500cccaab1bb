#pragma once

// A linear layer, row by row: out = epilogue(in W). Also a 1x1 convolution, which is the same thing.

#include <utility>

#include "engine/ops/step.h"

namespace voxserve {

class LinearStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;  // on one level; do not overlap
    Weights weights;      // [in channels, out channels]
    FusedEpilogue epilogue;
    DType dtype = DType::kFloat32;      // of in, weights and residual
    DType out_dtype = DType::kFloat32;  // dtype, or float32
  };

  explicit LinearStep(Options options) : options_(std::move(options)) {}

  absl::Status Run(const StepContext& context) const override;
  absl::Status Upload(WeightUploader& uploader) override;

  const Options& options() const { return options_; }

 private:
  Options options_;
};

}  // namespace voxserve
