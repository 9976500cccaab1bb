#pragma once

// LinearStep computes a linear layer, row by row: out = epilogue(in W). A 1x1 convolution is the same computation. In
// 16 bits, a GPU with tensor cores runs it as a sparse convolution of one offset
// (kernels/conv/implicit_gemm/implicit_gemm.h); otherwise a GPU runs it by cuBLASLt. A CPU runs it by the tiles of its
// convolutions (kernels/rows/linear.h).
//
// As the implicit GEMM, the step can also write the rows' labels without their values, or rotate its first columns.

#include <utility>
#include <vector>

#include "engine/ops/step.h"

namespace voxserve {

class LinearStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;  // on one level; do not overlap
    Weights weights;      // [in channels, out channels]; the step packs them for its device
    FusedEpilogue epilogue;
    // Pairs of the first columns are rotated (kernels/conv/pair_rotation.h), if the slice has a buffer. Only where
    // CanRotate.
    struct Rotation {
      BufferSlice angles;
      int32_t head_pairs = 0;
      int32_t num_columns = 0;
    } rotation;
    DType dtype = DType::kFloat32;      // of in, weights and residual
    DType out_dtype = DType::kFloat32;  // dtype, or float32
    bool on_cuda = false;
  };

  explicit LinearStep(Options options);

  absl::Status Run(const StepContext& context) const override;
  absl::Status Upload(WeightUploader& uploader) override;
  // The library needs the number of rows on the host, and the order of its sums may depend on that number.
  bool NeedsSizes(const std::vector<ConvPlan>&) const override { return !is_implicit_gemm_; }

  // Returns true if steps for the present GPU and this type of features can rotate columns.
  static bool CanRotate(DType dtype);

  // Returns true if Label can write the labels of the layer's values.
  bool CanLabel() const;
  // Writes the channel of each row's largest value to `labels`, and not the values. labels: one column of uint8 or
  // uint16. A row with a NaN or infinite value gets the ignore label. Call it only if CanLabel.
  absl::Status Label(const StepContext& context, const kernels::Rows& labels) const;

  const Options& options() const { return options_; }

 private:
  // Runs the implicit GEMM. If `labels` has data, the GEMM writes only the labels.
  absl::Status RunImplicitGemm(const StepContext& context, const kernels::Rows& labels) const;

  Options options_;
  const bool is_implicit_gemm_;  // on a GPU whose implicit GEMM has the layer's type
};

}  // namespace voxserve
