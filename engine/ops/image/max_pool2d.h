#pragma once

// MaxPool2dStep takes the maximum over windows of images, channel by channel.

#include <cstdint>

#include "engine/ops/step.h"
#include "kernels/image/max_pool2d.h"

namespace voxserve {

class MaxPool2dStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;  // images of all samples on kSampleLevel, with the same channels; do not overlap
    int32_t in_rows = 0;  // of an image
    int32_t in_columns = 0;
    kernels::Conv2dGeometry geometry;
  };

  explicit MaxPool2dStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;

 private:
  const Options options_;
};

}  // namespace voxserve
