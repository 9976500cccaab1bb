#pragma once

// RowNormStep computes softmax, layer norm, L2 norm or a reduction of each row over its own channels.

#include <utility>

#include "engine/ops/step.h"
#include "kernels/rows/row_norm.h"

namespace voxserve {

class RowNormStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;  // on one level; out has in's channels, of a reduction 1; do not overlap
    kernels::RowNorm kind = kernels::RowNorm::kSoftmax;
    float epsilon = 0;
    Weights weight, bias;    // only for a layer norm, [channels]; empty: 1 and 0
    FusedEpilogue epilogue;  // only for a layer norm, without a bias

    // A layer norm of the result, which the step computes too. out: no buffer: none; else of `out`'s channels and type.
    struct Second {
      BufferSlice out;
      float epsilon = 0;
      Weights weight, bias;
    } second;
  };

  explicit RowNormStep(Options options) : options_(std::move(options)) {}

  kernels::RowNormParams ParamsIn(const StepContext& context) const;
  absl::Status Run(const StepContext& context) const override;
  absl::Status Upload(WeightUploader& uploader) override;

 private:
  Options options_;
};

}  // namespace voxserve
