#pragma once

// FeaturePass runs the steps of a segment on a GPU, whose levels and rulebooks are there: it gives them memory and
// queues them, range by range, so that a range can be captured instead (captured_batches.h).
//
// One batch has one. Belongs to an executor; not thread-safe.

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
// start of the first one.
constexpr size_t StageEnd(Stage stage) { return static_cast<size_t>(stage) - static_cast<size_t>(Stage::kCopyIn) + 1; }
static_assert(CudaContext::kNumStages == StageEnd(Stage::kHead));

class FeaturePass {
 public:
  struct Options {
    const Program* program = nullptr;           // outlives the pass, as do all that follow
    WantedOutputs wanted;                       // steps that nobody needs are passed over
    StepContext* context = nullptr;             // of the batch, on a GPU; the pass sets its scratch
    std::vector<char*>* buffer_data = nullptr;  // the context's
    DeviceGeometry* geometry = nullptr;         // likewise
    std::vector<Event>* step_ends = nullptr;    // null: steps are not timed; event i ends step i - 1 and begins step i
  };

  explicit FeaturePass(const Options& options) : options_(options) {}

  // Takes memory for the segment's buffers, scratch and outputs. The steps of earlier segments must have been queued.
  // RESOURCE_EXHAUSTED.
  absl::Status LayOut(const ProgramSegment& segment);
  // Queues the needed steps in [begin, end) of the segment, and records the end of the features there.
  absl::Status Run(size_t begin, size_t end);
  // Queues only the needed steps of one of the CapturableRanges.
  absl::Status Launch(const StepRange& steps);
  // If the range begins with the head, ends the time of the stage before and begins the head's. Call it before Launch
  // or before a replay.
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
