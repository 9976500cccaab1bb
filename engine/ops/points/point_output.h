#pragma once

// An output of the network: every point that is answered gets its own row, or its voxel's. Points without a voxel get
// the ignore label, or values of 0; so do those whose labels or scores come from numbers that are NaN or infinite. The
// latter are counted where labels are made. A tensor's values are given as they are.

#include <string_view>

#include "engine/ops/batch_outputs.h"
#include "engine/ops/step.h"
#include "kernels/points/voxel_to_point.h"

namespace voxserve {

class PointOutputStep final : public Step {
 public:
  // in: on points or on the voxels. output: NamedOutput::kLabels (one column of uint8 or uint16), or that of float32
  // rows.
  // tensor: of the program's, whose rows are the output, as they are where they are not finite; else -1.
  PointOutputStep(const BufferSlice& in, std::string_view output, int tensor)
      : in_(in), output_(output), tensor_(tensor) {}

  absl::Status Run(const StepContext& context) const override;
  int64_t OutputBytes(const StepContext& context) const override;

 private:
  absl::Status RunOnCuda(const StepContext& context) const;
  BatchOutputs::Spec SpecOf(const kernels::Rows& in) const;
  // The parameters for the batch's points [begin, begin + num_points), with point_to_voxel as the device has it.
  kernels::VoxelToPointParams ParamsOf(const StepContext& context, const int32_t* point_to_voxel, int64_t begin,
                                       int64_t num_points, void* points) const;

  const BufferSlice in_;
  const std::string_view output_;
  const int tensor_;
};

}  // namespace voxserve
