#include "engine/ops/rows/tensor_output.h"

#include "engine/base/status_macros.h"
#include "engine/ops/cpu_output_collector.h"
#include "engine/runtime/aligned_bytes.h"

namespace voxserve {

absl::Status TensorOutputStep::Run(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    if (context.cuda() != nullptr) return RunOnCuda(context);
  }
  CpuOutputCollector& outputs = *context.cpu_outputs;
  const kernels::ConstRows rows = context.At(options_.in);
  const OutputCollector::Spec spec = SpecOf(context);
  for (size_t i = 0; i < outputs.num_samples(); ++i) {
    if (!outputs.IsWanted(i, spec)) continue;
    if (options_.level >= 0) {
      RETURN_IF_ERROR(outputs.AddSites(i, spec, rows, context.Keys(options_.level), context.SampleBegin(options_.in)));
    } else {
      const int64_t begin = static_cast<int64_t>(i) * spec.rows_per_sample;
      RETURN_IF_ERROR(outputs.AddTensor(i, spec, rows.RowRange(begin, begin + spec.rows_per_sample)));
    }
  }
  return absl::OkStatus();
}

int64_t TensorOutputStep::OutputBytes(const StepContext& context) const {
  const int64_t num_rows = context.At(options_.in).capacity;
  const int64_t bytes = AlignedBytes(num_rows * SpecOf(context).row_bytes());
  if (options_.level < 0) return bytes;
  return bytes + AlignedBytes(num_rows * static_cast<int64_t>(sizeof(uint64_t))) +
         AlignedBytes((context.num_samples() + int64_t{1}) * static_cast<int64_t>(sizeof(int64_t)));
}

OutputCollector::Spec TensorOutputStep::SpecOf(const StepContext& context) const {
  const kernels::ConstRows rows = context.At(options_.in);
  return {.dtype = rows.dtype,
          .columns = rows.channels,
          .is_for_all = false,
          .rows_per_sample = options_.level >= 0 ? 0 : rows.capacity / context.num_samples(),
          .tensor = options_.tensor};
}

}  // namespace voxserve
