#include "engine/ops/row_ops.h"

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "kernels/argmax.h"
#include "kernels/linear.h"
#include "kernels/scale_shift.h"
#include "kernels/voxel_to_point.h"

namespace voxserve {
namespace {

// The compiler gives both sides one level; a difference is ours.
absl::Status CheckRows(const char* op, const Tensor& in, const Tensor& out) {
  if (in.rows == out.rows) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(op, " of ", in.rows, " rows into ", out.rows));
}

}  // namespace

absl::Status Linear(const LinearArgs& args, ExecutionContext& context) {
  RETURN_IF_ERROR(CheckRows("linear", args.in, args.out));
  kernels::cpu::Linear({.num_rows = args.in.rows,
                        .in = args.in.floats(),
                        .in_pitch = args.in.pitch,
                        .in_channels = args.in.channels,
                        .weights = args.weights,
                        .out = args.out.floats(),
                        .out_pitch = args.out.pitch,
                        .out_channels = args.out.channels,
                        .epilogue = args.epilogue},
                       *context.pool);
  return absl::OkStatus();
}

absl::Status ScaleShift(const ScaleShiftArgs& args, ExecutionContext& context) {
  RETURN_IF_ERROR(CheckRows("scale_shift", args.in, args.out));
  kernels::cpu::ScaleShift({.num_rows = args.in.rows,
                            .channels = args.in.channels,
                            .in = args.in.floats(),
                            .in_pitch = args.in.pitch,
                            .scale = args.scale,
                            .out = args.out.floats(),
                            .out_pitch = args.out.pitch,
                            .epilogue = args.epilogue},
                           *context.pool);
  return absl::OkStatus();
}

absl::Status Argmax(const Tensor& in, const Tensor& labels, ExecutionContext& context) {
  RETURN_IF_ERROR(CheckRows("argmax", in, labels));
  kernels::cpu::Argmax({.num_rows = in.rows,
                        .channels = in.channels,
                        .in = in.floats(),
                        .in_pitch = in.pitch,
                        .label_bytes = static_cast<int32_t>(SizeOf(labels.dtype)),
                        .labels = labels.data},
                       *context.pool);
  return absl::OkStatus();
}

absl::Status VoxelToPoint(const VoxelToPointArgs& args, ExecutionContext& context) {
  kernels::cpu::VoxelToPoint({.num_points = args.points.rows,
                              .point_to_voxel = args.point_to_voxel,
                              .voxels = args.voxels.data,
                              .voxel_pitch_bytes = args.voxels.pitch_bytes(),
                              .row_bytes = args.voxels.channels * SizeOf(args.voxels.dtype),
                              .fill = args.fill,
                              .points = args.points.data},
                             *context.pool);
  return absl::OkStatus();
}

}  // namespace voxserve
