#pragma once

// These functions serve both executors: they check a batch's samples, and take results from its geometry.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/executor/executor.h"
#include "engine/geometry/batch_counts.h"
#include "engine/tensor/infer_task.h"

namespace voxserve {

// Sets each sample's status to the result of CheckInput, and fills point_begin [samples + 1]: a sample that failed gets
// no points. Returns INVALID_ARGUMENT for more than kernels::kMaxSamples samples.
absl::Status LayOutPoints(const Program& program, BatchTasks tasks, BatchReport& output,
                          std::vector<int64_t>& point_begin);

// Returns the error of a batch that does not fit the host's memory: RESOURCE_EXHAUSTED (OUT_OF_MEMORY). why:
// HostMemory::refusal(); OK if the reason is not known.
absl::Status OutOfHostMemory(const absl::Status& why);

// Writes the counts of voxels and points into each sample. The status of a sample with more than limits.max_voxels
// voxels becomes INVALID_ARGUMENT (TOO_MANY_VOXELS), if limits.voxel_overflow is kReject.
void TakeVoxelCounts(const BatchCounts& counts, const std::vector<int64_t>& point_begin, const RunLimits& limits,
                     BatchReport& output);
// Refuses the samples that lack sites because a coordinate key cannot hold the sites' coordinates: their status becomes
// INVALID_ARGUMENT (COORDINATE_LIMITS).
void RefuseBeyondLimits(const BatchCounts& counts, int32_t dimension, BatchReport& output);

// Returns OUT_OF_RANGE if several samples together have more voxels than limits.max_batch_voxels.
absl::Status CheckBatchVoxels(int64_t num_voxels, size_t num_samples, const RunLimits& limits);

// Returns the plans that the batch runs by.
inline const PlanTable& PlansOf(const Program& program, const RunOptions& options) {
  return options.plans == nullptr ? program.default_plans : *options.plans;
}

// Returns the number of pairs of each kernel offset. offset_begin: [num_offsets + 1].
std::vector<int64_t> SizesOf(const int64_t* offset_begin, int32_t num_offsets);

// Returns true if at least one sample has not failed.
bool HasGoodSample(const BatchReport& output);

// Returns the tensors that the task's answer holds.
TensorSet WantedTensors(const Program& program, const InferTask& task);
std::vector<TensorSet> TensorsByTask(const Program& program, BatchTasks tasks);

// The outputs that at least one task of a batch asks for.
struct WantedOutputs {
  bool scores = false;
  TensorSet tensors = 0;

  // Returns true if the batch needs the step or value. part: a Step or a ProgramValue.
  template <typename Part>
  bool Need(const Part& part) const {
    return part.is_for_all || (scores && part.is_for_scores) || (tensors & part.for_tensors) != 0;
  }
};
WantedOutputs WantedBy(const Program& program, BatchTasks tasks);

}  // namespace voxserve
