#pragma once

// PointOutputStep writes an output on points: every answered point gets its own row or its voxel's row.
// - Points without a voxel get the ignore label, or values of 0.
// - In labels and scores, points with NaN or infinite logits get them too. The step for labels counts these points.
// - In tensors, NaN and infinite values are kept.

#include <string_view>

#include "engine/ops/output_collector.h"
#include "engine/ops/step.h"
#include "kernels/points/voxel_to_point.h"

namespace voxserve {

class PointOutputStep final : public Step {
 public:
  // in: on points or on the voxels. output: the output's name; NamedOutput::kLabels has one column of uint8 or uint16,
  // all others have float32 rows. tensor: index of the program's tensor that is the output; -1: labels or scores.
  PointOutputStep(const BufferSlice& in, std::string_view output, int tensor)
      : in_(in), output_(output), tensor_(tensor) {}

  absl::Status Run(const StepContext& context) const override;
  int64_t OutputBytes(const StepContext& context) const override;

 private:
  absl::Status RunOnCuda(const StepContext& context) const;
  OutputCollector::Spec SpecOf(const kernels::Rows& in) const;
  // Returns the parameters for the batch's points [begin, begin + num_points). point_to_voxel: on the context's device.
  kernels::VoxelToPointParams ParamsOf(const StepContext& context, const int32_t* point_to_voxel, int64_t begin,
                                       int64_t num_points, void* points) const;

  const BufferSlice in_;
  const std::string_view output_;
  const int tensor_;
};

}  // namespace voxserve
