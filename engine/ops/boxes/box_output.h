#pragma once

// BoxOutputStep writes each sample's boxes into its result.

#include "engine/ops/output_collector.h"
#include "engine/ops/step.h"

namespace voxserve {

class BoxOutputStep final : public Step {
 public:
  // in: rows of boxes (kernels/boxes/box_rows.h) in float32, the same number for each sample.
  explicit BoxOutputStep(const BufferSlice& in) : in_(in) {}

  absl::Status Run(const StepContext& context) const override;
  int64_t OutputBytes(const StepContext& context) const override;

 private:
  absl::Status RunOnCuda(const StepContext& context) const;
  static OutputCollector::Spec SpecOf(const StepContext& context, const kernels::Rows& boxes);

  const BufferSlice in_;
};

}  // namespace voxserve
