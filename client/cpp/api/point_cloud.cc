#include "client/cpp/api/point_cloud.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/row_step.h"

namespace voxserve::client {
namespace {

static_assert(std::endian::native == std::endian::little, "labels, scores and points are little endian on the wire");

float HalfToFloat(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = (half >> 10) & 0x1f;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  const uint32_t bits =
      exponent == 0x1f ? sign | 0x7f800000u | (mantissa << 13) : sign | ((exponent + 112) << 23) | (mantissa << 13);
  return std::bit_cast<float>(bits);
}

template <typename T>
T Load(const char* bytes, bool swap) {
  std::array<char, sizeof(T)> raw;
  std::memcpy(raw.data(), bytes, sizeof(T));
  if (swap) std::reverse(raw.begin(), raw.end());
  return std::bit_cast<T>(raw);
}

double LoadValue(const char* bytes, PointFieldType type, bool swap) {
  return VisitPointFieldType(type, [&](auto value) -> double {
    using T = decltype(value);
    if constexpr (std::is_same_v<T, Float16Bits>) {
      return HalfToFloat(Load<uint16_t>(bytes, swap));
    } else {
      return static_cast<double>(Load<T>(bytes, swap));
    }
  });
}

}  // namespace

PointCloud PointCloudFromFloats(const std::vector<std::string>& names, const float* points, uint64_t num_points) {
  PointCloud cloud;
  const uint32_t point_step = static_cast<uint32_t>(names.size() * sizeof(float));
  for (size_t i = 0; i < names.size(); ++i) {
    PointField& field = *cloud.add_fields();
    field.set_name(names[i]);
    field.set_offset(static_cast<uint32_t>(i * sizeof(float)));
    field.set_type(v1::POINT_FIELD_TYPE_FLOAT32);
  }
  cloud.set_point_step(point_step);
  cloud.set_num_points(num_points);
  if (num_points > 0) cloud.set_data(points, num_points * point_step);
  return cloud;
}

const PointField* FindField(const PointCloud& cloud, absl::string_view name) {
  const PointField* similar = nullptr;
  int num_similar = 0;
  for (const PointField& field : cloud.fields()) {
    if (field.name() == name) return &field;
    if (!absl::EqualsIgnoreCase(field.name(), name)) continue;
    similar = &field;
    ++num_similar;
  }
  return num_similar == 1 ? similar : nullptr;
}

namespace {

template <typename T>
absl::StatusOr<std::vector<T>> ValuesOf(const PointCloud& cloud, absl::string_view name, bool is_raw = false) {
  const PointField* field = FindField(cloud, name);
  if (field == nullptr) return absl::InvalidArgumentError(absl::StrCat("the cloud has no field '", name, "'"));
  const uint64_t size = static_cast<uint64_t>(SizeOf(field->type()));
  if (size == 0) return absl::InvalidArgumentError(absl::StrCat("field '", name, "' has no type"));
  if (field->offset() + size > cloud.point_step()) {
    return absl::InvalidArgumentError(absl::StrCat("field '", name, "' ends at byte ", field->offset() + size,
                                                   " of a point whose point_step is ", cloud.point_step()));
  }
  const absl::StatusOr<uint64_t> row_step = RowStepOf({.num_points = cloud.num_points(),
                                                       .height = cloud.height(),
                                                       .point_step = cloud.point_step(),
                                                       .row_step = cloud.row_step(),
                                                       .num_bytes = cloud.data().size()});
  if (!row_step.ok()) return row_step.status();
  if (cloud.num_points() == 0) return std::vector<T>();
  const uint64_t num_rows = std::max<uint64_t>(1, cloud.height());
  const uint64_t row_points = cloud.num_points() / num_rows;
  const double scale = field->has_scale() && !is_raw ? field->scale() : 1.0;
  const double shift = is_raw ? 0.0 : field->shift();
  std::vector<T> values;
  values.reserve(cloud.num_points());
  for (uint64_t row = 0; row < num_rows; ++row) {
    const char* point = cloud.data().data() + row * *row_step + field->offset();
    for (uint64_t i = 0; i < row_points; ++i, point += cloud.point_step()) {
      const double raw = LoadValue(point, field->type(), cloud.is_bigendian());
      values.push_back(static_cast<T>(raw * scale + shift));
    }
  }
  return values;
}

}  // namespace

absl::StatusOr<std::vector<float>> FieldValues(const PointCloud& cloud, absl::string_view name) {
  return ValuesOf<float>(cloud, name);
}

absl::StatusOr<std::vector<double>> FieldDoubles(const PointCloud& cloud, absl::string_view name) {
  return ValuesOf<double>(cloud, name);
}

absl::StatusOr<std::vector<double>> FieldRawValues(const PointCloud& cloud, absl::string_view name) {
  return ValuesOf<double>(cloud, name, /*is_raw=*/true);
}

}  // namespace voxserve::client
