#pragma once

// ArgmaxStep finds the channel of the largest value of each row, the row's class id. Ties go to the lowest channel. A
// row with a NaN or infinite value gets the ignore label.
//
// If the values are those of a linear layer, the layer's own kernel can find the channel before it stores anything
// (LinearStep::Label). The values are then not read, and the layer's step runs only for other readers.

#include "engine/ops/rows/linear.h"
#include "engine/ops/step.h"

namespace voxserve {

class ArgmaxStep final : public Step {
 public:
  struct Options {
    BufferSlice in;
    BufferSlice out;                         // one column of uint8 or uint16
    const LinearStep* classifier = nullptr;  // outlives this step; null: `in` is read
  };

  explicit ArgmaxStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;

 private:
  const Options options_;
};

}  // namespace voxserve
