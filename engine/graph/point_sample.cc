#include "engine/graph/point_sample.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error_reason.h"
#include "engine/graph/node_parameters.h"
#include "kernels/farthest_point_sample.h"

namespace voxserve {
namespace {

// Of a request. One is selected after the other, and the whole batch waits for that.
constexpr uint64_t kMaxSampledPoints = 65536;

template <typename... Args>
absl::Status BadSample(const Args&... what) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat(what...)), error_reason::kBadSample);
}

}  // namespace

absl::Status CheckSample(const VoxelizeOp& op, const SampleInput& input) {
  if (!input.sample) return absl::OkStatus();
  const FarthestPoints& sample = *input.sample;
  const auto num_points = static_cast<uint64_t>(input.num_points());
  if (op.sample) {
    return BadSample("the model takes a sample of its own, of ", op.sample->num_points, " farthest points");
  }
  if (!input.sweeps.empty()) {
    return BadSample("farthest points are sampled of one cloud; these are ", input.sweeps.size(), " sweeps");
  }
  if (!BeginsWithSpatialAxes(op)) {
    return BadSample("farthest points are sampled where a model's axes are x, y and z; this one's are ",
                     absl::StrJoin(op.axes, ", "));
  }
  if (sample.num_points == 0) return BadSample("sample.num_points is 0; it must be 1 or more");
  if (sample.num_points > num_points) {
    return BadSample("sample.num_points is ", sample.num_points, "; the cloud has ", num_points, " points");
  }
  if (sample.num_points > kMaxSampledPoints) {
    return BadSample("sample.num_points is ", sample.num_points, "; at most ", kMaxSampledPoints, " are possible");
  }
  if (!sample.seed && sample.start_index >= num_points) {
    return BadSample("sample.start_index is ", sample.start_index, "; the cloud has ", num_points, " points");
  }
  return absl::OkStatus();
}

void LayOutSampling(const Program& program, absl::Span<const SampleInput> inputs,
                    const std::vector<int64_t>& point_begin, PointSampling& sampling) {
  sampling.Begin(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int64_t num_points = point_begin[i + 1] - point_begin[i];
    const std::optional<FarthestPoints>& sample = program.voxelize.sample ? program.voxelize.sample : inputs[i].sample;
    if (num_points == 0 || !sample) {
      sampling.Set(i, 0, 0, false);
      continue;
    }
    // What a request asks for is within its cloud; a network takes what there is.
    const auto start = sample->seed ? kernels::FarthestPointStart(*sample->seed, num_points)
                                    : std::min(static_cast<int64_t>(sample->start_index), num_points - 1);
    sampling.Set(i, std::min(static_cast<int64_t>(sample->num_points), num_points), start, sample->restricts_network);
  }
}

void TakeSampledPoints(const PointSampling& sampling, const BatchCounts& counted, absl::Span<const SampleInput> inputs,
                       const std::vector<int64_t>& point_begin, BatchOutput& output) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int64_t begin = sampling.selected_begin(i), end = sampling.selected_begin(i + 1);
    SampleOutput& sample = output.samples[i];
    if (begin == end || !sample.status.ok()) continue;
    const int64_t num_valid = counted.num_valid[i];
    const bool is_selection = end - begin <= num_valid;
    if (!is_selection && inputs[i].sample) {
      sample.status = BadSample("sample.num_points is ", end - begin, "; the cloud has ", num_valid,
                                " valid points of ", point_begin[i + 1] - point_begin[i]);
      continue;
    }
    if (inputs[i].sample) {
      sample.sampled_points.assign(counted.selected_points.begin() + begin, counted.selected_points.begin() + end);
      if (!inputs[i].sample->restricts_network) continue;
    }
    if (!is_selection) continue;  // the network saw all
    // Voxelize counts all that it was not to see as invalid.
    const int64_t num_invalid = point_begin[i + 1] - point_begin[i] - num_valid;
    sample.counts.unsampled = sample.counts.invalid - num_invalid;
    sample.counts.invalid = num_invalid;
  }
}

}  // namespace voxserve
