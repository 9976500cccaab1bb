#pragma once

// Operators that look at one row at a time: linear layers, what is left of batch norms, additions, activations and
// concatenations after fusion, argmax, and the way back to the points.

#include <cstdint>

#include "absl/status/status.h"
#include "engine/runtime/execution_context.h"
#include "engine/tensor/tensor.h"
#include "kernels/epilogue.h"

namespace voxserve {

// out = epilogue(in W).
struct LinearArgs {
  Tensor in;                       // [rows, in_channels]
  Tensor out;                      // [rows, out_channels]; does not overlap `in`
  const float* weights = nullptr;  // [in_channels, out_channels]
  kernels::Epilogue epilogue;
};
absl::Status Linear(const LinearArgs& args, ExecutionContext& context);

// out = epilogue(in * scale).
struct ScaleShiftArgs {
  Tensor in;                     // [rows, channels]
  Tensor out;                    // [rows, channels]; may be `in`
  const float* scale = nullptr;  // [channels]; null: 1
  kernels::Epilogue epilogue;
};
absl::Status ScaleShift(const ScaleShiftArgs& args, ExecutionContext& context);

// labels[row] = channel of the largest value, ties to the lowest.
absl::Status Argmax(const Tensor& in, const Tensor& labels, ExecutionContext& context);

// points[i] = voxels[point_to_voxel[i]], or fill where that is negative.
struct VoxelToPointArgs {
  const int32_t* point_to_voxel = nullptr;  // [points.rows]
  Tensor voxels;                            // [num_voxels, channels]
  const void* fill = nullptr;               // a row
  Tensor points;                            // [num_points, channels], packed
};
absl::Status VoxelToPoint(const VoxelToPointArgs& args, ExecutionContext& context);

}  // namespace voxserve
