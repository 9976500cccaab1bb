#pragma once

// Int8ConversionStep copies rows to another type: from a float to 8 bits or back, or from one scale in 8 bits to
// another (kernels/int8/int8_rows.h).

#include <utility>
#include <vector>

#include "engine/ops/step.h"

namespace voxserve {

class Int8ConversionStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;    // on one level, with the same channels
    Weights in_scale;       // padded (int8_epilogue.h), as is inverse_scale; empty: `in` is a float
    Weights inverse_scale;  // empty: `out` is a float
  };

  explicit Int8ConversionStep(Options options) : options_(std::move(options)) {}

  absl::Status Run(const StepContext& context) const override;
  absl::Status Upload(WeightUploader& uploader) override;

 private:
  Options options_;
};

}  // namespace voxserve
