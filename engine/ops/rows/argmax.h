#pragma once

// ArgmaxStep finds the channel of the largest value of each row, the row's class id. Ties go to the lowest channel. A
// row with a NaN or infinite value gets the ignore label.

#include "engine/ops/step.h"

namespace voxserve {

class ArgmaxStep final : public Step {
 public:
  // out: one column of uint8 or uint16.
  ArgmaxStep(const BufferSlice& in, const BufferSlice& out) : in_(in), out_(out) {}

  absl::Status Run(const StepContext& context) const override;
  bool IsCapturable(const std::vector<Buffer>& buffers) const override { return AreOffPoints(buffers, {in_, out_}); }

 private:
  const BufferSlice in_, out_;
};

}  // namespace voxserve
