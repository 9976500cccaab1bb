#include "client/cpp/io/compacting.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/row_step.h"

namespace voxserve::client {
namespace {

constexpr double kFinestStep = 1e-3;    // metres
constexpr double kCoarsestStep = 0.02;  // metres
constexpr double kSteps = 65534;        // from -32,767 to 32,767
constexpr double kShareSteps = 65535;

bool IsAxis(absl::string_view name) {
  return absl::EqualsIgnoreCase(name, "x") || absl::EqualsIgnoreCase(name, "y") || absl::EqualsIgnoreCase(name, "z");
}

// A field's 16-bit values, and the scale and shift that they have.
struct Converted {
  std::vector<uint16_t> bits;
  v1::PointFieldType type = v1::POINT_FIELD_TYPE_UNSPECIFIED;
  double scale = 1;
  double shift = 0;
};

// Returns the integers of an axis as they are, without their field's scale and shift; nullopt if their range is larger
// than 16 bits.
std::optional<Converted> ConvertWholeAxis(const PointField& field, const std::vector<double>& raw) {
  const auto [low, high] = std::minmax_element(raw.begin(), raw.end());
  if (!raw.empty() && *high - *low > kSteps) return std::nullopt;
  const double middle = (raw.empty() ? 0 : *low) + kSteps / 2;
  const double scale = field.has_scale() ? field.scale() : 1.0;
  Converted made{.type = v1::POINT_FIELD_TYPE_INT16, .scale = scale, .shift = field.shift() + middle * scale};
  made.bits.reserve(raw.size());
  for (const double value : raw) made.bits.push_back(static_cast<uint16_t>(static_cast<int16_t>(value - middle)));
  return made;
}

// Returns nullopt if the steps would be too coarse.
std::optional<Converted> ConvertAxis(const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const double begin = values.empty() ? 0 : *low;
  const double extent = values.empty() ? 0 : *high - begin;
  const double step = std::max(kFinestStep, std::ceil(extent / kSteps * 1e4) / 1e4);
  if (step > kCoarsestStep) return std::nullopt;
  Converted made{.type = v1::POINT_FIELD_TYPE_INT16, .scale = step, .shift = begin + kSteps / 2 * step};
  made.bits.reserve(values.size());
  for (const double value : values) {
    made.bits.push_back(
        static_cast<uint16_t>(static_cast<int16_t>(std::nearbyint((value - begin) / step) - kSteps / 2)));
  }
  return made;
}

Converted ConvertShare(const std::vector<double>& values) {
  double low = 0, high = 0;
  for (const double value : values) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  const double step = high > low ? (high - low) / kShareSteps : 1 / kShareSteps;
  Converted made{.type = v1::POINT_FIELD_TYPE_UINT16, .scale = step, .shift = low};
  made.bits.reserve(values.size());
  for (const double value : values) made.bits.push_back(static_cast<uint16_t>(std::nearbyint((value - low) / step)));
  return made;
}

double LargestChange(const Converted& made, const std::vector<double>& values) {
  double largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double raw = made.type == v1::POINT_FIELD_TYPE_INT16 ? static_cast<int16_t>(made.bits[i]) : made.bits[i];
    largest = std::max(largest, std::abs(raw * made.scale + made.shift - values[i]));
  }
  return largest;
}

// Writes the cloud anew with the converted fields, by name, in place of its own. The cloud's sizes fit together.
void Pack(const std::map<std::string, Converted>& converted, uint64_t row_step, PointCloud* cloud) {
  const uint64_t num_points = cloud->num_points();
  uint32_t point_step = 0;
  std::vector<std::pair<uint32_t, uint32_t>> from_bytes;  // by field: its offset and size in the cloud as it is
  for (PointField& field : *cloud->mutable_fields()) {
    auto size = static_cast<uint32_t>(SizeOf(field.type()));
    from_bytes.emplace_back(field.offset(), size * std::max(1u, field.count()));
    if (size == 0) continue;
    if (const auto found = converted.find(field.name()); found != converted.end()) {
      field.set_type(found->second.type);
      field.set_count(1);
      field.set_scale(found->second.scale);
      field.set_shift(found->second.shift);
    }
    size = static_cast<uint32_t>(SizeOf(field.type()));
    field.set_offset(point_step);
    point_step += size * std::max(1u, field.count());
  }
  std::string packed(num_points * point_step, '\0');
  const uint64_t row_points = num_points / std::max(1u, cloud->height());
  for (int f = 0; f < cloud->fields_size(); ++f) {
    const PointField& field = cloud->fields(f);
    const auto value_bytes = static_cast<uint32_t>(SizeOf(field.type()));
    if (value_bytes == 0) continue;
    const auto found = converted.find(field.name());
    char* to = packed.data() + field.offset();
    for (uint64_t i = 0; i < num_points; ++i, to += point_step) {
      if (found != converted.end()) {
        std::memcpy(to, &found->second.bits[i], sizeof(uint16_t));
        continue;
      }
      const auto [offset, size] = from_bytes[static_cast<size_t>(f)];
      const char* const point =
          cloud->data().data() + i / row_points * row_step + i % row_points * uint64_t{cloud->point_step()};
      std::memcpy(to, point + offset, size);
      if (!cloud->is_bigendian()) continue;
      for (uint32_t value = 0; value < size; value += value_bytes) std::reverse(to + value, to + value + value_bytes);
    }
  }
  cloud->set_data(std::move(packed));
  cloud->set_point_step(point_step);
  cloud->set_row_step(0);
  cloud->set_is_bigendian(false);
}

// Returns an error if a field that is not converted does not fit a point.
absl::Status CheckFields(const PointCloud& cloud) {
  for (const PointField& field : cloud.fields()) {
    const uint64_t size = uint64_t{std::max(1u, field.count())} * static_cast<uint64_t>(SizeOf(field.type()));
    if (field.offset() + size <= cloud.point_step()) continue;
    return absl::InvalidArgumentError(absl::StrCat("field '", field.name(), "' at offset ", field.offset(),
                                                   " does not fit a point of ", cloud.point_step(), " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CompactLoss> Compact(PointCloud* cloud) {
  CompactLoss loss{.num_bytes_before = cloud->data().size(), .num_bytes = cloud->data().size()};
  if (absl::Status status = CheckFields(*cloud); !status.ok()) return status;
  const absl::StatusOr<uint64_t> row_step = RowStepOf({.num_points = cloud->num_points(),
                                                       .height = cloud->height(),
                                                       .point_step = cloud->point_step(),
                                                       .row_step = cloud->row_step(),
                                                       .num_bytes = cloud->data().size()});
  if (!row_step.ok()) return row_step.status();
  std::map<std::string, Converted> converted;
  for (const char* name : {"x", "y", "z", "intensity", "reflectivity"}) {
    const PointField* const field = FindField(*cloud, name);
    if (field == nullptr && IsAxis(name)) {
      return absl::InvalidArgumentError(absl::StrCat("the cloud has no field '", name, "'"));
    }
    if (field == nullptr || SizeOf(field->type()) <= static_cast<int>(sizeof(uint16_t))) continue;
    const absl::StatusOr<std::vector<double>> values = FieldDoubles(*cloud, name);
    if (!values.ok()) return values.status();
    if (!std::all_of(values->begin(), values->end(), [](double value) { return std::isfinite(value); })) {
      loss.reason = absl::StrCat("a point's ", field->name(), " is not a finite number");
      return loss;
    }
    std::optional<Converted> made;
    if (IsAxis(name) && IsInteger(field->type())) {
      const absl::StatusOr<std::vector<double>> raw = FieldRawValues(*cloud, name);
      if (!raw.ok()) return raw.status();
      made = ConvertWholeAxis(*field, *raw);
    }
    if (!made) made = IsAxis(name) ? ConvertAxis(*values) : ConvertShare(*values);
    if (!made) {
      const auto [low, high] = std::minmax_element(values->begin(), values->end());
      loss.reason = absl::StrFormat("%s spans %.0f m, at most %.0f m fit steps of %g m", field->name(), *high - *low,
                                    kCoarsestStep * kSteps, kCoarsestStep);
      return loss;
    }
    loss.fields.push_back({.name = field->name(), .largest_change = LargestChange(*made, *values)});
    converted.emplace(field->name(), *std::move(made));
  }
  if (converted.empty()) {
    loss.reason = "no value has more than 16 bits";
    loss.is_compact_already = true;
    return loss;
  }
  Pack(converted, *row_step, cloud);
  loss.num_bytes = cloud->data().size();
  return loss;
}

std::string Describe(const CompactLoss& loss, uint64_t num_points) {
  if (!loss.reason.empty()) return absl::StrCat("not compacted: ", loss.reason);
  std::string text = absl::StrCat(num_points, " points, ", loss.num_bytes_before, " -> ", loss.num_bytes, " bytes");
  for (const CompactLoss::OfField& field : loss.fields) {
    absl::StrAppendFormat(&text, ", %s within %.2g%s", field.name, field.largest_change,
                          IsAxis(field.name) ? " m" : "");
  }
  return text;
}

}  // namespace voxserve::client
