#pragma once

// FeaturePass is a batch's feature pass on a GPU: it runs the steps of each segment, when the segment's levels and
// rulebooks have been made. It lays out the steps' memory, queues the steps, and holds what they share: the StepContext
// and the outputs.
//
// An executor makes one for each batch. Not thread-safe. The errors are those of Step::Run.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/compiler/program.h"
#include "engine/executor/batch_checks.h"
#include "engine/geometry/device_geometry.h"
#include "engine/geometry/grouping_cache.h"
#include "engine/ops/cuda_output_collector.h"
#include "engine/ops/step.h"
#include "engine/runtime/execution_context.h"
#include "engine/runtime/stream.h"
#include "engine/tensor/infer_task.h"
#include "engine/tensor/stage.h"

namespace voxserve {

// Returns the index in CudaContext::stage_ends of a stage's end, for the stages from kCopyIn to kHead. Index 0 is the
// start of kCopyIn.
constexpr size_t StageEnd(Stage stage) { return static_cast<size_t>(stage) - static_cast<size_t>(Stage::kCopyIn) + 1; }
static_assert(CudaContext::kNumStages == StageEnd(Stage::kHead));

class FeaturePass {
 public:
  // All pointers outlive the pass.
  struct Options {
    const Program* program = nullptr;
    BatchTasks tasks;
    absl::Span<InferResult> results;                    // [samples]
    const std::vector<ConvPlan>* plans = nullptr;       // by convolution
    ExecutionContext* execution = nullptr;              // of a GPU
    DeviceGeometry* geometry = nullptr;                 // the batch's
    kernels::ConstRows points;                          // StepContext::points
    const std::vector<int64_t>* point_begin = nullptr;  // [samples + 1]
    const int64_t* device_point_begin = nullptr;        // the same on the device
    int ignore_label = 255;
    std::vector<Event>* step_ends = nullptr;  // null: steps are not timed; event i ends step i - 1 and begins step i
  };

  explicit FeaturePass(const Options& options);
  FeaturePass(const FeaturePass&) = delete;  // its parts know each other by address
  FeaturePass& operator=(const FeaturePass&) = delete;

  // Prepares the outputs, before anything else. Returns RESOURCE_EXHAUSTED if there is no page-locked memory.
  absl::Status Begin();
  // Takes memory for the segment's buffers, scratch and outputs, and queues its needed steps. Before the first step of
  // the head (labels, boxes, outputs) it records the end of Stage::kFeatures. Returns RESOURCE_EXHAUSTED if memory does
  // not suffice.
  absl::Status Run(const ProgramSegment& segment);

  // Makes Run launch for a captured batch that has memory for point_capacity points (StepContext::captured_points).
  void SetPointCapacity(int64_t point_capacity) { context_.captured_points = point_capacity; }
  // Returns for each of the program's steps whether the batch needs it.
  std::vector<bool> NeededSteps() const;

  // Returns true if the batch's outputs need the step.
  bool IsNeeded(size_t step) const { return wanted_.Need(*options_.program->steps[step]); }
  const StepContext& context() const { return context_; }
  CudaOutputCollector& outputs() { return outputs_; }

 private:
  absl::Status LayOut(const ProgramSegment& segment);
  absl::Status RecordStep(size_t index);

  const Options options_;
  const WantedOutputs wanted_;
  GroupingCache groupings_;
  std::vector<char*> buffer_data_;
  CudaOutputCollector outputs_;
  StepContext context_;
};

}  // namespace voxserve
