#include "engine/executor/cpu_executor.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <optional>

#include "engine/base/status_macros.h"
#include "engine/compiler/buffer_placement.h"
#include "engine/executor/batch_checks.h"
#include "engine/executor/point_reader.h"
#include "engine/executor/point_sample.h"
#include "engine/executor/stage_timer.h"
#include "engine/ops/batch_outputs.h"

namespace voxserve {

absl::Status ReadBatchPoints(const Program& program, BatchTasks tasks, const std::vector<int64_t>& point_begin,
                             ExecutionContext& context, std::vector<uint8_t>& is_valid) {
  const int64_t num_points = point_begin.back();
  const int64_t columns = NumPointColumns(program.voxelize);
  RETURN_IF_ERROR(context.input.Reserve(num_points * columns * static_cast<int64_t>(sizeof(float))));
  is_valid.resize(static_cast<size_t>(num_points));
  auto* points = reinterpret_cast<float*>(context.input.data());
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (point_begin[i] == point_begin[i + 1]) continue;
    int64_t begin = point_begin[i];
    for (const CloudPart& part : PartsOf(*tasks[i])) {
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
  params.axes = PointRows(program.voxelize, context.input.data(), params.num_points);
  params.is_valid = is_valid.data();
  return params;
}

absl::Status MakeLevels(const Program& program, const ProgramSegment& segment, const StepContext* context,
                        kernels::ThreadPool& pool, BatchGeometry& geometry) {
  for (const int index : segment.levels) {
    const CoordinateLevel& level = program.levels[static_cast<size_t>(index)];
    if (level.united_with >= 0) {
      geometry.UniteLevels(index, level.parent, level.united_with);
    } else if (level.filter) {
      geometry.FilterLevel(index, level.parent, FilterParams(program, index, context));
    } else {
      RETURN_IF_ERROR(geometry.MakeLevel(index, level.parent, FixedLevelParams(level), pool));
    }
  }
  return absl::OkStatus();
}

BatchOutput CpuExecutor::Run(const Program& program, BatchTasks tasks, const RunLimits& limits,
                             const RunOptions& options) {
  BatchOutput output;
  output.samples.resize(tasks.size());
  try {
    output.status = RunBatch(program, tasks, limits, options, output);
  } catch (const std::bad_alloc&) {
    output.status = OutOfHostMemory();
  }
  if (!output.status.ok()) output.samples.clear();
  return output;
}

absl::Status CpuExecutor::RunBatch(const Program& program, BatchTasks tasks, const RunLimits& limits,
                                   const RunOptions& options, BatchOutput& output) {
  {
    const StageTimer timer(Stage::kCopyIn, output.stages);
    RETURN_IF_ERROR(LayOutPoints(program, tasks, output, point_begin_));
    RETURN_IF_ERROR(ReadBatchPoints(program, tasks, point_begin_, *context_, is_valid_));
    LayOutSampling(program, tasks, point_begin_, sampling_);
  }
  kernels::VoxelizeParams points = ParamsOfPoints(program, point_begin_, is_valid_, *context_);
  {
    std::optional<StageTimer> timer;
    if (!sampling_.is_empty()) timer.emplace(Stage::kSample, output.stages);
    geometry_.SamplePoints(sampling_, &points, *context_->pool);
  }
  {
    const StageTimer timer(Stage::kVoxelize, output.stages);
    RETURN_IF_ERROR(geometry_.Voxelize(points, limits.max_voxels, VoxelOrderOf(limits), *context_->pool));
    TakeVoxelCounts(geometry_, point_begin_, limits, output);
    TakeSampledPoints(sampling_, geometry_, tasks, point_begin_, output);
  }
  if (!HasGoodSample(output)) return absl::OkStatus();  // a cloud that was refused costs no more than this
  RETURN_IF_ERROR(CheckBatchVoxels(geometry_.num_sites(0), tasks.size(), limits));
  const std::vector<ConvPlan>& plans = PlansOf(program, options).ForVoxels(geometry_.num_sites(0));
  {
    const StageTimer timer(Stage::kGeometry, output.stages);
    RETURN_IF_ERROR(MakeGeometry(program, program.segments.front(), /*context=*/nullptr, limits, plans, output));
  }
  if (!HasGoodSample(output)) return absl::OkStatus();
  return RunSteps(program, tasks, limits, options, plans, output);
}

absl::Status CpuExecutor::MakeGeometry(const Program& program, const ProgramSegment& segment,
                                       const StepContext* context, const RunLimits& limits,
                                       const std::vector<ConvPlan>& plans, BatchOutput& output) {
  RETURN_IF_ERROR(MakeLevels(program, segment, context, *context_->pool, geometry_));
  RefuseBeyondLimits(geometry_, program.dimension, output);
  for (const int level : segment.sample_levels) geometry_.MakeSampleBegin(level);
  for (const int index : segment.rulebooks) {
    const ProgramRulebook& rulebook = program.rulebooks[static_cast<size_t>(index)];
    if (rulebook.swap_of >= 0) {
      geometry_.SwapRulebook(index, rulebook.swap_of, *context_->pool);
    } else if (geometry_.MakeRulebook(index, rulebook.spec.in_level, rulebook.spec.out_level, rulebook.spec.geometry,
                                      SearchOf(rulebook, plans), limits.max_grid_bytes, *context_->pool)) {
      ++output.grid_fallbacks;
    }
  }
  return absl::OkStatus();
}

absl::Status CpuExecutor::RunSteps(const Program& program, BatchTasks tasks, const RunLimits& limits,
                                   const RunOptions& options, const std::vector<ConvPlan>& plans, BatchOutput& output) {
  std::vector<int64_t> num_sites(program.levels.size());
  num_sites[0] = geometry_.num_sites(0);
  std::vector<char*> buffer_data(program.buffers.size());
  if (later_features_.size() < program.segments.size() - 1) later_features_.resize(program.segments.size() - 1);
  BatchOutputs outputs(tasks, point_begin_, absl::MakeSpan(output.samples));
  StepContext context{.execution = context_,
                      .geometry = &geometry_,
                      .plans = &plans,
                      .num_sites = &num_sites,
                      .buffers = &program.buffers,
                      .buffer_data = &buffer_data,
                      .points = PointRows(program.voxelize, context_->input.data(), point_begin_.back()),
                      .point_begin = &point_begin_,
                      .ignore_label = limits.ignore_label,
                      .outputs = &outputs};
  const bool wants_scores = WantsScores(tasks);
  const auto first_head_step = static_cast<size_t>(program.first_head_step);
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
    const StageTimer timer(Stage::kFeatures, output.stages);
    for (size_t i = 0; i < program.segments.size(); ++i) {
      const ProgramSegment& segment = program.segments[i];
      if (i > 0) RETURN_IF_ERROR(MakeGeometry(program, segment, &context, limits, plans, output));
      for (const int level : segment.levels) num_sites[static_cast<size_t>(level)] = geometry_.num_sites(level);
      const BufferPlaces places =
          PlaceBuffers(program, segment, num_sites, static_cast<int64_t>(tasks.size()), point_begin_.back());
      Arena& memory = i == 0 ? context_->features : later_features_[i - 1];
      RETURN_IF_ERROR(memory.Reserve(places.bytes));
      places.SetData(memory.data(), buffer_data);
      RETURN_IF_ERROR(run(static_cast<size_t>(segment.first_step),
                          std::min(static_cast<size_t>(segment.end_step), first_head_step)));
    }
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
  const StageTimer timer(Stage::kHead, output.stages);
  return run(first_head_step, program.steps.size());
}

int64_t CpuExecutor::allocated_bytes() const {
  int64_t bytes = geometry_.allocated_bytes() + context_->input.capacity() + context_->features.capacity() +
                  static_cast<int64_t>(is_valid_.capacity());
  for (const Arena& memory : later_features_) bytes += memory.capacity();
  return bytes;
}

}  // namespace voxserve
