#include "engine/executor/batch_checks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/executor/point_reader.h"
#include "kernels/coordinates/coordinate_key.h"

namespace voxserve {
namespace {

absl::Status TooManyVoxels(int64_t voxels, int64_t limit) {
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat("the cloud occupies ", voxels, " voxels; the model's limit is ", limit)),
      error_reason::kTooManyVoxels);
}

absl::Status BeyondLimits(int64_t sites, int32_t dimension) {
  const kernels::CoordinateKey limits(dimension);
  return WithReason(absl::InvalidArgumentError(absl::StrCat(
                        "a convolution asks ", sites, " times for sites outside ", limits.min_coordinate(), " to ",
                        limits.max_coordinate(), ", the limits of a coordinate in ", dimension, " dimensions")),
                    error_reason::kCoordinateLimits);
}

}  // namespace

absl::Status LayOutPoints(const Program& program, BatchTasks tasks, BatchReport& output,
                          std::vector<int64_t>& point_begin) {
  if (tasks.size() > static_cast<size_t>(kernels::kMaxSamples)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a batch of ", tasks.size(), " samples; the limit is ", kernels::kMaxSamples));
  }
  point_begin.assign(1, 0);
  for (size_t i = 0; i < tasks.size(); ++i) {
    output.samples[i].status = CheckInput(program.voxelize, *tasks[i]);
    point_begin.push_back(point_begin.back() + (output.samples[i].status.ok() ? tasks[i]->num_points() : 0));
  }
  return absl::OkStatus();
}

absl::Status OutOfHostMemory(const absl::Status& why) {
  return OutOfMemoryError(
      absl::StrCat("the batch does not fit into the host's memory", why.ok() ? "" : ": ", why.message()));
}

void TakeVoxelCounts(const BatchCounts& counted, const std::vector<int64_t>& point_begin, const RunLimits& limits,
                     BatchReport& output) {
  for (size_t i = 0; i < output.samples.size(); ++i) {
    InferResult& sample = output.samples[i];
    if (!sample.status.ok()) continue;
    PointCounts& counts = sample.counts;
    counts.voxels = counted.sample_begin[i + 1] - counted.sample_begin[i];
    counts.invalid = counted.num_invalid[i];
    counts.out_of_range = counted.num_out_of_range[i];
    counts.dropped = counted.num_dropped_points[i];
    counts.used = point_begin[i + 1] - point_begin[i] - counts.invalid - counts.out_of_range - counts.dropped;
    if (counted.num_dropped_voxels[i] > 0 && limits.voxel_overflow == ModelConfig::VoxelOverflow::kReject) {
      sample.status = TooManyVoxels(counts.voxels + counted.num_dropped_voxels[i], limits.max_voxels);
    }
  }
}

void RefuseBeyondLimits(const BatchCounts& counted, int32_t dimension, BatchReport& output) {
  for (size_t i = 0; i < output.samples.size(); ++i) {
    InferResult& sample = output.samples[i];
    const int64_t beyond = counted.num_beyond_limits[i];
    if (sample.status.ok() && beyond > 0) sample.status = BeyondLimits(beyond, dimension);
  }
}

absl::Status CheckBatchVoxels(int64_t num_voxels, size_t num_samples, const RunLimits& limits) {
  if (num_samples == 1 || limits.max_batch_voxels == 0 || num_voxels <= limits.max_batch_voxels) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat("the batch occupies ", num_voxels,
                                            " voxels; max_batch_voxels of the model is ", limits.max_batch_voxels));
}

std::vector<int64_t> SizesOf(const int64_t* offset_begin, int32_t num_offsets) {
  std::vector<int64_t> sizes;
  for (int32_t k = 0; k < num_offsets; ++k) sizes.push_back(offset_begin[k + 1] - offset_begin[k]);
  return sizes;
}

bool HasGoodSample(const BatchReport& output) {
  return std::any_of(output.samples.begin(), output.samples.end(), [](const InferResult& s) { return s.status.ok(); });
}

TensorSet WantedTensors(const Program& program, const InferTask& task) {
  const bool has_others = program.has_labels || program.has_boxes;
  return task.tensor_set.value_or(has_others ? 0 : AllTensors(program.tensors.size()));
}

std::vector<TensorSet> TensorsByTask(const Program& program, BatchTasks tasks) {
  std::vector<TensorSet> wanted;
  for (const InferTask* task : tasks) wanted.push_back(WantedTensors(program, *task));
  return wanted;
}

WantedOutputs WantedBy(const Program& program, BatchTasks tasks) {
  WantedOutputs wanted;
  for (const InferTask* task : tasks) {
    wanted.scores |= task->return_scores;
    wanted.tensors |= WantedTensors(program, *task);
  }
  return wanted;
}

}  // namespace voxserve
