#include "engine/ops/points/farthest_point_sample.h"

#include <limits>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "engine/geometry/batch_geometry.h"
#include "kernels/coordinates/coordinate_key.h"

namespace voxserve {
namespace {

constexpr int32_t kColumns = 3;

template <typename... Args>
absl::Status BadLayout(const Args&... what) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat(what...)), error_reason::kBadLayout);
}

absl::Status CheckNumSamples(int64_t num_samples) {
  if (num_samples <= kernels::kMaxSamples) return absl::OkStatus();
  return BadLayout("a batch of ", num_samples, " clouds; the limit is ", kernels::kMaxSamples);
}

absl::Status CheckOffsets(absl::Span<const int64_t> point_begin, size_t num_values) {
  if (point_begin.empty()) return BadLayout("no offsets; B clouds have B + 1");
  RETURN_IF_ERROR(CheckNumSamples(static_cast<int64_t>(point_begin.size()) - 1));
  if (point_begin.front() != 0) return BadLayout("the first offset is ", point_begin.front(), "; it must be 0");
  for (size_t i = 1; i < point_begin.size(); ++i) {
    if (point_begin[i] >= point_begin[i - 1]) continue;
    return BadLayout("offset ", i, " is ", point_begin[i], ", below the one before, ", point_begin[i - 1]);
  }
  if (num_values % kColumns != 0 || point_begin.back() != static_cast<int64_t>(num_values / kColumns)) {
    return BadLayout("the last offset is ", point_begin.back(), "; ", num_values, " values are given, ", kColumns,
                     " a point");
  }
  if (point_begin.back() <= std::numeric_limits<int32_t>::max()) return absl::OkStatus();
  return WithReason(
      absl::ResourceExhaustedError(absl::StrCat("a batch of ", point_begin.back(), " points; the limit is ",
                                                std::numeric_limits<int32_t>::max())),
      error_reason::kTooManyPoints);
}

absl::StatusOr<BatchCounts> Select(absl::Span<const float> points, absl::Span<const int64_t> point_begin,
                                   const PointSampling& sampling, ExecutionContext& context) {
  if constexpr (kernels::kHasCuda) {
    if (context.cuda != nullptr) return internal::SelectOnCuda(points, point_begin, sampling, *context.cuda);
  }
  kernels::VoxelizeParams params{
      .num_points = point_begin.back(),
      .num_samples = static_cast<int32_t>(point_begin.size()) - 1,
      .point_begin = point_begin.data(),
      .axes = kernels::ConstRows::Packed(points.data(), kernels::DType::kFloat32, point_begin.back(), kColumns)};
  BatchGeometry geometry(context.pool, context.memory.get());
  geometry.SamplePoints(sampling, &params);
  return BatchCounts(std::move(geometry));
}

absl::StatusOr<std::vector<int32_t>> SampleChecked(absl::Span<const float> points,
                                                   absl::Span<const int64_t> point_begin,
                                                   absl::Span<const FarthestPoints> asked, ExecutionContext& context) {
  const size_t num_samples = point_begin.size() - 1;
  const auto asked_of = [&](size_t sample) -> const FarthestPoints& { return asked[asked.size() == 1 ? 0 : sample]; };
  const auto name_of = [](size_t sample) { return absl::StrCat("samples[", sample, "]"); };
  const auto num_points = [&](size_t sample) { return point_begin[sample + 1] - point_begin[sample]; };
  PointSampling sampling;
  sampling.Begin(num_samples);
  for (size_t i = 0; i < num_samples; ++i) {
    RETURN_IF_ERROR(CheckFarthestPoints(name_of(i), asked_of(i), num_points(i)));
    FarthestPoints selected = asked_of(i);
    selected.restricts_network = false;  // no network runs here
    sampling.Set(i, selected, num_points(i));
  }
  if (sampling.is_empty()) return std::vector<int32_t>();
  ASSIGN_OR_RETURN(BatchCounts selected, Select(points, point_begin, sampling, context));
  for (size_t i = 0; i < num_samples; ++i) {
    RETURN_IF_ERROR(CheckNumValid(name_of(i), asked_of(i), selected.num_valid[i], num_points(i)));
  }
  return std::move(selected.selected_points);
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> FarthestPointSample(absl::Span<const float> points, int64_t num_samples,
                                                         int64_t num_points, const FarthestPoints& asked,
                                                         ExecutionContext& context) {
  RETURN_IF_ERROR(CheckNumSamples(num_samples));
  int64_t num_values = 0;
  if (num_samples < 0 || num_points < 0 || __builtin_mul_overflow(num_samples * kColumns, num_points, &num_values) ||
      num_values != static_cast<int64_t>(points.size())) {
    return BadLayout(num_samples, " clouds of ", num_points, " points of ", kColumns, " values; ", points.size(),
                     " values are given");
  }
  std::vector<int64_t> point_begin;
  for (int64_t i = 0; i <= num_samples; ++i) point_begin.push_back(i * num_points);
  return RaggedFarthestPointSample(points, point_begin, {&asked, 1}, context);
}

absl::StatusOr<std::vector<int32_t>> RaggedFarthestPointSample(absl::Span<const float> points,
                                                               absl::Span<const int64_t> point_begin,
                                                               absl::Span<const FarthestPoints> asked,
                                                               ExecutionContext& context) {
  RETURN_IF_ERROR(CheckOffsets(point_begin, points.size()));
  if (asked.size() != 1 && asked.size() != point_begin.size() - 1) {
    return BadLayout(point_begin.size() - 1, " clouds, and what is asked of ", asked.size(),
                     "; it must be one for each, or one for all");
  }
  try {
    return SampleChecked(points, point_begin, asked, context);
  } catch (const std::bad_alloc&) {
    return OutOfMemoryError("the clouds do not fit into the host's memory");
  }
}

}  // namespace voxserve
