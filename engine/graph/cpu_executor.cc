#include "engine/graph/cpu_executor.h"

#include <chrono>
#include <optional>

#include "engine/base/status_macros.h"
#include "engine/graph/batch_checks.h"
#include "engine/graph/point_reader.h"
#include "engine/graph/point_sample.h"
#include "engine/graph/stage_timer.h"

namespace voxserve {

absl::Status ReadBatchPoints(const Program& program, absl::Span<const SampleInput> inputs,
                             const std::vector<int64_t>& point_begin, ExecutionContext& context,
                             std::vector<uint8_t>& is_valid) {
  const int64_t num_points = point_begin.back();
  const int64_t columns = NumPointColumns(program.voxelize);
  RETURN_IF_ERROR(context.input.Reserve(num_points * columns * static_cast<int64_t>(sizeof(float))));
  is_valid.resize(static_cast<size_t>(num_points));
  auto* points = reinterpret_cast<float*>(context.input.data());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (point_begin[i] == point_begin[i + 1]) continue;
    int64_t begin = point_begin[i];
    for (const CloudPart& part : PartsOf(inputs[i])) {
      ReadPoints(program.voxelize, part, points + begin * columns, is_valid.data() + begin, *context.pool);
      begin += part.num_points();
    }
  }
  return absl::OkStatus();
}

kernels::VoxelizeParams ParamsOfPoints(const Program& program, const std::vector<int64_t>& point_begin,
                                       const std::vector<uint8_t>& is_valid, const ExecutionContext& context) {
  kernels::VoxelizeParams params = FixedVoxelizeParams(program);
  params.num_points = point_begin.back();
  params.num_samples = static_cast<int32_t>(point_begin.size() - 1);
  params.point_begin = point_begin.data();
  params.axes = reinterpret_cast<const float*>(context.input.data());
  params.axes_pitch = NumPointColumns(program.voxelize);
  params.is_valid = is_valid.data();
  return params;
}

absl::Status MakeLevels(const Program& program, kernels::ThreadPool& pool, BatchGeometry& geometry) {
  for (size_t i = 1; i < program.levels.size(); ++i) {
    const CoordinateLevel& level = program.levels[i];
    const auto index = static_cast<int>(i);
    if (level.united_with >= 0) {
      geometry.UniteLevels(index, level.parent, level.united_with);
    } else if (level.filter) {
      geometry.FilterLevel(index, level.parent, FixedFilterParams(*level.filter));
    } else {
      RETURN_IF_ERROR(geometry.MakeLevel(index, level.parent, FixedLevelParams(level), pool));
    }
  }
  return absl::OkStatus();
}

BatchOutput CpuExecutor::Run(const Program& program, absl::Span<const SampleInput> inputs, const RunLimits& limits,
                             const RunOptions& options) {
  BatchOutput output;
  output.samples.resize(inputs.size());
  output.status = RunBatch(program, inputs, limits, options, output);
  if (!output.status.ok()) output.samples.clear();
  return output;
}

absl::Status CpuExecutor::RunBatch(const Program& program, absl::Span<const SampleInput> inputs,
                                   const RunLimits& limits, const RunOptions& options, BatchOutput& output) {
  {
    const StageTimer timer("copy_in", output.stages);
    RETURN_IF_ERROR(LayOutPoints(program, inputs, output, point_begin_));
    RETURN_IF_ERROR(ReadBatchPoints(program, inputs, point_begin_, *context_, is_valid_));
    LayOutSampling(program, inputs, point_begin_, sampling_);
  }
  kernels::VoxelizeParams points = ParamsOfPoints(program, point_begin_, is_valid_, *context_);
  {
    std::optional<StageTimer> timer;
    if (!sampling_.is_empty()) timer.emplace("sample", output.stages);
    geometry_.SamplePoints(sampling_, &points, *context_->pool);
  }
  {
    const StageTimer timer("voxelize", output.stages);
    RETURN_IF_ERROR(geometry_.Voxelize(points, limits.max_voxels, VoxelOrderOf(limits), *context_->pool));
    TakeVoxelCounts(geometry_, point_begin_, limits, output);
    TakeSampledPoints(sampling_, geometry_, inputs, point_begin_, output);
  }
  if (!HasGoodSample(output)) return absl::OkStatus();  // a cloud that was refused costs no more than this
  RETURN_IF_ERROR(CheckBatchVoxels(geometry_.num_sites(0), inputs.size(), limits));
  const std::vector<ConvPlan>& plans = PlansOf(program, options).ForVoxels(geometry_.num_sites(0));
  RETURN_IF_ERROR(MakeGeometry(program, limits, plans, output));
  if (!HasGoodSample(output)) return absl::OkStatus();
  return RunSteps(program, inputs, limits, options, plans, output);
}

absl::Status CpuExecutor::MakeGeometry(const Program& program, const RunLimits& limits,
                                       const std::vector<ConvPlan>& plans, BatchOutput& output) {
  const StageTimer timer("geometry", output.stages);
  RETURN_IF_ERROR(MakeLevels(program, *context_->pool, geometry_));
  RefuseBeyondLimits(geometry_, program.dimension, output);
  for (const int level : program.sample_levels) geometry_.MakeSampleBegin(level);
  for (size_t i = 0; i < program.rulebooks.size(); ++i) {
    const auto index = static_cast<int>(i);
    const ProgramRulebook& rulebook = program.rulebooks[i];
    if (rulebook.swap_of >= 0) {
      geometry_.SwapRulebook(index, rulebook.swap_of, *context_->pool);
    } else if (geometry_.MakeRulebook(index, rulebook.spec.in_level, rulebook.spec.out_level, rulebook.spec.geometry,
                                      SearchOf(rulebook, plans), limits.max_grid_bytes, *context_->pool)) {
      ++output.grid_fallbacks;
    }
  }
  return absl::OkStatus();
}

absl::Status CpuExecutor::RunSteps(const Program& program, absl::Span<const SampleInput> inputs,
                                   const RunLimits& limits, const RunOptions& options,
                                   const std::vector<ConvPlan>& plans, BatchOutput& output) {
  std::vector<int64_t> num_sites;
  for (size_t level = 0; level < program.levels.size(); ++level) {
    num_sites.push_back(geometry_.num_sites(static_cast<int>(level)));
  }
  std::vector<int64_t> buffer_begin;
  RETURN_IF_ERROR(context_->features.Reserve(
      PlaceBuffers(program, num_sites, static_cast<int64_t>(inputs.size()), point_begin_.back(), buffer_begin)));
  StepContext context{.execution = context_,
                      .geometry = &geometry_,
                      .plans = &plans,
                      .num_sites = &num_sites,
                      .buffers = &program.buffers,
                      .buffer_begin = &buffer_begin,
                      .features = context_->features.data(),
                      .points = reinterpret_cast<const float*>(context_->input.data()),
                      .points_pitch = NumPointColumns(program.voxelize),
                      .point_begin = &point_begin_,
                      .requests = RequestsOf(inputs, point_begin_, output),
                      .ignore_label = limits.ignore_label};
  const bool wants_scores = WantsScores(inputs);
  const size_t first_head_step = FirstHeadStep(program);
  std::vector<absl::Duration> step_times(program.steps.size());
  const auto run = [&](size_t begin, size_t end) -> absl::Status {
    for (size_t i = begin; i < end; ++i) {
      if (!IsWanted(*program.steps[i], wants_scores)) continue;
      const auto started = std::chrono::steady_clock::now();
      RETURN_IF_ERROR(program.steps[i]->Run(context));
      step_times[i] = absl::FromChrono(std::chrono::steady_clock::now() - started);
    }
    return absl::OkStatus();
  };
  {
    const StageTimer timer("features", output.stages);
    RETURN_IF_ERROR(run(0, first_head_step));
  }
  if (options.times_convs) {
    for (size_t i = 0; i < program.rulebooks.size(); ++i) {
      const kernels::RulebookView rulebook = geometry_.rulebook(static_cast<int>(i));
      output.rulebook_sizes.push_back(SizesOf(rulebook.offset_begin, rulebook.num_offsets));
    }
    for (const ProgramConv& conv : program.convs) {
      output.conv_times.push_back(step_times[static_cast<size_t>(conv.step)]);
    }
  }
  const StageTimer timer("head", output.stages);
  return run(first_head_step, program.steps.size());
}

int64_t CpuExecutor::allocated_bytes() const {
  return geometry_.allocated_bytes() + context_->input.capacity() + context_->features.capacity() +
         static_cast<int64_t>(is_valid_.capacity());
}

}  // namespace voxserve
