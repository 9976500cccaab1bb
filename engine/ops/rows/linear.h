#pragma once

// LinearStep computes a linear layer, row by row: out = epilogue(in W). A 1x1 convolution is the same computation. In
// 16 bits, a GPU with tensor cores runs it as a sparse convolution of one offset
// (kernels/conv/implicit_gemm/implicit_gemm.h); otherwise a library's GEMM runs it (cuBLASLt on a GPU).

#include <utility>
#include <vector>

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
  bool IsCapturable(const std::vector<Buffer>& buffers) const override {
    return AreOffPoints(buffers, {options_.in, options_.out, options_.epilogue.residual});
  }
  absl::Status Upload(WeightUploader& uploader) override;
  // The library needs the number of rows on the host, and the order of its sums may depend on that number.
  bool NeedsSizes(const std::vector<ConvPlan>&) const override { return !is_implicit_gemm_; }

  const Options& options() const { return options_; }

 private:
  Options options_;
  bool is_implicit_gemm_ = false;  // the weights were packed for the implicit GEMM
};

}  // namespace voxserve
