#include "engine/executor/point_sample.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error_reason.h"

namespace voxserve {
namespace {

// The most points that a request may sample. They are selected one after another, and the whole batch waits meanwhile.
constexpr uint64_t kMaxSampledPoints = 65536;

template <typename... Args>
absl::Status BadSample(const Args&... what) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat(what...)), error_reason::kBadSample);
}

}  // namespace

absl::Status CheckSample(const VoxelizeOp& op, const InferTask& task) {
  if (!task.sample) return absl::OkStatus();
  const FarthestPoints& sample = *task.sample;
  if (op.sample) {
    return BadSample("the model takes a sample of its own, of ", op.sample->num_points, " farthest points");
  }
  if (!task.sweeps.empty()) {
    return BadSample("farthest points are sampled of one cloud; these are ", task.sweeps.size(), " sweeps");
  }
  if (!BeginsWithSpatialAxes(op)) {
    return BadSample("farthest points are sampled where a model's axes are x, y and z; this one's are ",
                     absl::StrJoin(op.axes, ", "));
  }
  if (sample.num_points == 0) return BadSample("sample.num_points is 0; it must be 1 or more");
  const int64_t num_points = task.num_points();
  if (sample.num_points > static_cast<uint64_t>(num_points)) {
    return BadSample("sample.num_points is ", sample.num_points, "; the cloud has ", num_points, " points");
  }
  if (!sample.seed && sample.start_index >= static_cast<uint64_t>(num_points)) {
    return BadSample("sample.start_index is ", sample.start_index, "; the cloud has ", num_points, " points");
  }
  if (sample.num_points > kMaxSampledPoints) {
    return BadSample("sample.num_points is ", sample.num_points, "; at most ", kMaxSampledPoints, " are possible");
  }
  return absl::OkStatus();
}

void LayOutSampling(const Program& program, BatchTasks tasks, const std::vector<int64_t>& point_begin,
                    PointSampling& sampling) {
  sampling.Begin(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    sampling.Set(i, program.voxelize.sample ? program.voxelize.sample : tasks[i]->sample,
                 point_begin[i + 1] - point_begin[i]);
  }
}

void TakeSampledPoints(const PointSampling& sampling, const BatchCounts& counted, BatchTasks tasks,
                       const std::vector<int64_t>& point_begin, BatchReport& output) {
  for (size_t i = 0; i < tasks.size(); ++i) {
    const int64_t begin = sampling.selected_begin(i), end = sampling.selected_begin(i + 1);
    InferResult& sample = output.samples[i];
    if (begin == end || !sample.status.ok()) continue;
    const int64_t num_points = point_begin[i + 1] - point_begin[i], num_valid = counted.num_valid[i];
    if (tasks[i]->sample) {
      const uint64_t num_selected = tasks[i]->sample->num_points;
      if (num_selected > static_cast<uint64_t>(num_valid)) {
        sample.status = BadSample("sample.num_points is ", num_selected, "; the cloud has ", num_valid,
                                  " valid points of ", num_points);
        continue;
      }
      sample.sampled_points.assign(counted.selected_points.begin() + begin, counted.selected_points.begin() + end);
      if (!tasks[i]->sample->restricts_network) continue;
    }
    if (end - begin > num_valid) continue;  // the network saw all valid points
    // Voxelize counts the points outside the sample as invalid too; here they are counted apart.
    const int64_t num_invalid = num_points - num_valid;
    sample.counts.unsampled = sample.counts.invalid - num_invalid;
    sample.counts.invalid = num_invalid;
  }
}

}  // namespace voxserve
