#include "engine/tensor/point_cloud.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/error_reason.h"
#include "engine/base/quoted.h"
#include "engine/base/row_step.h"
#include "engine/base/status_macros.h"
#include "engine/tensor/float16.h"

namespace voxserve {
namespace {

static_assert(std::endian::native == std::endian::little, "ReadField's loads assume a little-endian machine");

template <typename... Args>
absl::Status BadLayout(const Args&... args) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat(args...)), error_reason::kBadLayout);
}

uint64_t EndOf(const PointField& field) {
  return uint64_t{field.offset} + uint64_t{field.count} * static_cast<uint64_t>(SizeOf(field.type));
}

absl::Status CheckFields(const PointCloudLayout& layout) {
  absl::flat_hash_set<std::string_view> names;
  for (size_t i = 0; i < layout.fields.size(); ++i) {
    const PointField& field = layout.fields[i];
    if (field.name.empty()) return BadLayout("field number ", i, " has no name");
    const std::string name = Quoted(field.name);
    if (!names.insert(field.name).second) return BadLayout("two fields are named ", name);
    if (!std::isfinite(field.scale) || field.scale == 0) {
      return BadLayout("field ", name, " has scale ", field.scale, "; it must be finite and not 0");
    }
    if (!std::isfinite(field.shift)) {
      return BadLayout("field ", name, " has shift ", field.shift, "; it must be finite");
    }
    if (EndOf(field) > layout.point_step) {
      return BadLayout("field ", name, " ends at byte ", EndOf(field), " of a point whose point_step is ",
                       layout.point_step);
    }
  }
  return absl::OkStatus();
}

template <typename Bits>
Bits SwapBytes(Bits bits) {
  if constexpr (sizeof(Bits) == 2) return __builtin_bswap16(bits);
  if constexpr (sizeof(Bits) == 4) return __builtin_bswap32(bits);
  if constexpr (sizeof(Bits) == 8) return __builtin_bswap64(bits);
  return bits;
}

template <typename T>
T NumberOf(T value) {
  return value;
}
float NumberOf(kernels::Float16Bits value) { return Float16ToFloat(value.bits); }

// Finite values beyond float32's range become its largest value, so that they count as out of range, not as invalid.
float ToFloat(double value) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  return static_cast<float>(std::isfinite(value) ? std::clamp(value, -kLargest, kLargest) : value);
}

// The source of a field's values for points [begin, end), and their destination.
struct FieldRange {
  const char* data;  // the field's value for the cloud's first point
  uint64_t point_step;
  uint64_t row_step;
  uint64_t width;  // points per row
  uint64_t begin;
  uint64_t end;
  float* out;
  int64_t out_step;
};

// Calls convert(T) -> float for every point, row after row.
template <typename T, bool kSwap, typename Convert>
void ConvertRange(const FieldRange& range, Convert convert) {
  using Bits = kernels::BitsOf<T>;
  float* out = range.out;
  for (uint64_t point = range.begin; point < range.end;) {
    const uint64_t row = point / range.width;
    const uint64_t row_end = std::min(range.end, (row + 1) * range.width);
    const char* source = range.data + row * range.row_step + (point - row * range.width) * range.point_step;
    for (; point < row_end; ++point, source += range.point_step, out += range.out_step) {
      Bits bits;
      std::memcpy(&bits, source, sizeof(bits));
      if constexpr (kSwap) bits = SwapBytes(bits);
      *out = convert(std::bit_cast<T>(bits));
    }
  }
}

template <typename T, bool kSwap>
void ReadAs(const PointField& field, const FieldRange& range) {
  if (field.scale != 1.0 || field.shift != 0.0) {
    const double scale = field.scale;
    const double shift = field.shift;
    ConvertRange<T, kSwap>(range, [=](T raw) { return ToFloat(static_cast<double>(NumberOf(raw)) * scale + shift); });
  } else if constexpr (std::is_same_v<T, double>) {
    ConvertRange<T, kSwap>(range, [](double raw) { return ToFloat(raw); });
  } else {
    ConvertRange<T, kSwap>(range, [](T raw) { return static_cast<float>(NumberOf(raw)); });
  }
}

}  // namespace

absl::StatusOr<PointCloud> PointCloud::Create(PointCloudLayout layout, HostBuffer bytes) {
  layout.height = std::max(layout.height, 1u);
  for (PointField& field : layout.fields) field.count = std::max(field.count, 1u);
  RETURN_IF_ERROR(CheckFields(layout));
  ASSIGN_OR_RETURN(layout.row_step, RowStepOf({.num_points = layout.num_points,
                                               .height = layout.height,
                                               .point_step = layout.point_step,
                                               .row_step = layout.row_step,
                                               .num_bytes = static_cast<uint64_t>(bytes.size())}));
  PointCloud cloud;
  cloud.layout_ = std::move(layout);
  cloud.bytes_ = std::make_shared<const HostBuffer>(std::move(bytes));
  return cloud;
}

absl::StatusOr<PointCloud> PointCloud::Create(PointCloudLayout layout, std::string_view bytes) {
  ASSIGN_OR_RETURN(HostBuffer buffer, HostBuffer::CopyOf(bytes));
  return Create(std::move(layout), std::move(buffer));
}

absl::StatusOr<PointCloud> PointCloud::FromFloats(const std::vector<std::string>& names, const float* points,
                                                  uint64_t num_points) {
  PointCloudLayout layout;
  layout.num_points = num_points;
  layout.point_step = static_cast<uint32_t>(names.size() * sizeof(float));
  for (const std::string& name : names) {
    const auto offset = static_cast<uint32_t>(layout.fields.size() * sizeof(float));
    layout.fields.push_back({.name = name, .offset = offset});
  }
  return Create(std::move(layout),
                std::string_view(reinterpret_cast<const char*>(points), num_points * names.size() * sizeof(float)));
}

absl::StatusOr<PointCloud> PointCloud::InOrdinaryMemory() const {
  if (!is_pinned()) return *this;
  ASSIGN_OR_RETURN(HostBuffer copy, HostBuffer::CopyOf(bytes()));
  PointCloud cloud;
  cloud.layout_ = layout_;
  cloud.bytes_ = std::make_shared<const HostBuffer>(std::move(copy));
  return cloud;
}

const PointField* PointCloud::FindField(std::string_view name) const {
  const PointField* similar = nullptr;
  int num_similar = 0;
  for (const PointField& field : layout_.fields) {
    if (field.name == name) return &field;
    if (!absl::EqualsIgnoreCase(field.name, absl::string_view(name.data(), name.size()))) continue;
    similar = &field;
    ++num_similar;
  }
  return num_similar == 1 ? similar : nullptr;
}

absl::Status PointCloud::CheckReadFields(std::vector<const PointField*> fields) const {
  std::sort(fields.begin(), fields.end(),
            [](const PointField* a, const PointField* b) { return std::tie(a->offset, a) < std::tie(b->offset, b); });
  fields.erase(std::unique(fields.begin(), fields.end()), fields.end());
  const PointField* before = nullptr;
  for (const PointField* field : fields) {
    if (SizeOf(field->type) == 0) {
      return BadLayout("the model reads field ", Quoted(field->name), ", whose type ", static_cast<int>(field->type),
                       " is none of 1 to 9 (8, 16 and 32-bit integers, and floats); send it as one of these");
    }
    if (before != nullptr && field->offset < EndOf(*before)) {
      return BadLayout("field ", Quoted(field->name), " at offset ", field->offset, " overlaps field ",
                       Quoted(before->name), ", which ends at byte ", EndOf(*before));
    }
    before = field;
  }
  return absl::OkStatus();
}

void PointCloud::ReadField(const PointField& field, uint64_t begin, uint64_t end, float* out, int64_t out_step) const {
  if (begin >= end) return;
  const uint64_t width = layout_.num_points / layout_.height;
  const FieldRange range = {
      .data = bytes_->data() + field.offset,
      .point_step = layout_.point_step,
      .row_step = layout_.row_step,
      .width = width,
      .begin = begin,
      .end = end,
      .out = out,
      .out_step = out_step,
  };
  kernels::VisitPointFieldType(field.type, [&](auto value) {
    using T = decltype(value);
    return layout_.is_bigendian ? ReadAs<T, true>(field, range) : ReadAs<T, false>(field, range);
  });
}

}  // namespace voxserve
