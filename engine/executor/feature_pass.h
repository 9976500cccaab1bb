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

// Events part the stages from kCopyIn to kHead. Returns where CudaContext::stage_ends has the end of one; the start of
// the first is at 0.
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

  // Takes memory for the segment's buffers, scratch and outputs. Steps of segments before it have been queued.
  // RESOURCE_EXHAUSTED.
  absl::Status LayOut(const ProgramSegment& segment);
  // Queues what is needed of steps [begin, end) of the segment, and where the features end.
  absl::Status Run(size_t begin, size_t end);
  // Queues what is needed of a range as CapturableRanges has them, and no more.
  absl::Status Launch(const StepRange& steps);
  // If the range begins with the head, ends the time of the stage before and begins the head's. Call it before Launch
  // or before a replay.
  absl::Status EnterHead(const StepRange& steps);

  // The batch's ranges that can be captured.
  std::vector<StepRange> CapturableRanges() const;
  // Returns what the steps of the segment are told. The segment must have been laid out. plans: the table of the
  // context's plan.
  BatchShape Shape(const PlanTable& plans) const;

 private:
  bool IsNeeded(size_t step) const { return options_.wanted.Need(*options_.program->steps[step]); }
  size_t first_head_step() const { return static_cast<size_t>(options_.program->first_head_step); }
  absl::Status EndFeatures();
  absl::Status RecordStep(size_t index);

  const Options options_;
};

}  // namespace voxserve
