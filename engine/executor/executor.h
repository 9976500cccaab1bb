#pragma once

// Runs a Program on batches: the geometry pass, then the feature pass; of a network that prunes both again for every
// further segment (program.h), whose geometry follows from scores. A GPU's host waits once for the result, and for each
// geometry pass where it cannot tell how many sites there will be (cuda_executor.h).
//
// One executor belongs to one worker's context and is called from its thread alone; it may run any program that was
// compiled for its device, and keeps the memory of the largest batch seen. Whatever is derived from a cloud is
// overwritten by the next batch. CpuExecutor and CudaExecutor do the work.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/compiler/program.h"
#include "engine/model/model_config.h"
#include "engine/runtime/execution_context.h"
#include "engine/tensor/infer_result.h"
#include "engine/tensor/infer_task.h"
#include "engine/tensor/stage.h"

namespace voxserve {

// The model's limits, from its configuration.
struct RunLimits {
  int ignore_label = 255;
  int64_t max_voxels = 0;                                                           // per sample; 0: no limit
  ModelConfig::VoxelOverflow voxel_overflow = ModelConfig::VoxelOverflow::kReject;  // above max_voxels
  int64_t max_batch_voxels = 0;  // of several samples together; 0: no limit
  int64_t max_grid_bytes = int64_t{512} << 20;
};

// The memory of a GPU that one batch takes; on the CPU, that of the host.
struct BatchBytes {
  int64_t fixed = 0;     // whatever its size
  int64_t points = 0;    // grows with its points: clouds, levels, and maps that are made before the host knows sizes
  int64_t features = 0;  // grows with its voxels: other maps, features, scratch

  int64_t total() const { return fixed + points + features; }
};

struct RunOptions {
  const PlanTable* plans = nullptr;  // of the program; null: its default_plans
  bool times_convs = false;          // BatchOutput::conv_times
  // True: maps of a GPU's batch that do not fit are made on the CPU. Else, and always for a program with several
  // segments, such a batch gets RESOURCE_EXHAUSTED.
  bool may_make_maps_on_cpu = true;
  // True: of a GPU's batches in rooms, what can be is captured once and replayed (captured_batches.h).
  bool captures = false;
  BatchBytes expected;  // that the context makes ready in one piece; zeros: it takes what it needs as it goes
};

struct BatchOutput {
  // The whole batch failed (memory, limits): samples is empty. OUT_OF_RANGE: its samples have more voxels than
  // max_batch_voxels together, and each by itself may run.
  absl::Status status;
  std::vector<InferResult> samples;  // by task; the worker's fields are not set
  std::vector<StageTime> stages;     // of the whole batch
  int64_t grid_fallbacks = 0;
  // Where RunOptions::times_convs asked for them, by convolution; and the pairs of each offset, by rulebook; nothing
  // of those that a GPU did not make as pairs.
  std::vector<absl::Duration> conv_times;
  std::vector<std::vector<int64_t>> rulebook_sizes;
  bool host_is_full = false;     // it failed since the host's memory, and no GPU's, has no room for it
  bool geometry_on_cpu = false;  // of a GPU's batch: its maps did not fit the device and were made on the CPU
  bool ran_again = false;        // of a GPU's batch: its sizes, plan or memory were not as foreseen (SiteForecast)
  bool is_replay = false;        // of a GPU's batch: steps of it were replayed
  int64_t room_voxels = 0;       // that `bytes` made room for, where they are more than the batch had
  BatchBytes bytes;              // that it needed, which may be less than what the context keeps
};

class Executor {
 public:
  // For the context's device; the context outlives the executor.
  static std::unique_ptr<Executor> Create(ExecutionContext* context);
  virtual ~Executor() = default;

  // At most kernels::kMaxSamples samples. A sample's voxels, levels and rulebooks are those of the sample alone. Its
  // features are equal to rounding, since the algorithm of a matrix product may follow the batch's number of rows (that
  // of a convolution of images does not, but for one of a single cell, which is a matrix product); so are scores and
  // boxes, and where rounding decides, at a threshold, so are the sites that a prune leaves and which boxes there are.
  // A program that is_deterministic gives the same bytes.
  virtual BatchOutput Run(const Program& program, BatchTasks tasks, const RunLimits& limits,
                          const RunOptions& options) = 0;
  BatchOutput Run(const Program& program, const InferTask& task, const RunLimits& limits,
                  const RunOptions& options = {}) {
    const InferTask* const tasks[] = {&task};
    return Run(program, tasks, limits, options);
  }

  // Bytes that the executor and its context hold for batches, on the device that it runs on.
  virtual int64_t allocated_bytes() const = 0;
  // Gives host memory back that batches have left: of the context's HostMemory, of which a GPU's leave some where their
  // maps were made on the CPU, and page-locked memory that large answers took. No batch runs.
  virtual void ReleaseHostMemory() {}
};

}  // namespace voxserve
