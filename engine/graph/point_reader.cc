#include "engine/graph/point_reader.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error_reason.h"

namespace voxserve {
namespace {

constexpr int64_t kBlockPoints = 8192;

struct Column {
  const PointField* field = nullptr;  // null: the feature's default
  float default_value = 0;
  float scale = 1;
  float shift = 0;
};

std::vector<Column> FindColumns(const VoxelizeOp& op, const PointCloud& cloud) {
  std::vector<Column> columns;
  for (const std::string& axis : op.axes) columns.push_back({.field = cloud.FindField(axis)});
  for (const InputFeature& feature : op.features) {
    columns.push_back({.field = cloud.FindField(feature.name),
                       .default_value = feature.default_value.value_or(0.0f),
                       .scale = feature.scale,
                       .shift = feature.shift});
  }
  return columns;
}

void ReadColumn(const Column& column, const PointCloud& cloud, int64_t begin, int64_t end, float* out, int64_t step) {
  if (column.field != nullptr) {
    cloud.ReadField(*column.field, static_cast<uint64_t>(begin), static_cast<uint64_t>(end), out, step);
  } else {
    for (int64_t i = 0; i < end - begin; ++i) out[i * step] = column.default_value;
  }
  if (column.scale == 1.0f && column.shift == 0.0f) return;
  for (int64_t i = 0; i < end - begin; ++i) out[i * step] = out[i * step] * column.scale + column.shift;
}

}  // namespace

absl::Status CheckFields(const VoxelizeOp& op, const PointCloud& cloud) {
  std::vector<std::string> missing;
  for (const std::string& axis : op.axes) {
    if (cloud.FindField(axis) == nullptr) missing.push_back(axis);
  }
  for (const InputFeature& feature : op.features) {
    if (cloud.FindField(feature.name) != nullptr || feature.default_value.has_value()) continue;
    if (std::find(missing.begin(), missing.end(), feature.name) == missing.end()) missing.push_back(feature.name);
  }
  if (missing.empty() || (cloud.num_points() == 0 && cloud.layout().fields.empty())) return absl::OkStatus();
  std::vector<std::string> present;
  for (const PointField& field : cloud.layout().fields) present.push_back(field.name);
  return WithReason(absl::InvalidArgumentError(absl::StrCat(
                        "the cloud lacks ", missing.size() == 1 ? "field" : "fields", " ", absl::StrJoin(missing, ", "),
                        ", which the model reads; it has ", present.empty() ? "none" : absl::StrJoin(present, ", "))),
                    error_reason::kMissingField);
}

void ReadPoints(const VoxelizeOp& op, const PointCloud& cloud, float* points, uint8_t* is_valid,
                kernels::ThreadPool& pool) {
  const std::vector<Column> columns = FindColumns(op, cloud);
  const auto num_columns = static_cast<int64_t>(columns.size());
  pool.ParallelFor(static_cast<int64_t>(cloud.num_points()), kBlockPoints, [&](int64_t begin, int64_t end) {
    for (int64_t c = 0; c < num_columns; ++c) {
      ReadColumn(columns[static_cast<size_t>(c)], cloud, begin, end, points + begin * num_columns + c, num_columns);
    }
    for (int64_t i = begin; i < end; ++i) {
      // x * 0 is 0 for every number, and NaN for NaN and the infinities.
      float sum = 0;
      for (int64_t c = 0; c < num_columns; ++c) sum += points[i * num_columns + c] * 0.0f;
      is_valid[i] = sum == 0.0f ? 1 : 0;
    }
  });
}

kernels::DecodePointsParams DecodeParams(const VoxelizeOp& op, const PointCloud& cloud) {
  const PointCloudLayout& layout = cloud.layout();
  const uint64_t width = layout.num_points / layout.height;
  kernels::DecodePointsParams params{.num_points = static_cast<int64_t>(layout.num_points),
                                     .width = width,
                                     .point_step = layout.point_step,
                                     .row_step = layout.row_step == 0 ? width * layout.point_step : layout.row_step,
                                     .is_bigendian = layout.is_bigendian};
  for (const Column& column : FindColumns(op, cloud)) {
    kernels::PointColumn& decoded = params.columns[params.num_columns++];
    decoded.default_value = column.default_value;
    decoded.scale = column.scale;
    decoded.shift = column.shift;
    decoded.has_field = column.field != nullptr;
    if (!decoded.has_field) continue;
    decoded.type = static_cast<kernels::PointValueType>(column.field->type);
    decoded.offset = column.field->offset;
    decoded.field_scale = column.field->scale;
    decoded.field_shift = column.field->shift;
  }
  return params;
}

}  // namespace voxserve
