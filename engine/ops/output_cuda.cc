#include <cuda_runtime_api.h>

#include "engine/base/status_macros.h"
#include "engine/ops/output.h"
#include "engine/runtime/aligned_bytes.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {
namespace {

int64_t QueuedBytes(const StepContext& context) {
  int64_t bytes = 0;
  for (const QueuedOutput& queued : context.queued_outputs) {
    bytes += AlignedBytes(queued.num_rows * queued.row_bytes);
  }
  return bytes;
}

}  // namespace

char* NextOutputRows(const StepContext& context) { return context.output_rows + QueuedBytes(context); }

absl::Status QueueOutput(const StepContext& context, QueuedOutput output) {
  char* const host_rows = context.host_output_rows + QueuedBytes(context);
  const int64_t bytes = output.num_rows * output.row_bytes;
  if (bytes > 0) {
    RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(host_rows, NextOutputRows(context), static_cast<size_t>(bytes),
                                         cudaMemcpyDeviceToHost, context.stream()));
  }
  output.rows = host_rows;
  context.queued_outputs.push_back(output);
  return absl::OkStatus();
}

}  // namespace voxserve
