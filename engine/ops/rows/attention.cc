#include "engine/ops/rows/attention.h"

#include "engine/ops/launch.h"

namespace voxserve {
namespace {

kernels::SampleSpans SpansOf(const BufferSlice& slice, const StepContext& context) {
  const Buffer& buffer = (*context.buffers)[static_cast<size_t>(slice.buffer)];
  if (buffer.level == kSampleLevel) return {.rows_per_sample = buffer.rows_per_sample};
  return {.begin = buffer.level == kPointLevel ? context.device_point_begin : context.SampleBegin(slice)};
}

}  // namespace

kernels::AttentionParams AttentionStep::ParamsIn(const StepContext& context) const {
  return {.num_samples = context.num_samples(),
          .num_heads = options_.num_heads,
          .scale = options_.scale,
          .query_spans = SpansOf(options_.queries, context),
          .key_spans = SpansOf(options_.keys, context),
          .queries = context.At(options_.queries),
          .keys = context.At(options_.keys),
          .values = context.At(options_.values),
          .out = context.At(options_.out),
          .workspace = context.scratch};
}

absl::Status AttentionStep::Run(const StepContext& context) const {
  const kernels::AttentionParams params = ParamsIn(context);
  return LAUNCH(context, params, Attention);
}

size_t AttentionStep::ScratchBytes(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    return kernels::cuda::AttentionWorkspaceBytes(ParamsIn(context));
  }
  return 0;
}

}  // namespace voxserve
