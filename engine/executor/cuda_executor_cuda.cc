#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <new>
#include <string>
#include <utility>

#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "engine/executor/batch_checks.h"
#include "engine/executor/captured_work.h"
#include "engine/executor/cuda_executor.h"
#include "engine/executor/feature_pass.h"
#include "engine/executor/geometry_pass.h"
#include "engine/executor/host_points.h"
#include "engine/executor/point_reader.h"
#include "engine/executor/point_sample.h"
#include "engine/executor/stage_timer.h"
#include "engine/geometry/uploaded_geometry.h"
#include "engine/ops/batch_outputs.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/coordinates/hold_sites.h"

namespace voxserve {
namespace {

// Between batches a context keeps at most this much pinned memory for answers: the default limit of one message.
constexpr int64_t kKeptDownloadBytes = int64_t{64} << 20;

}  // namespace

BatchOutput CudaExecutor::Run(const Program& program, BatchTasks tasks, const RunLimits& limits,
                              const RunOptions& options) {
  BatchOutput output;
  context_->memory->BeginBatch();
  output.samples.resize(tasks.size());
  try {
    output.status = RunBatch(program, tasks, limits, options, output);
  } catch (const std::bad_alloc&) {
    output.status = OutOfHostMemory(context_->memory->refusal());
  }
  if (output.status.ok()) {
    points_.ReleaseSweeps();
    const CudaContext& cuda = *context_->cuda;
    output.bytes = {.fixed = cuda.gemm_workspace.bytes() + 2 * DeviceArena::kBlockBytes,
                    .points = cuda.batch.most_bytes(),
                    .features = cuda.features.most_bytes()};
    return output;
  }
  output.samples.clear();
  // host_is_full says that only the host's memory is full. If the kernel maps were made on the CPU, the GPU's memory is
  // full too, since it had no room for them.
  output.host_is_full = IsOutOfMemory(output.status) && !context_->memory->refusal().ok() && !output.geometry_on_cpu;
  // Waits for the stream, so that no work of this batch touches the memory that the next batch reuses. If the wait
  // succeeds, the device has not failed, even if a library reported an error of its own as a device failure.
  const absl::Status waited = context_->cuda->stream.view().Synchronize();
  if (IsDeviceFailure(waited)) {
    output.status = waited;
  } else if (IsDeviceFailure(output.status)) {
    output.status = WithReason(absl::InternalError(output.status.message()), error_reason::kInternal);
  }
  points_.ReleaseSweeps();
  ForgetCaptured();
  if (!absl::IsOutOfRange(output.status)) {
    captured_.Clear();
    context_->cuda->ReleaseMemory();
  }
  return output;
}

absl::Status CudaExecutor::RunBatch(const Program& program, BatchTasks tasks, const RunLimits& limits,
                                    const RunOptions& options, BatchOutput& output) {
  RETURN_IF_ERROR(LayOutPoints(program, tasks, output, point_begin_));
  LayOutSampling(program, tasks, point_begin_, sampling_);
  if (SiteRooms rooms = ForecastRooms(program, tasks, limits, options); !rooms.capacities.empty()) {
    const absl::Status ran = RunInRooms(program, tasks, limits, options, std::move(rooms), output);
    const bool had_no_memory = IsOutOfMemory(ran) && context_->memory->refusal().ok();
    if (!absl::IsOutOfRange(ran) && !had_no_memory) return ran;
    if (had_no_memory) forecasts_[&program].HadNoMemory(point_begin_.back());
    RETURN_IF_ERROR(context_->cuda->stream.view().Synchronize());
    points_.ReleaseSweeps();
    ForgetCaptured();
    if (had_no_memory) captured_.Clear();
    output.ran_again = true;
    output.is_replay = false;
    output.room_voxels = 0;
  }
  RETURN_IF_ERROR(RunWithSizes(program, tasks, limits, options, output));
  if (output.geometry_on_cpu) {
    forecasts_[&program].HadNoMemory(point_begin_.back());
  } else if (point_begin_.back() > 0 && HasGoodSample(output) && !sampling_.restricts_network()) {
    // Bounds the number of forecasts, since programs come and go. A program whose forecast is dropped learns again.
    constexpr size_t kMostForecasts = 64;
    if (forecasts_.size() >= kMostForecasts && !forecasts_.contains(&program)) forecasts_.clear();
    forecasts_[&program].Learn(point_begin_.back(), geometry_.num_sites(), geometry_.max_coordinate());
  }
  return absl::OkStatus();
}

SiteRooms CudaExecutor::ForecastRooms(const Program& program, BatchTasks tasks, const RunLimits& limits,
                                      const RunOptions& options) {
  const int64_t num_points = point_begin_.back();
  const auto found = forecasts_.find(&program);
  if (found == forecasts_.end() || !found->second.has_learned(num_points) || num_points == 0) return {};
  if (options.times_convs || program.segments.size() > 1 || program.levels.size() > kernels::kMostHeldLevels) return {};
  // No forecast knows how many sites are left if the network sees only the sampled points.
  if (sampling_.restricts_network()) return {};
  const PlanTable& plans = PlansOf(program, options);
  for (const RulebookForms& forms : plans.forms()) {
    if (forms.pairs) return {};
  }
  SiteRooms rooms = found->second.Rooms(num_points);
  if (rooms.capacities.size() != program.levels.size()) return {};
  const auto num_samples = static_cast<int64_t>(point_begin_.size()) - 1;
  const auto most_voxels = static_cast<int64_t>(found->second.MostVoxels(num_points));
  if (!CheckBatchVoxels(most_voxels, static_cast<size_t>(num_samples), limits).ok()) return {};
  const auto within_limits = [&](int64_t voxels) {
    if (limits.max_voxels > 0) voxels = std::min(voxels, num_samples * limits.max_voxels);
    if (limits.max_batch_voxels > 0 && num_samples > 1) voxels = std::min(voxels, limits.max_batch_voxels);
    return voxels;
  };
  int64_t& voxels = rooms.capacities.front();
  voxels = within_limits(std::min(voxels, num_points));
  // If batches of this size alternate between two plans, waiting for exact sizes costs less than a wrong forecast.
  constexpr double kSure = 0.1;
  const auto fewest_voxels = static_cast<int64_t>(found->second.FewestVoxels(num_points) * (1 - kSure));
  const std::vector<ConvPlan>& chosen = plans.ForVoxels(most_voxels);
  if (&chosen != &plans.ForVoxels(fewest_voxels) || &chosen != &plans.ForVoxels(voxels)) return {};
  for (const std::unique_ptr<Step>& step : program.steps) {
    if (step->NeedsSizes(chosen)) return {};
  }
  if (!options.captures) return rooms;
  rooms.points = num_points;
  rooms.upload_bytes = DevicePoints::MostUploadBytes(tasks, sampling_.is_empty() ? 0 : sampling_.words().size());
  rooms = kept_rooms_.Fit({.program = program.id.value(),
                           .num_samples = num_samples,
                           .points_octave = static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(num_points)))},
                          rooms);
  rooms.capacities.front() = within_limits(rooms.capacities.front());
  return rooms;
}

absl::Status CudaExecutor::CopyIn(const Program& program, BatchTasks tasks, const RunOptions& options,
                                  const SiteRooms& rooms) {
  CudaContext& cuda = *context_->cuda;
  for (const auto& [arena, expected] :
       {std::pair(&cuda.batch, options.expected.points), std::pair(&cuda.features, options.expected.features)}) {
    arena->Reset();
    arena->Reserve(expected);
  }
  RETURN_IF_ERROR(cuda.stage_ends[0].Record(cuda.stream.view()));
  const absl::Span<const int64_t> words = sampling_.is_empty() ? absl::Span<const int64_t>() : sampling_.words();
  RETURN_IF_ERROR(points_.CopyIn(
      program.voxelize, tasks, point_begin_,
      {.keeps_sweeps = true, .words = words, .room_points = rooms.points, .room_bytes = rooms.upload_bytes},
      *context_));
  return EndStage(Stage::kCopyIn);
}

void CudaExecutor::TakeCounts(const Program& program, BatchTasks tasks, const RunLimits& limits, BatchOutput& output) {
  TakeVoxelCounts(geometry_, point_begin_, limits, output);
  TakeSampledPoints(sampling_, geometry_, tasks, point_begin_, output);
  RefuseBeyondLimits(geometry_, program.dimension, output);
}

absl::Status CudaExecutor::RunInRooms(const Program& program, BatchTasks tasks, const RunLimits& limits,
                                      const RunOptions& options, SiteRooms rooms, BatchOutput& output) {
  const PlanTable& plans = PlansOf(program, options);
  SiteForecast& forecast = forecasts_[&program];
  const int64_t num_points = point_begin_.back();
  const std::vector<ConvPlan>& chosen = plans.ForVoxels(static_cast<int64_t>(forecast.MostVoxels(num_points)));
  output.room_voxels = rooms.capacities.front();
  RETURN_IF_ERROR(CopyIn(program, tasks, options, rooms));
  RETURN_IF_ERROR(MakeGeometry(program, limits, plans, std::move(rooms)));
  RETURN_IF_ERROR(EndStage(Stage::kGeometry));
  const absl::Status ran = RunSteps(program, tasks, limits, options, chosen, output);
  // The forecast also learns from a batch that did not fit, so that the next such batch fits.
  if (ran.ok() || absl::IsOutOfRange(ran)) {
    forecast.Learn(num_points, geometry_.has_true_sizes() ? geometry_.num_sites() : std::vector<int64_t>(),
                   geometry_.max_coordinate());
  }
  return ran;
}

absl::Status CudaExecutor::RunWithSizes(const Program& program, BatchTasks tasks, const RunLimits& limits,
                                        const RunOptions& options, BatchOutput& output) {
  CudaContext& cuda = *context_->cuda;
  const PlanTable& plans = PlansOf(program, options);
  RETURN_IF_ERROR(CopyIn(program, tasks, options, /*rooms=*/{}));
  absl::Status made = MakeGeometry(program, limits, plans, /*rooms=*/{});
  if (made.ok()) {
    RETURN_IF_ERROR(EndStage(Stage::kGeometry));
    made = geometry_.WaitForSizes();
  }
  const bool may_make_maps_on_cpu = options.may_make_maps_on_cpu && program.segments.size() == 1;
  if (IsOutOfMemory(made) && may_make_maps_on_cpu) {
    RETURN_IF_ERROR(MakeGeometryOnCpu(program, tasks, limits, plans, output));
  } else {
    RETURN_IF_ERROR(made);
  }
  TakeCounts(program, tasks, limits, output);
  if (!HasGoodSample(output)) {
    RETURN_IF_ERROR(cuda.stream.view().Synchronize());
    TakeStageTimes(Stage::kGeometry, output);
    return absl::OkStatus();
  }
  const int64_t num_voxels = geometry_.num_sites()[0];
  RETURN_IF_ERROR(CheckBatchVoxels(num_voxels, tasks.size(), limits));
  const std::vector<ConvPlan>& chosen = plans.ForVoxels(num_voxels);
  absl::Status ran = RunSteps(program, tasks, limits, options, chosen, output);
  const bool is_host_full = !context_->memory->refusal().ok();
  if (IsOutOfMemory(ran) && !is_host_full && may_make_maps_on_cpu && !output.geometry_on_cpu) {
    // The kernel maps' memory was sized for the most sites that the points could occupy. So it may have left too little
    // room for the features.
    RETURN_IF_ERROR(MakeGeometryOnCpu(program, tasks, limits, plans, output));
    ran = RunSteps(program, tasks, limits, options, chosen, output);
  }
  return ran;
}

absl::Status CudaExecutor::BeginGeometry(const Program& program, SiteRooms rooms) {
  std::vector<int32_t> rulebook_offsets;
  for (const ProgramRulebook& rulebook : program.rulebooks) {
    rulebook_offsets.push_back(rulebook.spec.geometry.NumOffsets());
  }
  return geometry_.Begin({.dimension = program.dimension,
                          .num_samples = static_cast<int32_t>(point_begin_.size()) - 1,
                          .num_levels = static_cast<int>(program.levels.size()),
                          .rulebook_offsets = rulebook_offsets,
                          .num_selected = sampling_.num_selected()},
                         std::move(rooms), *context_->cuda);
}

absl::Status CudaExecutor::MakeGeometry(const Program& program, const RunLimits& limits, const PlanTable& plans,
                                        SiteRooms rooms) {
  RETURN_IF_ERROR(BeginGeometry(program, std::move(rooms)));
  kernels::VoxelizeParams params = FixedVoxelizeParams(program, point_begin_);
  params.point_begin = points_.point_begin();
  params.axes = PointRows(program.voxelize, points_.points(), params.num_points);
  params.is_valid = points_.is_valid();
  RETURN_IF_ERROR(geometry_.SamplePoints(sampling_, points_.words(), MostPoints(point_begin_), &params));
  RETURN_IF_ERROR(EndStage(Stage::kSample));
  RETURN_IF_ERROR(geometry_.Voxelize(params, limits.max_voxels, VoxelOrderOf(limits)));
  RETURN_IF_ERROR(EndStage(Stage::kVoxelize));
  return MakeMaps(program, program.segments.front(), /*context=*/nullptr, {.plans = &plans}, geometry_);
}

absl::Status CudaExecutor::MakeLaterGeometry(const Program& program, const ProgramSegment& segment,
                                             const StepContext& context, const PlanTable& plans, BatchOutput& output) {
  geometry_.BeginNextSegment();
  RETURN_IF_ERROR(
      MakeMaps(program, segment, &context, {.plans = &plans, .num_voxels = geometry_.num_sites()[0]}, geometry_));
  RETURN_IF_ERROR(geometry_.WaitForSizes());
  RefuseBeyondLimits(geometry_, program.dimension, output);
  return absl::OkStatus();
}

absl::Status CudaExecutor::MakeGeometryOnCpu(const Program& program, BatchTasks tasks, const RunLimits& limits,
                                             const PlanTable& plans, BatchOutput& output) {
  CudaContext& cuda = *context_->cuda;
  if (!std::exchange(logged_cpu_fallback_, true)) {
    Log(LogLevel::kWarning, "maps that do not fit the GPU are made on the CPU, here for the first time",
        {{"device", context_->device}, {"points", point_begin_.back()}});
  }
  output.geometry_on_cpu = true;
  RETURN_IF_ERROR(cuda.stream.view().Synchronize());
  points_.ReleaseSweeps();
  cuda.ReleaseMemory();
  // This path is rare, so it keeps nothing for later batches except the context's `input`, until ReleaseHostMemory.
  HostPoints host_points(context_->memory.get());
  UploadedGeometry maker(context_->pool, context_->memory.get(), &geometry_);
  RETURN_IF_ERROR(host_points.Read(program.voxelize, tasks, point_begin_, *context_));
  kernels::VoxelizeParams params = FixedVoxelizeParams(program, point_begin_);
  params.point_begin = point_begin_.data();
  params.axes = PointRows(program.voxelize, host_points.points(), params.num_points);
  params.is_valid = host_points.is_valid();
  maker.on_host().SamplePoints(sampling_, &params);
  RETURN_IF_ERROR(EndStage(Stage::kSample));
  RETURN_IF_ERROR(maker.on_host().Voxelize(params, limits.max_voxels, VoxelOrderOf(limits)));

  RETURN_IF_ERROR(points_.CopyIn(program.voxelize, tasks, point_begin_, {.keeps_sweeps = false}, *context_));
  RETURN_IF_ERROR(BeginGeometry(program, /*rooms=*/{}));
  RETURN_IF_ERROR(EndStage(Stage::kVoxelize));
  // Makes only the rulebook forms that the plan for this number of voxels reads.
  const PlanTable wanted(program, plans.ForVoxels(maker.on_host().num_sites(0)));
  RETURN_IF_ERROR(MakeMaps(program, program.segments.front(), /*context=*/nullptr, {.plans = &wanted}, maker));
  for (const int level : program.key_levels) RETURN_IF_ERROR(geometry_.UploadKeys(level, maker.on_host()));
  RETURN_IF_ERROR(EndStage(Stage::kGeometry));
  return cuda.stream.view().Synchronize();
}

absl::Status CudaExecutor::RunSteps(const Program& program, BatchTasks tasks, const RunLimits& limits,
                                    const RunOptions& options, const std::vector<ConvPlan>& plans,
                                    BatchOutput& output) {
  CudaContext& cuda = *context_->cuda;
  GroupingCache groupings;
  std::vector<char*> buffer_data(program.buffers.size());
  BatchOutputs outputs(tasks, point_begin_, absl::MakeSpan(output.samples), context_->memory.get());
  outputs.SetTensors(program.tensors, TensorsByTask(program, tasks), program.dimension);
  RETURN_IF_ERROR(cuda.not_finite.Reserve(outputs.NotFiniteBytes()));
  outputs.SetNotFinite(cuda.not_finite.data());
  StepContext context{.execution = context_,
                      .device_geometry = &geometry_,
                      .groupings = &groupings,
                      .plans = &plans,
                      .num_sites = &geometry_.num_sites(),
                      .buffers = &program.buffers,
                      .buffer_data = &buffer_data,
                      .points = PointRows(program.voxelize, points_.points(), point_begin_.back()),
                      .point_begin = &point_begin_,
                      .device_point_begin = points_.point_begin(),
                      .ignore_label = limits.ignore_label,
                      .outputs = &outputs};
  const WantedOutputs wanted = WantedBy(program, tasks);
  const PlanTable& table = PlansOf(program, options);
  FeaturePass pass({.program = &program,
                    .wanted = wanted,
                    .context = &context,
                    .buffer_data = &buffer_data,
                    .geometry = &geometry_,
                    .step_ends = options.times_convs ? &step_ends_ : nullptr});
  cuda.gemm->set_allow_tf32(program.allow_tf32);
  cuda.gemm->set_deterministic(program.is_deterministic);
  for (const ProgramSegment& segment : program.segments) {
    if (segment.first_step > 0) RETURN_IF_ERROR(MakeLaterGeometry(program, segment, context, table, output));
    RETURN_IF_ERROR(pass.LayOut(segment));
    if (options.captures && geometry_.has_rooms()) {
      RETURN_IF_ERROR(RunCaptured(program, pass, table, output));
    } else {
      RETURN_IF_ERROR(pass.Run(static_cast<size_t>(segment.first_step), static_cast<size_t>(segment.end_step)));
    }
  }
  RETURN_IF_ERROR(EndStage(Stage::kHead));
  RETURN_IF_ERROR(geometry_.has_rooms() ? geometry_.WaitForSizes() : cuda.stream.view().Synchronize());
  KeepCaptured();
  if (options.times_convs) {
    output.conv_times.resize(program.convs.size());
    output.rulebook_sizes.resize(program.rulebooks.size());
    for (size_t i = 0; i < program.rulebooks.size(); ++i) {
      const kernels::PairTablesView rulebook = geometry_.rulebook(static_cast<int>(i));
      if (rulebook.in_pairs == nullptr) continue;  // only a rulebook in the form of pairs has counts per offset
      output.rulebook_sizes[i] = SizesOf(rulebook.offset_begin, rulebook.num_offsets);
    }
    for (const ProgramConv& conv : program.convs) {
      const auto step = static_cast<size_t>(conv.step);
      if (!wanted.Need(*program.steps[step])) continue;
      ASSIGN_OR_RETURN(const absl::Duration time, step_ends_[step + 1].Since(step_ends_[step]));
      output.conv_times[static_cast<size_t>(&conv - program.convs.data())] = time;
    }
  }
  if (geometry_.has_rooms()) {
    const int64_t num_voxels = geometry_.num_sites()[0];
    if (geometry_.overflowed() || &PlansOf(program, options).ForVoxels(num_voxels) != &plans) {
      return absl::OutOfRangeError("a forecast was wrong");
    }
    TakeCounts(program, tasks, limits, output);
  }
  TakeStageTimes(Stage::kHead, output);

  const StageTimer timer(Stage::kCopyOut, output.stages);
  outputs.TakeNotFinite();
  RETURN_IF_ERROR(outputs.Distribute());
  return outputs.ConvertTensors();
}

absl::Status CudaExecutor::RunCaptured(const Program& program, FeaturePass& pass, const PlanTable& plans,
                                       BatchOutput& output) {
  const size_t end = program.steps.size();
  const std::vector<StepRange> ranges = pass.CapturableRanges();
  if (ranges.empty()) return pass.Run(0, end);
  const CapturedBatches::Way way = captured_.Choose(KeyOf(pass.Shape(plans)));
  if (way == CapturedBatches::Way::kRun) return pass.Run(0, end);
  is_capturing_ = way == CapturedBatches::Way::kCapture;
  output.is_replay = !is_capturing_;
  size_t next = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    RETURN_IF_ERROR(pass.Run(next, ranges[i].begin));
    RETURN_IF_ERROR(pass.EnterHead(ranges[i]));
    next = ranges[i].end;
    if (output.is_replay) {
      RETURN_IF_ERROR(captured_.Parts()[i].work->Launch(context_->cuda->stream.view()));
    } else if (is_capturing_) {
      ASSIGN_OR_RETURN(is_capturing_, Capture(ranges[i], pass));
      if (!is_capturing_) captured_.Decline();
    } else {
      RETURN_IF_ERROR(pass.Launch(ranges[i]));
    }
  }
  return pass.Run(next, end);
}

absl::StatusOr<bool> CudaExecutor::Capture(const StepRange& steps, FeaturePass& pass) {
  const StreamView stream = context_->cuda->stream.view();
  auto work = CapturedWork::Capture(stream, [&] { return pass.Launch(steps); });
  if (work.ok()) {
    new_parts_.push_back({.steps = steps, .work = *std::move(work)});
    RETURN_IF_ERROR(new_parts_.back().work->Launch(stream));
    return true;
  }
  if (IsDeviceFailure(work.status())) return work.status();
  if (!std::exchange(logged_no_capture_, true)) {
    Log(LogLevel::kWarning, "a batch cannot be captured, and runs as it is; here for the first time",
        {{"device", context_->device}, {"error", std::string(work.status().message())}});
  }
  RETURN_IF_ERROR(pass.Launch(steps));
  return false;
}

void CudaExecutor::KeepCaptured() {
  if (is_capturing_) captured_.Keep(std::move(new_parts_));
  ForgetCaptured();
}

void CudaExecutor::ForgetCaptured() {
  is_capturing_ = false;
  new_parts_.clear();
}

absl::Status CudaExecutor::EndStage(Stage stage) {
  return context_->cuda->stage_ends[StageEnd(stage)].Record(context_->cuda->stream.view());
}

void CudaExecutor::TakeStageTimes(Stage last, BatchOutput& output) const {
  const auto& ends = context_->cuda->stage_ends;
  for (Stage stage = Stage::kCopyIn; stage <= last; stage = static_cast<Stage>(static_cast<int>(stage) + 1)) {
    if (stage == Stage::kSample && sampling_.is_empty()) continue;
    const absl::StatusOr<absl::Duration> duration = ends[StageEnd(stage)].Since(ends[StageEnd(stage) - 1]);
    if (duration.ok()) output.stages.push_back({stage, *duration});
  }
}

int64_t CudaExecutor::allocated_bytes() const {
  const CudaContext& cuda = *context_->cuda;
  return cuda.batch.capacity() + cuda.features.capacity() + cuda.gemm_workspace.bytes();
}

void CudaExecutor::ReleaseHostMemory() {
  CudaContext& cuda = *context_->cuda;
  // Any thread may call this, and CUDA frees memory by the calling thread's device.
  if (cuda.download.capacity() > kKeptDownloadBytes && cuda.MakeCurrent().ok()) cuda.download.Release();
  if (context_->memory->held_bytes() == 0) return;
  context_->input.Release();
  context_->memory->Settle();
}

}  // namespace voxserve
