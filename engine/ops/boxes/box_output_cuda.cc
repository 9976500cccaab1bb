#include <cuda_runtime_api.h>

#include "engine/base/status_macros.h"
#include "engine/ops/boxes/box_output.h"
#include "engine/ops/cuda_output_collector.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/boxes/box_rows.h"

namespace voxserve {

absl::Status BoxOutputStep::RunOnCuda(const StepContext& context) const {
  const kernels::Rows boxes = context.At(in_);
  constexpr size_t kRowBytes = kernels::kBoxColumns * sizeof(float);
  RETURN_IF_CUDA_ERROR(cudaMemcpy2DAsync(
      context.cuda_outputs->next_rows(), kRowBytes, boxes.data, static_cast<size_t>(boxes.pitch_bytes()), kRowBytes,
      static_cast<size_t>(boxes.capacity), cudaMemcpyDeviceToDevice, context.stream()));
  return context.cuda_outputs->Queue(context, SpecOf(context, boxes), boxes.capacity);
}

}  // namespace voxserve
