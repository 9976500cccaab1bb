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

absl::Status AttentionStep::Run(const StepContext& context) const {
  const kernels::AttentionParams params{.num_samples = context.num_samples(),
                                        .num_heads = options_.num_heads,
                                        .scale = options_.scale,
                                        .query_spans = SpansOf(options_.queries, context),
                                        .key_spans = SpansOf(options_.keys, context),
                                        .queries = context.At(options_.queries),
                                        .keys = context.At(options_.keys),
                                        .values = context.At(options_.values),
                                        .out = context.At(options_.out)};
  return LAUNCH(context, params, Attention);
}

}  // namespace voxserve
