#pragma once

// Int8Conv2dStep computes a convolution of images (engine/ops/image/conv2d.h) of one group in 8 bits. A GPU serves only
// those of kernels::IsForInt8Im2col, with rows of inputs at multiples of 16 bytes.

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/ops/int8/int8_epilogue.h"
#include "engine/ops/int8/int8_weights.h"
#include "engine/ops/step.h"
#include "kernels/image/conv2d.h"

namespace voxserve {

class Int8Conv2dStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;  // the images of all samples, on kSampleLevel, `in` in 8 bits; they do not overlap
    int32_t in_rows = 0;  // rows of one image
    int32_t in_columns = 0;
    kernels::Conv2dGeometry geometry;
    Int8Weights weights;  // Int8Weights::OfConv2d
    FusedInt8Epilogue epilogue;
  };

  explicit Int8Conv2dStep(Options options) : options_(std::move(options)) {}

  absl::Status Run(const StepContext& context) const override;
  absl::Status Upload(WeightUploader& uploader) override;

 private:
  Options options_;
};

}  // namespace voxserve
