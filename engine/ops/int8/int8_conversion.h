#pragma once

// Int8ConversionStep copies rows to another type on the CPU: from float32 to 8 bits or back, or from one scale in 8
// bits to another (kernels/int8/int8_rows.h).

#include <utility>
#include <vector>

#include "engine/ops/step.h"

namespace voxserve {

class Int8ConversionStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;               // on one level, with the same channels
    std::vector<float> in_scale;       // padded (int8_epilogue.h), as is inverse_scale; empty: `in` is float32
    std::vector<float> inverse_scale;  // empty: `out` is float32
  };

  explicit Int8ConversionStep(Options options) : options_(std::move(options)) {}

  absl::Status Run(const StepContext& context) const override;

 private:
  Options options_;
};

}  // namespace voxserve
