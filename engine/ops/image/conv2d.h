#pragma once

// Conv2dStep convolves images, directly or transposed: out = epilogue(conv(in)).

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/ops/step.h"
#include "kernels/image/conv2d.h"

namespace voxserve {

class Conv2dStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;  // images of all samples on kSampleLevel; do not overlap
    int32_t in_rows = 0;  // of an image
    int32_t in_columns = 0;
    kernels::Conv2dGeometry geometry;
    FusedEpilogue epilogue;
    DType dtype = DType::kFloat32;  // of in, weights and residual
    bool allow_tf32 = false;        // on a GPU
    bool on_cuda = false;
  };

  // weights: as PyTorch stores them, with batch norms folded in.
  Conv2dStep(Options options, std::vector<float> weights);

  // INTERNAL where the CPU's library refuses the convolution; Check reports that before.
  absl::Status Run(const StepContext& context) const override;
  bool IsCapturable(const std::vector<Buffer>&) const override { return true; }
  absl::Status Check() const override;
  absl::Status Upload(WeightUploader& uploader) override;

  const Options& options() const { return options_; }

 private:
  // Returns the parameters without pointers.
  kernels::Conv2dParams FixedParams() const;

  Options options_;
  Weights weights_;      // packed for the device, on a GPU by Upload
  std::string refusal_;  // why packing failed; empty: it succeeded
};

}  // namespace voxserve
