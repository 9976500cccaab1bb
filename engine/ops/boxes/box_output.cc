#include "engine/ops/boxes/box_output.h"

#include "engine/ops/cpu_output_collector.h"
#include "engine/runtime/aligned_bytes.h"
#include "kernels/boxes/box_rows.h"

namespace voxserve {

absl::Status BoxOutputStep::Run(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) return RunOnCuda(context);
  }
  const kernels::Rows boxes = context.At(in_);
  const OutputCollector::Spec spec = SpecOf(context, boxes);
  for (size_t i = 0; i < context.cpu_outputs->num_samples(); ++i) {
    if (!context.cpu_outputs->IsWanted(i, spec)) continue;
    const float* const rows = boxes.floats() + static_cast<int64_t>(i) * spec.rows_per_sample * boxes.pitch;
    context.cpu_outputs->AddBoxes(i, spec, rows, boxes.pitch);
  }
  return absl::OkStatus();
}

OutputCollector::Spec BoxOutputStep::SpecOf(const StepContext& context, const kernels::Rows& boxes) {
  return {.name = NamedOutput::kBoxes,
          .columns = kernels::kBoxColumns,
          .rows_per_sample = boxes.capacity / context.num_samples()};
}

int64_t BoxOutputStep::OutputBytes(const StepContext& context) const {
  return AlignedBytes(context.At(in_).capacity * kernels::kBoxColumns * static_cast<int64_t>(sizeof(float)));
}

}  // namespace voxserve
