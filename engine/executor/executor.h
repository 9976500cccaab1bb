#pragma once

// Executor runs a Program on batches. The geometry pass makes voxels, coordinate levels and rulebooks; then the feature
// pass runs the steps. A network that prunes is cut into segments (program.h). Both passes run for each segment,
// because a segment's coordinates depend on the scores of the segment before.
//
// - On a GPU the host waits once for the result, and once for each geometry pass whose sizes it cannot forecast
//   (cuda_batch.h).
// - Threads: an executor belongs to one execution context. It is not thread-safe: calls must not overlap. On a GPU, the
//   thread that calls Run has made the context's device current.
// - An executor may run any program that was compiled for its device.
// - An executor keeps the memory of the largest batch so far. The next batch overwrites everything derived from a
//   cloud.
// - CpuExecutor and CudaExecutor are the implementations.

#include <cstdint>
#include <functional>
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
#include "kernels/core/rows.h"

namespace voxserve {

// The model's limits, from its configuration.
struct RunLimits {
  int ignore_label = 255;
  int64_t max_voxels = 0;                                                           // per sample; 0: no limit
  ModelConfig::VoxelOverflow voxel_overflow = ModelConfig::VoxelOverflow::kReject;  // what happens above max_voxels
  int64_t max_batch_voxels = 0;                 // for several samples together; 0: no limit
  int64_t max_grid_bytes = int64_t{512} << 20;  // on the CPU: a larger grid of coordinates becomes a hash table
};

// The bytes that one batch takes: of the GPU's memory, or of the host's if it runs on the CPU.
struct BatchBytes {
  int64_t fixed = 0;     // the same for every batch
  int64_t points = 0;    // grows with its points: clouds, levels, and rulebooks made before the host knows sizes
  int64_t features = 0;  // grows with its voxels: other rulebooks, features, scratch

  int64_t total() const { return fixed + points + features; }
};

struct RunOptions {
  const PlanTable* plans = nullptr;  // made for the program; null: Program::default_plans
  bool times_convs = false;          // fills BatchReport::conv_times
  // Says what happens if the batch's levels and rulebooks (its maps) do not fit the GPU. True: they are made on the
  // CPU. False, or for a program with several segments: the batch fails with RESOURCE_EXHAUSTED.
  bool may_make_maps_on_cpu = true;
  // True: a GPU's batches that have capacities (batch_capacities.h) are captured as CUDA graphs once and then replayed
  // (captured_batches.h).
  bool captures = false;
  // CPU only; may be empty. Is called with each value of the program that the batch needs (Program::values), directly
  // after the step that completes it, on the thread that calls Run. node: the value's index in Graph::nodes. rows: all
  // rows of the batch, in memory that the next step may overwrite. An error ends the batch, which fails with it.
  std::function<absl::Status(int node, const kernels::ConstRows& rows)> on_value;
  BatchBytes expected;  // memory that the context allocates in advance, each part in one block; 0: as needed
};

struct BatchReport {
  // An error means that the whole batch failed (memory, limits, device) and `samples` is empty. OUT_OF_RANGE: the
  // samples together have more voxels than max_batch_voxels, but each may run alone.
  absl::Status status;
  std::vector<InferResult> samples;  // one per task; the fields that the worker sets are not set
  std::vector<StageTime> stages;     // of the whole batch
  int64_t grid_fallbacks = 0;        // CPU only: rulebooks that used a hash table because of max_grid_bytes
  // Filled if RunOptions::times_convs is set: a time for each convolution, and the pairs per offset of each rulebook
  // (empty for a rulebook that a GPU did not make as pairs).
  std::vector<absl::Duration> conv_times;
  std::vector<std::vector<int64_t>> rulebook_sizes;
  bool host_is_full = false;     // the batch failed because it does not fit the host's memory, not a GPU's
  bool geometry_on_cpu = false;  // GPU only: the maps did not fit the device and were made on the CPU
  bool ran_again = false;        // GPU only: a wrong forecast (SiteForecast) made the batch run twice
  bool is_replay = false;        // GPU only: a captured batch was replayed
  int64_t voxel_capacity = 0;    // GPU only: the voxels that `bytes` has room for; 0: as many as the batch has
  BatchBytes bytes;              // needed by the batch; the context may keep more
};

class Executor {
 public:
  // Creates the executor for the context's device. The context outlives the executor.
  static std::unique_ptr<Executor> Create(ExecutionContext* context);
  virtual ~Executor() = default;

  // Runs one batch of at most kernels::kMaxSamples samples.
  // - A sample's voxels, levels and rulebooks are those of the sample alone.
  // - Its features, scores and boxes equal those of the sample alone to rounding, since the algorithm of a matrix
  //   product may depend on the batch's number of rows. (The algorithm of an image convolution does not, unless its
  //   kernel has a single cell: then it is a matrix product.)
  // - Where rounding crosses a threshold, the sites that a prune keeps and the list of boxes may differ.
  // - A program that is_deterministic gives the same bytes in any batch.
  virtual BatchReport Run(const Program& program, BatchTasks tasks, const RunLimits& limits,
                          const RunOptions& options) = 0;
  BatchReport Run(const Program& program, const InferTask& task, const RunLimits& limits,
                  const RunOptions& options = {}) {
    const InferTask* const tasks[] = {&task};
    return Run(program, tasks, limits, options);
  }

  // Returns the bytes that the executor and its context hold for batches on the device.
  virtual int64_t allocated_bytes() const = 0;
  // Frees host memory that batches have left in the context: the blocks of its HostMemory (on a GPU, from maps that
  // were made on the CPU) and the page-locked memory of large answers. Any thread may call it while no batch runs.
  virtual void ReleaseHostMemory() {}
};

}  // namespace voxserve
