#include <cuda_runtime_api.h>

#include "engine/base/status_macros.h"
#include "engine/ops/cuda_output_collector.h"
#include "engine/ops/rows/tensor_output.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {

absl::Status TensorOutputStep::RunOnCuda(const StepContext& context) const {
  const kernels::ConstRows rows = context.At(options_.in);
  const OutputCollector::Spec spec = SpecOf(context);
  const auto row_bytes = static_cast<size_t>(spec.row_bytes());
  if (rows.capacity > 0) {
    RETURN_IF_CUDA_ERROR(cudaMemcpy2DAsync(
        context.cuda_outputs->next_rows(), row_bytes, rows.data, static_cast<size_t>(rows.pitch_bytes()), row_bytes,
        static_cast<size_t>(rows.capacity), cudaMemcpyDeviceToDevice, context.stream()));
  }
  if (options_.level < 0) return context.cuda_outputs->Queue(context, spec, rows.capacity);
  // If only the device knows the number of rows, the whole capacity is copied; nobody reads the rows after the last
  // one.
  return context.cuda_outputs->QueueSites(context, spec, rows.capacity, context.Keys(options_.level),
                                          context.SampleBegin(options_.in));
}

}  // namespace voxserve
