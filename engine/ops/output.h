#pragma once

// What a network answers: labels and scores of points, boxes. On the CPU a step writes each sample's output by itself;
// on a GPU it makes the rows of the whole batch, which go to host memory in one copy, and the executor hands each
// sample its own. Scores that nobody asked for are passed over, and so are samples that failed.

#include "engine/ops/step.h"

namespace voxserve {

// True where the request gets this output.
bool IsAnswered(const OutputRequest& request, OutputKind kind);

// Where a sample's num_rows rows of labels or scores go.
char* RoomForOutput(OutputKind kind, int64_t num_rows, int64_t row_bytes, SampleOutput& output);

// Boxes in place of those that the sample had: of num_rows rows (kernels/boxes/box_rows.h) those with a score.
void SetBoxes(const float* rows, int64_t num_rows, int64_t pitch, SampleOutput& output);

// On a GPU: the memory in which the next output's rows are made, behind what has been queued.
char* NextOutputRows(const StepContext& context);
// Starts the copy of the rows that were made there; sets output.rows.
absl::Status QueueOutput(const StepContext& context, QueuedOutput output);
// All that was queued to its samples, once the stream has been waited for.
void TakeOutputs(const StepContext& context);

}  // namespace voxserve
