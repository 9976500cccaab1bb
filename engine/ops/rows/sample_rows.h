#pragma once

// SampleRowsStep writes learned rows, which are the same for every sample of the batch.

#include <utility>
#include <vector>

#include "engine/ops/step.h"

namespace voxserve {

class SampleRowsStep final : public Step {
 public:
  // weight: [rows per sample, out.channels]. dtype: the type of `out`, which is on kSampleLevel.
  SampleRowsStep(std::vector<float> weight, DType dtype, const BufferSlice& out)
      : weight_(std::move(weight)), dtype_(dtype), out_(out) {}

  absl::Status Run(const StepContext& context) const override;
  absl::Status Upload(WeightUploader& uploader) override { return uploader.Upload(weight_, dtype_); }

 private:
  Weights weight_;
  const DType dtype_;
  const BufferSlice out_;
};

}  // namespace voxserve
