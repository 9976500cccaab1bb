#include "engine/executor/cpu_executor.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <optional>

#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "engine/compiler/buffer_placement.h"
#include "engine/executor/batch_checks.h"
#include "engine/executor/geometry_pass.h"
#include "engine/executor/point_reader.h"
#include "engine/executor/point_sample.h"
#include "engine/executor/stage_timer.h"
#include "engine/ops/cpu_output_collector.h"

namespace voxserve {

CpuExecutor::CpuExecutor(ExecutionContext* context) : context_(context) { ReleaseHostMemory(); }

void CpuExecutor::ReleaseHostMemory() {
  geometry_.emplace(context_->pool, context_->memory.get());
  points_.emplace(context_->memory.get());
  context_->input.Release();
  context_->features.Release();
  later_features_.clear();
  context_->memory->Settle();
}

BatchReport CpuExecutor::Run(const Program& program, BatchTasks tasks, const RunLimits& limits,
                             const RunOptions& options) {
  const bool was_empty = context_->memory->held_bytes() == 0;
  BatchReport output = RunOnce(program, tasks, limits, options);
  if (!output.host_is_full) return output;
  ReleaseHostMemory();
  if (was_empty) return output;
  output = RunOnce(program, tasks, limits, options);
  if (output.host_is_full) ReleaseHostMemory();
  return output;
}

BatchReport CpuExecutor::RunOnce(const Program& program, BatchTasks tasks, const RunLimits& limits,
                                 const RunOptions& options) {
  BatchReport output;
  context_->memory->BeginBatch();
  feature_bytes_ = 0;
  try {
    output.samples.resize(tasks.size());
    output.status = RunBatch(program, tasks, limits, options, output);
  } catch (const std::bad_alloc&) {
    output.status = OutOfHostMemory(absl::OkStatus());
    output.host_is_full = true;
  }
  if (output.status.ok()) {
    output.bytes = NeededBytes();
    return output;
  }
  output.samples.clear();
  if (IsOutOfMemory(output.status) && !context_->memory->refusal().ok()) {
    output.status = OutOfHostMemory(context_->memory->refusal());
    output.host_is_full = true;
  }
  return output;
}

BatchBytes CpuExecutor::NeededBytes() const {
  const HostMemory& memory = *context_->memory;
  // Kernels allocated these bytes and freed them before they returned.
  const int64_t temporary_bytes = memory.peak_bytes() - memory.held_bytes();
  return {.points = points_->needed_bytes() + geometry_->needed_bytes() + temporary_bytes, .features = feature_bytes_};
}

absl::Status CpuExecutor::RunBatch(const Program& program, BatchTasks tasks, const RunLimits& limits,
                                   const RunOptions& options, BatchReport& output) {
  {
    const StageTimer timer(Stage::kCopyIn, output.stages);
    RETURN_IF_ERROR(LayOutPoints(program, tasks, output, point_begin_));
    RETURN_IF_ERROR(points_->Read(program.voxelize, tasks, point_begin_, *context_));
    LayOutSampling(program, tasks, point_begin_, sampling_);
  }
  kernels::VoxelizeParams points = FixedVoxelizeParams(program, point_begin_);
  points.point_begin = point_begin_.data();
  points.axes = PointRows(program.voxelize, points_->points(), points.num_points);
  points.is_valid = points_->is_valid();
  {
    std::optional<StageTimer> timer;
    if (!sampling_.is_empty()) timer.emplace(Stage::kSample, output.stages);
    geometry_->SamplePoints(sampling_, &points);
  }
  {
    const StageTimer timer(Stage::kVoxelize, output.stages);
    RETURN_IF_ERROR(geometry_->Voxelize(points, limits.max_voxels, VoxelOrderOf(limits)));
    TakeVoxelCounts(*geometry_, point_begin_, limits, output);
    TakeSampledPoints(sampling_, *geometry_, tasks, point_begin_, output);
  }
  if (!HasGoodSample(output)) return absl::OkStatus();  // skips the network where every sample was refused
  RETURN_IF_ERROR(CheckBatchVoxels(geometry_->num_sites(0), tasks.size(), limits));
  {
    const StageTimer timer(Stage::kGeometry, output.stages);
    RETURN_IF_ERROR(MakeGeometry(program, program.segments.front(), /*context=*/nullptr, limits, options, output));
  }
  if (!HasGoodSample(output)) return absl::OkStatus();
  return RunSteps(program, tasks, limits, options, output);
}

absl::Status CpuExecutor::MakeGeometry(const Program& program, const ProgramSegment& segment,
                                       const StepContext* context, const RunLimits& limits, const RunOptions& options,
                                       BatchReport& output) {
  RETURN_IF_ERROR(MakeMaps(program, segment, context,
                           {.plans = &PlansOf(program, options),
                            .num_voxels = geometry_->num_sites(0),
                            .max_grid_bytes = limits.max_grid_bytes},
                           *geometry_));
  output.grid_fallbacks = geometry_->num_grid_fallbacks();
  RefuseBeyondLimits(*geometry_, program.dimension, output);
  return absl::OkStatus();
}

absl::Status CpuExecutor::RunSteps(const Program& program, BatchTasks tasks, const RunLimits& limits,
                                   const RunOptions& options, BatchReport& output) {
  std::vector<int64_t> num_sites(program.levels.size());
  num_sites[0] = geometry_->num_sites(0);
  std::vector<char*> buffer_data(program.buffers.size());
  while (later_features_.size() + 1 < program.segments.size()) later_features_.emplace_back(context_->memory.get());
  CpuOutputCollector outputs(tasks, point_begin_, absl::MakeSpan(output.samples), context_->memory.get());
  outputs.SetTensors(program.tensors, TensorsByTask(program, tasks), program.dimension);
  StepContext context{.execution = context_,
                      .geometry = &*geometry_,
                      .plans = &PlansOf(program, options).ForVoxels(geometry_->num_sites(0)),
                      .num_sites = &num_sites,
                      .buffers = &program.buffers,
                      .buffer_data = &buffer_data,
                      .points = PointRows(program.voxelize, points_->points(), point_begin_.back()),
                      .point_begin = &point_begin_,
                      .device_point_begin = point_begin_.data(),
                      .ignore_label = limits.ignore_label,
                      .cpu_outputs = &outputs};
  const WantedOutputs wanted = WantedBy(program, tasks);
  const auto first_head_step = static_cast<size_t>(program.first_head_step);
  std::vector<absl::Duration> step_times(program.steps.size());
  const auto show_values = [&](size_t step) -> absl::Status {
    if (!options.on_value) return absl::OkStatus();
    for (const ProgramValue& value : program.values) {
      if (static_cast<size_t>(value.step) != step || !wanted.Need(value)) continue;
      RETURN_IF_ERROR(options.on_value(value.node, context.At(value.slice)));
    }
    return absl::OkStatus();
  };
  const auto run = [&](size_t begin, size_t end) -> absl::Status {
    for (size_t i = begin; i < end; ++i) {
      if (!wanted.Need(*program.steps[i])) continue;
      const auto started = std::chrono::steady_clock::now();
      RETURN_IF_ERROR(program.steps[i]->Run(context));
      step_times[i] = absl::FromChrono(std::chrono::steady_clock::now() - started);
      RETURN_IF_ERROR(show_values(i));
    }
    return absl::OkStatus();
  };
  {
    const StageTimer timer(Stage::kFeatures, output.stages);
    for (size_t i = 0; i < program.segments.size(); ++i) {
      const ProgramSegment& segment = program.segments[i];
      if (i > 0) RETURN_IF_ERROR(MakeGeometry(program, segment, &context, limits, options, output));
      for (const int level : segment.levels) num_sites[static_cast<size_t>(level)] = geometry_->num_sites(level);
      const BufferPlaces places =
          PlaceBuffers(program, segment, num_sites, static_cast<int64_t>(tasks.size()), point_begin_.back());
      Arena& memory = i == 0 ? context_->features : later_features_[i - 1];
      RETURN_IF_ERROR(memory.Reserve(places.bytes));
      feature_bytes_ += places.bytes;
      places.SetData(memory.data(), buffer_data);
      RETURN_IF_ERROR(run(static_cast<size_t>(segment.first_step),
                          std::min(static_cast<size_t>(segment.end_step), first_head_step)));
    }
  }
  if (options.times_convs) {
    for (size_t i = 0; i < program.rulebooks.size(); ++i) {
      const kernels::RulebookView rulebook = geometry_->rulebook(static_cast<int>(i));
      output.rulebook_sizes.push_back(SizesOf(rulebook.offset_begin, rulebook.num_offsets));
    }
    for (const ProgramConv& conv : program.convs) {
      output.conv_times.push_back(step_times[static_cast<size_t>(conv.step)]);
    }
  }
  const StageTimer timer(Stage::kHead, output.stages);
  RETURN_IF_ERROR(run(first_head_step, program.steps.size()));
  outputs.TakeNotFinite();
  return outputs.ConvertTensors();
}

}  // namespace voxserve
