#include "engine/executor/point_reader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error_reason.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "engine/executor/point_sample.h"

namespace voxserve {
namespace {

constexpr int64_t kBlockPoints = 8192;

constexpr std::string_view kAxisNames[] = {"x", "y", "z"};

struct Column {
  const PointField* field = nullptr;  // null: every point has `value`
  float value = 0;
  float scale = 1;
  float shift = 0;
  int axis = -1;  // 0, 1, 2: the cloud's x, y or z
};

int AxisOf(const std::string& name) {
  const auto* const found = std::find(std::begin(kAxisNames), std::end(kAxisNames), name);
  return found == std::end(kAxisNames) ? -1 : static_cast<int>(found - std::begin(kAxisNames));
}

// Returns the columns of the matrix: the axes, then the features.
std::vector<Column> FindColumns(const VoxelizeOp& op, const CloudPart& part) {
  std::vector<Column> columns;
  for (const std::string& axis : op.axes) {
    columns.push_back({.field = part.cloud->FindField(axis), .axis = AxisOf(axis)});
  }
  for (const InputFeature& feature : op.features) {
    Column column = {.field = part.cloud->FindField(feature.name),
                     .value = feature.default_value.value_or(0.0f),
                     .scale = feature.scale,
                     .shift = feature.shift,
                     .axis = AxisOf(feature.name)};
    if (part.placed != nullptr && feature.name == part.age_feature) {
      column.field = nullptr;
      column.value = part.placed->age_seconds;
    }
    columns.push_back(column);
  }
  return columns;
}

// Returns the columns that hold x, y and z. The axes must be these three, in any order.
std::array<int32_t, 3> FindAxisColumns(const std::vector<Column>& columns) {
  std::array<int32_t, 3> found = {};
  for (int32_t c = 0; c < 3; ++c) found[static_cast<size_t>(columns[static_cast<size_t>(c)].axis)] = c;
  return found;
}

void ScaleColumn(const Column& column, int64_t count, float* out, int64_t step) {
  if (column.scale == 1.0f && column.shift == 0.0f) return;
  for (int64_t i = 0; i < count; ++i) out[i * step] = out[i * step] * column.scale + column.shift;
}

void ReadColumn(const Column& column, const PointCloud& cloud, int64_t begin, int64_t end, float* out, int64_t step) {
  if (column.field != nullptr) {
    cloud.ReadField(*column.field, static_cast<uint64_t>(begin), static_cast<uint64_t>(end), out, step);
  } else {
    for (int64_t i = 0; i < end - begin; ++i) out[i * step] = column.value;
  }
  ScaleColumn(column, end - begin, out, step);
}

// Applies the sweep's transform to the axes of rows that have been read, and rewrites the features that repeat an axis.
// (This file is compiled without contraction to fused multiply-adds, so each product and each sum is rounded, as on a
// GPU.)
void PlaceRows(const std::vector<Column>& columns, const Transform& m, int64_t count, float* rows) {
  const auto pitch = static_cast<int64_t>(columns.size());
  const std::array<int32_t, 3> axis_columns = FindAxisColumns(columns);
  const auto [x_column, y_column, z_column] = axis_columns;
  for (int64_t i = 0; i < count; ++i) {
    float* const row = rows + i * pitch;
    const float x = row[x_column], y = row[y_column], z = row[z_column];
    row[x_column] = ((m[0] * x + m[1] * y) + m[2] * z) + m[3];
    row[y_column] = ((m[4] * x + m[5] * y) + m[6] * z) + m[7];
    row[z_column] = ((m[8] * x + m[9] * y) + m[10] * z) + m[11];
  }
  for (int64_t c = 3; c < pitch; ++c) {
    const Column& column = columns[static_cast<size_t>(c)];
    if (column.axis < 0) continue;
    const int32_t axis_column = axis_columns[static_cast<size_t>(column.axis)];
    for (int64_t i = 0; i < count; ++i) rows[i * pitch + c] = rows[i * pitch + axis_column];
    ScaleColumn(column, count, rows + c, pitch);
  }
}

absl::Status BadSweeps(const std::string& why) {
  return WithReason(absl::InvalidArgumentError(why), error_reason::kBadSweeps);
}

absl::Status CheckSweeps(const VoxelizeOp& op, std::string_view age_feature) {
  const std::vector<std::string> features = AgeFeatures(op.axes, op.features);
  switch (ObstacleToSweeps(op.axes, features, age_feature)) {
    case SweepObstacle::kNone:
      break;
    case SweepObstacle::kAxes:
      return BadSweeps(absl::StrCat("sweeps can be run together where a model's axes are x, y and z; this one's are ",
                                    absl::StrJoin(op.axes, ", ")));
    case SweepObstacle::kAgeFeature:
      return BadSweeps(absl::StrCat("the model has no feature ", Quoted(std::string(age_feature)),
                                    " for the age of points; it has ",
                                    features.empty() ? "none but its axes" : absl::StrJoin(features, ", ")));
  }
  return absl::OkStatus();
}

// Returns the middle one of the distances from 0, on one axis, of up to 255 points that lie evenly in the cloud; 0 if
// none is finite.
float MiddleDistance(const PointCloud& cloud, const PointField& axis) {
  const uint64_t num_samples = std::min<uint64_t>(255, cloud.num_points());
  std::vector<float> distances;
  for (uint64_t i = 0; i < num_samples; ++i) {
    const uint64_t point = i * (cloud.num_points() / num_samples);
    float value = 0;
    cloud.ReadField(axis, point, point + 1, &value, 1);
    if (std::isfinite(value)) distances.push_back(std::abs(value));
  }
  if (distances.empty()) return 0;
  const auto middle = distances.begin() + static_cast<std::ptrdiff_t>(distances.size() / 2);
  std::nth_element(distances.begin(), middle, distances.end());
  return *middle;
}

// Networks compute in float32. Coordinates of maps (UTM) come as float64, and lie so far from the origin that float32
// rounds them to much of a voxel.
absl::Status CheckPrecision(const VoxelizeOp& op, const PointCloud& cloud) {
  for (size_t i = 0; i < op.axes.size(); ++i) {
    const PointField* const field = cloud.FindField(op.axes[i]);
    if (field->type != PointFieldType::kFloat64 || AxisOf(op.axes[i]) < 0) continue;
    const float middle = MiddleDistance(cloud, *field);
    const float step = std::nextafter(middle, HUGE_VALF) - middle;
    if (step <= op.voxel_size[i] / 4) continue;
    return WithReason(absl::InvalidArgumentError(
                          absl::StrCat("most values of ", op.axes[i], " lie about ", middle,
                                       " m from 0, where float32, in which networks compute, ", "rounds them to ", step,
                                       " m; subtract an origin near the scan from its coordinates")),
                      error_reason::kCoordinateLimits);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckFields(const VoxelizeOp& op, const PointCloud& cloud, std::string_view age_feature) {
  std::vector<std::string> missing;
  std::vector<const PointField*> read;
  for (const std::string& axis : op.axes) {
    if (const PointField* const field = cloud.FindField(axis)) {
      read.push_back(field);
    } else {
      missing.push_back(axis);
    }
  }
  for (const InputFeature& feature : op.features) {
    if (feature.name == age_feature) continue;
    if (const PointField* const field = cloud.FindField(feature.name)) {
      read.push_back(field);
    } else if (!feature.default_value.has_value() &&
               std::find(missing.begin(), missing.end(), feature.name) == missing.end()) {
      missing.push_back(feature.name);
    }
  }
  if (cloud.num_points() == 0 && cloud.layout().fields.empty()) return absl::OkStatus();
  if (missing.empty()) {
    RETURN_IF_ERROR(cloud.CheckReadFields(std::move(read)));
    return CheckPrecision(op, cloud);
  }
  std::vector<std::string> present;
  for (const PointField& field : cloud.layout().fields) present.push_back(field.name);
  return WithReason(absl::InvalidArgumentError(absl::StrCat(
                        "the cloud lacks ", missing.size() == 1 ? "field" : "fields", " ", absl::StrJoin(missing, ", "),
                        ", which the model reads; it has ", present.empty() ? "none" : absl::StrJoin(present, ", "))),
                    error_reason::kMissingField);
}

absl::Status CheckInput(const VoxelizeOp& op, const InferTask& task) {
  RETURN_IF_ERROR(CheckSample(op, task));
  if (task.sweeps.empty()) return CheckFields(op, task.cloud);
  RETURN_IF_ERROR(CheckSweeps(op, task.age_feature));
  for (const PlacedSweep& placed : task.sweeps) {
    RETURN_IF_ERROR(CheckFields(op, placed.sweep->cloud, task.age_feature));
  }
  return absl::OkStatus();
}

void ReadPoints(const VoxelizeOp& op, const CloudPart& part, float* points, uint8_t* is_valid,
                kernels::ThreadPool& pool) {
  const std::vector<Column> columns = FindColumns(op, part);
  const auto num_columns = static_cast<int64_t>(columns.size());
  pool.ParallelFor(part.num_points(), kBlockPoints, [&](int64_t begin, int64_t end) {
    for (int64_t c = 0; c < num_columns; ++c) {
      ReadColumn(columns[static_cast<size_t>(c)], *part.cloud, begin, end, points + begin * num_columns + c,
                 num_columns);
    }
    if (part.is_moved) PlaceRows(columns, part.placed->transform, end - begin, points + begin * num_columns);
    for (int64_t i = begin; i < end; ++i) {
      // x * 0 is 0 for every number, and NaN for NaN and the infinities.
      float sum = 0;
      for (int64_t c = 0; c < num_columns; ++c) sum += points[i * num_columns + c] * 0.0f;
      is_valid[i] = sum == 0.0f ? 1 : 0;
    }
  });
}

kernels::DecodePointsParams DecodeParams(const VoxelizeOp& op, const CloudPart& part) {
  const PointCloudLayout& layout = part.cloud->layout();
  const uint64_t width = layout.num_points / layout.height;
  kernels::DecodePointsParams params{.num_points = part.num_points(),
                                     .width = width,
                                     .point_step = layout.point_step,
                                     .row_step = layout.row_step,
                                     .is_bigendian = layout.is_bigendian};
  const std::vector<Column> columns = FindColumns(op, part);
  for (const Column& column : columns) {
    kernels::PointColumn& decoded = params.columns[params.num_columns++];
    decoded.default_value = column.value;
    decoded.scale = column.scale;
    decoded.shift = column.shift;
    decoded.axis = column.axis;
    decoded.has_field = column.field != nullptr;
    if (!decoded.has_field) continue;
    decoded.type = column.field->type;
    decoded.offset = column.field->offset;
    decoded.field_scale = column.field->scale;
    decoded.field_shift = column.field->shift;
  }
  if (part.is_moved) {
    const Transform& transform = part.placed->transform;
    const std::array<int32_t, 3> axis_columns = FindAxisColumns(columns);
    params.placement.is_moved = true;
    std::copy(transform.begin(), transform.end(), params.placement.transform);
    std::copy(axis_columns.begin(), axis_columns.end(), params.placement.axis_columns);
  }
  return params;
}

}  // namespace voxserve
