#pragma once

// DecodePoints turns a point cloud's bytes, as a client sent them, into the matrix that a network reads. It runs on the
// GPU, so that a cloud crosses the bus only once, unconverted. The CPU reads clouds in engine/tensor and
// engine/executor. The results are the same, bit for bit (except for the bits of NaNs).
//
// A column is a field of the cloud, or one value for all points. A field's value is made in this order:
//   1. raw, in the field's type and the cloud's byte order;
//   2. float32(double(raw) * field_scale + field_shift) where they are not 1 and 0, else float32(raw). Doubles are
//      clamped to float32's range first, so that finite stays finite; infinities and NaN pass.
// Then every column becomes value * scale + shift in float32, where they are not 1 and 0. Each product and each sum is
// rounded on its own.
//
// Points may also be moved into other coordinates (PointPlacement). A column that is the cloud's x, y or z then has the
// moved coordinate, before its own scale and shift.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/points/point_field_type.h"

namespace voxserve::kernels {

inline constexpr int kMaxPointColumns = 40;

struct PointColumn {
  bool has_field = false;  // if false, all points have default_value
  PointFieldType type = PointFieldType::kFloat32;
  uint32_t offset = 0;  // bytes from the start of the point; any alignment
  double field_scale = 1.0;
  double field_shift = 0.0;
  float default_value = 0.0F;
  float scale = 1.0F;
  float shift = 0.0F;
  int32_t axis = -1;  // 0, 1, 2: the column is x, y, z of the cloud; used only if points are moved
};

// x' = ((m[0] * x + m[1] * y) + m[2] * z) + m[3], and so on for y' and z' with the next rows. An x that leaves
// float32's range makes its point invalid.
struct PointPlacement {
  bool is_moved = false;                // if false, points stay unchanged, bit for bit
  float transform[12] = {};             // row-major [3, 4]
  int32_t axis_columns[3] = {0, 1, 2};  // columns that are x, y and z as the cloud has them: scale 1, shift 0
};

struct DecodePointsParams {
  int64_t num_points = 0;       // N
  const char* bytes = nullptr;  // any alignment; 4 bytes is the fast one
  uint64_t width = 0;           // points per row; 0: all are in one row
  uint32_t point_step = 0;      // bytes from one point to the next
  uint64_t row_step = 0;        // bytes from one row to the next; 0: packed
  bool is_bigendian = false;

  int32_t num_columns = 0;  // C, at most kMaxPointColumns
  PointColumn columns[kMaxPointColumns];
  PointPlacement placement;

  float* points = nullptr;      // [N, C]
  uint8_t* is_valid = nullptr;  // [N] 1, or 0 if a column is NaN or infinite
};
static_assert(std::is_trivially_copyable_v<DecodePointsParams>);

namespace cuda {

// cudaErrorInvalidValue for more columns than kMaxPointColumns, or if an axis of the placement is no column.
cudaError_t DecodePoints(const DecodePointsParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
