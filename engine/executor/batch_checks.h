#pragma once

// The checks of a batch's samples, and what both executors take from it, whatever the device.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/executor/executor.h"
#include "engine/geometry/batch_counts.h"
#include "engine/tensor/infer_task.h"

namespace voxserve {

// Sets each sample's status by what it brings (CheckInput), and point_begin [samples + 1]: a sample that failed has no
// points. INVALID_ARGUMENT for more samples than a key can number.
absl::Status LayOutPoints(const Program& program, BatchTasks tasks, BatchOutput& output,
                          std::vector<int64_t>& point_begin);

// RESOURCE_EXHAUSTED (OUT_OF_MEMORY). why: the budget's refusal (HostMemory::refusal); OK where the system refused.
absl::Status OutOfHostMemory(const absl::Status& why);

// Tells each sample what became of its points. INVALID_ARGUMENT (TOO_MANY_VOXELS) for one above the limit that may not
// be cut.
void TakeVoxelCounts(const BatchCounts& counts, const std::vector<int64_t>& point_begin, const RunLimits& limits,
                     BatchOutput& output);
// Refuses samples whose levels are not whole: INVALID_ARGUMENT (COORDINATE_LIMITS).
void RefuseBeyondLimits(const BatchCounts& counts, int32_t dimension, BatchOutput& output);

// OUT_OF_RANGE for several samples that have more voxels together than a batch may have.
absl::Status CheckBatchVoxels(int64_t num_voxels, size_t num_samples, const RunLimits& limits);

// The plans by which the batch runs.
inline const PlanTable& PlansOf(const Program& program, const RunOptions& options) {
  return options.plans == nullptr ? program.default_plans : *options.plans;
}

// The pairs of each offset. offset_begin: [num_offsets + 1].
std::vector<int64_t> SizesOf(const int64_t* offset_begin, int32_t num_offsets);

bool HasGoodSample(const BatchOutput& output);

// The tensors that a task is answered with.
TensorSet WantedTensors(const Program& program, const InferTask& task);
std::vector<TensorSet> TensorsByTask(const Program& program, BatchTasks tasks);

// The outputs that some task of a batch asks for.
struct WantedOutputs {
  bool scores = false;
  TensorSet tensors = 0;

  // True for a step that the batch needs.
  bool Need(const Step& step) const {
    return step.is_for_all || (scores && step.is_for_scores) || (tensors & step.for_tensors) != 0;
  }
};
WantedOutputs WantedBy(const Program& program, BatchTasks tasks);

}  // namespace voxserve
