#pragma once

// NmsStep runs non-maximum suppression on each of several lists of boxes and joins the results into one list.

#include <utility>
#include <vector>

#include "engine/ops/step.h"
#include "kernels/boxes/rotated_nms.h"

namespace voxserve {

class NmsStep final : public Step {
 public:
  // All slices hold rows of kernels/boxes/box_rows.h.
  struct Options {
    std::vector<BufferSlice> in;  // 1 to kernels::kMaxNmsInputs
    BufferSlice out;
    float iou_threshold = 0;
    int max_boxes_in = 0;                    // only this many best boxes of each input and sample are read; 0: all
    int max_boxes_out = 1;                   // the most boxes that are kept of each input and sample
    std::vector<kernels::NmsClass> classes;  // in place of these limits, if there are any
  };

  explicit NmsStep(Options options) : options_(std::move(options)) {}

  absl::Status Run(const StepContext& context) const override;
  size_t ScratchBytes(const StepContext& context) const override;
  bool has_scratch_of_samples() const override { return true; }

 private:
  kernels::RotatedNmsParams ParamsIn(const StepContext& context) const;

  const Options options_;
};

}  // namespace voxserve
