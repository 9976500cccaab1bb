#include "engine/ops/rows/sample_norm.h"

#include <vector>

#include "engine/base/status_macros.h"
#include "engine/ops/launch.h"
#include "engine/runtime/aligned_bytes.h"
#include "kernels/rows/sample_reduce.h"
#include "kernels/rows/scale_shift.h"

namespace voxserve {
namespace {

absl::Status Reduce(const kernels::SampleReduceParams& params, const StepContext& context) {
  return LAUNCH(context, params, SampleReduce);
}

absl::Status AverageGroups(const kernels::GroupAverageParams& params, const StepContext& context) {
  return LAUNCH(context, params, GroupAverage);
}

int64_t NumFactors(const StepContext& context, const BufferSlice& slice) {
  return int64_t{context.num_samples()} * slice.channels;
}

// Returns the bytes of the means; the scales take as many.
size_t FactorBytes(const StepContext& context, const BufferSlice& slice) {
  return static_cast<size_t>(AlignedBytes(NumFactors(context, slice) * static_cast<int64_t>(sizeof(float))));
}

}  // namespace

absl::Status SampleNormStep::Run(const StepContext& context) const {
  if (context.cuda() == nullptr) {
    std::vector<float> factors(2 * static_cast<size_t>(NumFactors(context, options_.in)));
    return RunWith(context, factors.data(), factors.data() + factors.size() / 2, nullptr);
  }
  const size_t bytes = FactorBytes(context, options_.in);
  auto* const scratch = static_cast<char*>(context.scratch);
  return RunWith(context, reinterpret_cast<float*>(scratch), reinterpret_cast<float*>(scratch + bytes),
                 scratch + 2 * bytes);
}

absl::Status SampleNormStep::RunWith(const StepContext& context, float* means, float* scales, void* workspace) const {
  const kernels::Rows in = context.At(options_.in);
  const kernels::Rows mean_rows = kernels::Rows::Packed(means, DType::kFloat32, context.num_samples(), in.channels);
  const kernels::Rows scale_rows = kernels::Rows::Packed(scales, DType::kFloat32, context.num_samples(), in.channels);
  kernels::SampleReduceParams reduce{.sample_begin = context.SampleBegin(options_.in),
                                     .reduce = kernels::PoolReduce::kAverage,
                                     .in = in,
                                     .out = mean_rows,
                                     .workspace = workspace};
  kernels::GroupAverageParams groups{.num_samples = context.num_samples(),
                                     .channels = in.channels,
                                     .num_groups = options_.num_groups,
                                     .values = means};
  RETURN_IF_ERROR(Reduce(reduce, context));
  RETURN_IF_ERROR(AverageGroups(groups, context));
  reduce.centre = means;
  reduce.out = scale_rows;
  RETURN_IF_ERROR(Reduce(reduce, context));
  groups.is_scale = true;
  groups.weight = options_.weight.floats();
  groups.epsilon = options_.epsilon;
  groups.values = scales;
  RETURN_IF_ERROR(AverageGroups(groups, context));
  const kernels::SampleScaleShiftParams apply{.num_samples = context.num_samples(),
                                              .sample_begin = reduce.sample_begin,
                                              .in = in,
                                              .centre = mean_rows,
                                              .scale = scale_rows,
                                              .out = context.At(options_.out),
                                              .epilogue = options_.epilogue.In(context)};
  return LAUNCH(context, apply, SampleScaleShift);
}

absl::Status SampleNormStep::Upload(WeightUploader& uploader) {
  RETURN_IF_ERROR(uploader.Upload(options_.weight, DType::kFloat32));
  return uploader.Upload(options_.epilogue.bias, DType::kFloat32);
}

size_t SampleNormStep::ScratchBytes(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    return 2 * FactorBytes(context, options_.in) +
           kernels::cuda::SampleReduceWorkspaceBytes(context.num_samples(), options_.in.channels);
  }
  return 0;
}

}  // namespace voxserve
