#include "engine/ops/boxes/box_output.h"

#include "engine/runtime/aligned_bytes.h"
#include "kernels/boxes/box_rows.h"

namespace voxserve {

absl::Status BoxOutputStep::Run(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) return RunOnCuda(context);
  }
  const kernels::Rows boxes = context.At(in_);
  const int64_t rows_per_sample = boxes.capacity / context.num_samples();
  for (size_t i = 0; i < context.requests.size(); ++i) {
    if (!IsAnswered(context.requests[i], OutputKind::kBoxes)) continue;
    SetBoxes(boxes.floats() + static_cast<int64_t>(i) * rows_per_sample * boxes.pitch, rows_per_sample, boxes.pitch,
             *context.requests[i].output);
  }
  return absl::OkStatus();
}

int64_t BoxOutputStep::OutputBytes(const StepContext& context) const {
  return AlignedBytes(context.At(in_).capacity * kernels::kBoxColumns * static_cast<int64_t>(sizeof(float)));
}

}  // namespace voxserve
