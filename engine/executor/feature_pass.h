#pragma once

// FeaturePass runs the steps of a segment on a GPU, when the segment's levels and rulebooks have been made. It lays out
// the steps' memory and queues the steps. The caller can queue them range by range, and capture or replay a range
// (captured_batches.h).
//
// An executor makes one for each batch. Not thread-safe. The errors are those of Step::Run.

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "engine/compiler/program.h"
#include "engine/executor/batch_checks.h"
#include "engine/executor/captured_batches.h"
#include "engine/ops/step.h"
#include "engine/runtime/execution_context.h"
#include "engine/runtime/stream.h"
#include "engine/tensor/stage.h"

namespace voxserve {

// Returns the index in CudaContext::stage_ends of a stage's end, for the stages from kCopyIn to kHead. Index 0 is the
// start of kCopyIn.
constexpr size_t StageEnd(Stage stage) { return static_cast<size_t>(stage) - static_cast<size_t>(Stage::kCopyIn) + 1; }
static_assert(CudaContext::kNumStages == StageEnd(Stage::kHead));

class FeaturePass {
 public:
  struct Options {
    const Program* program = nullptr;           // all pointers outlive the pass
    WantedOutputs wanted;                       // steps that no task needs are skipped
    StepContext* context = nullptr;             // of the batch, on a GPU; the pass sets its scratch
    std::vector<char*>* buffer_data = nullptr;  // StepContext::buffer_data, to be set
    DeviceGeometry* geometry = nullptr;         // the batch's
    std::vector<Event>* step_ends = nullptr;    // null: steps are not timed; event i ends step i - 1 and begins step i
  };

  explicit FeaturePass(const Options& options) : options_(options) {}

  // Takes memory for the segment's buffers, scratch and outputs. The steps of earlier segments must have been queued.
  // Returns RESOURCE_EXHAUSTED if memory does not suffice.
  absl::Status LayOut(const ProgramSegment& segment);
  // Queues the needed steps in [begin, end), which are steps of the segment. If the first step of the head (labels,
  // boxes, outputs) is among them, records the end of Stage::kFeatures before it.
  absl::Status Run(size_t begin, size_t end);
  // Queues the needed steps of one of the CapturableRanges and records no event, so that the work can be captured.
  absl::Status Launch(const StepRange& steps);
  // If the range begins with the head's first step, records the end of Stage::kFeatures. Call it before Launch or
  // before a replay of the range.
  absl::Status EnterHead(const StepRange& steps);

  // Returns the ranges of the batch's steps that can be captured.
  std::vector<StepRange> CapturableRanges() const;
  // Returns everything on which the launches of the segment's steps depend. The segment must have been laid out. plans:
  // the table that holds the context's plan.
  BatchShape Shape(const PlanTable& plans) const;

 private:
  bool IsNeeded(size_t step) const { return options_.wanted.Need(*options_.program->steps[step]); }
  size_t first_head_step() const { return static_cast<size_t>(options_.program->first_head_step); }
  absl::Status EndFeatures();
  absl::Status RecordStep(size_t index);

  const Options options_;
};

}  // namespace voxserve
