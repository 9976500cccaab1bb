#pragma once

// DecodePoints turns a point cloud's bytes, as a client sent them, into the matrix that a network reads. It runs on the
// GPU, so that a cloud crosses the bus only once, unconverted. For networks on the CPU, engine/tensor and
// engine/executor do the same; both results are the same, bit for bit (except for the bits of NaNs).
//
// A column of the matrix is a field of the cloud, or one value for all points. It is computed in these steps:
//   1. For a field: read raw, in the field's type and the cloud's byte order.
//   2. For a field: value = float32(double(raw) * field_scale + field_shift), or float32(raw) if field_scale is 1 and
//      field_shift is 0. A finite double is first clamped to float32's range, so that finite values stay finite.
//   3. value * scale + shift in float32, unless scale is 1 and shift is 0.
// Each product and each sum is rounded on its own (no fused multiply-add).
//
// If placement.is_moved, points are transformed to other coordinates, for example to those of a later sweep. Columns
// with an `axis` then have the transformed x, y or z as the value of step 2.

#include <cstdint>
#include <span>
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
  int32_t axis = -1;  // 0, 1, 2: the column is x, y, z of the cloud; -1: another column; read only if points are moved
};

// A rigid or affine transform of the points: x' = ((m[0] * x + m[1] * y) + m[2] * z) + m[3] with the first row m of
// `transform`; y' and z' use the second and third rows. Every operation is rounded to float32. A result beyond
// float32's range is infinite, so the point becomes invalid.
struct PointPlacement {
  bool is_moved = false;                // if false, points stay unchanged, bit for bit
  float transform[12] = {};             // row-major [3, 4]
  int32_t axis_columns[3] = {0, 1, 2};  // columns from which x, y and z are read; their scale is 1 and shift 0
};

struct DecodePointsParams {
  int64_t num_points = 0;       // N
  const char* bytes = nullptr;  // any alignment; with 4 bytes, reading is fastest
  uint64_t width = 0;           // points per row; 0: all are in one row
  uint32_t point_step = 0;      // bytes from one point to the next
  uint64_t row_step = 0;        // bytes from one row to the next; 0: packed
  bool is_bigendian = false;

  int32_t num_columns = 0;  // C, at most kMaxPointColumns
  PointColumn columns[kMaxPointColumns];
  PointPlacement placement;

  float* points = nullptr;      // output: [N, C]
  uint8_t* is_valid = nullptr;  // output: [N] 0 if a column of the point is NaN or infinite, else 1
};
static_assert(std::is_trivially_copyable_v<DecodePointsParams>);

namespace cuda {

// Decodes several clouds at the same time; their outputs must not overlap. Returns cudaErrorInvalidValue if a
// num_columns is above kMaxPointColumns, or if points are moved and an entry of axis_columns is no column.
cudaError_t DecodePoints(std::span<const DecodePointsParams> clouds, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
