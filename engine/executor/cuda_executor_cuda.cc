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
#include "engine/ops/output_collector.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/coordinates/check_capacities.h"

namespace voxserve {
namespace {

// Between batches a context keeps at most this much pinned memory for answers: the default limit of one message.
constexpr int64_t kKeptDownloadBytes = int64_t{64} << 20;

}  // namespace

BatchReport CudaExecutor::Run(const Program& program, BatchTasks tasks, const RunLimits& limits,
                              const RunOptions& options) {
  BatchReport output;
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
  new_batch_ = {};
  if (!absl::IsOutOfRange(output.status)) {
    captured_.Clear();
    context_->cuda->ReleaseMemory();
  }
  return output;
}

absl::Status CudaExecutor::RunBatch(const Program& program, BatchTasks tasks, const RunLimits& limits,
                                    const RunOptions& options, BatchReport& output) {
  RETURN_IF_ERROR(LayOutPoints(program, tasks, output, point_begin_));
  LayOutSampling(program, tasks, point_begin_, sampling_);
  if (const BatchCapacities capacities = ForecastCapacities(program, tasks, limits, options);
      !capacities.sites.empty()) {
    absl::Status ran = RunWithinCapacities(program, tasks, limits, options, capacities, output);
    const bool had_no_memory = IsOutOfMemory(ran) && context_->memory->refusal().ok();
    if (!absl::IsOutOfRange(ran) && !had_no_memory) return ran;
    if (had_no_memory) forecasts_.Of(program.id).HadNoMemory(point_begin_.back());
    RETURN_IF_ERROR(context_->cuda->stream.view().Synchronize());
    points_.ReleaseSweeps();
    new_batch_ = {};
    if (had_no_memory) captured_.Clear();
    output.ran_again = true;
    output.is_replay = false;
    output.voxel_capacity = 0;
  }
  RETURN_IF_ERROR(RunWithSizes(program, tasks, limits, options, output));
  if (output.geometry_on_cpu) {
    forecasts_.Of(program.id).HadNoMemory(point_begin_.back());
  } else if (point_begin_.back() > 0 && HasGoodSample(output) && !sampling_.restricts_network()) {
    LearnSizes(program);
  }
  return absl::OkStatus();
}

BatchCapacities CudaExecutor::ForecastCapacities(const Program& program, BatchTasks tasks, const RunLimits& limits,
                                                 const RunOptions& options) {
  const int64_t num_points = point_begin_.back();
  const SiteForecast* const forecast = forecasts_.Find(program.id);
  if (forecast == nullptr || !forecast->has_learned(num_points) || num_points == 0) return {};
  if (options.times_convs || program.levels.size() > kernels::kMostHeldLevels) return {};
  // No forecast knows how many sites are left if the network sees only the sampled points.
  if (sampling_.restricts_network()) return {};
  const PlanTable& plans = PlansOf(program, options);
  for (const RulebookForms& forms : plans.forms()) {
    if (forms.pairs) return {};
  }
  BatchCapacities capacities = forecast->CapacitiesFor(num_points);
  const auto num_samples = static_cast<int64_t>(point_begin_.size()) - 1;
  const auto most_voxels = static_cast<int64_t>(forecast->MostVoxels(num_points));
  if (!CheckBatchVoxels(most_voxels, static_cast<size_t>(num_samples), limits).ok()) return {};
  const auto within_limits = [&](int64_t voxels) {
    if (limits.max_voxels > 0) voxels = std::min(voxels, num_samples * limits.max_voxels);
    if (limits.max_batch_voxels > 0 && num_samples > 1) voxels = std::min(voxels, limits.max_batch_voxels);
    return voxels;
  };
  int64_t& voxels = capacities.sites.front();
  voxels = within_limits(std::min(voxels, num_points));
  // If batches of this size alternate between two plans, waiting for exact sizes costs less than a wrong forecast.
  constexpr double kSure = 0.1;
  const auto fewest_voxels = static_cast<int64_t>(forecast->FewestVoxels(num_points) * (1 - kSure));
  const std::vector<ConvPlan>& chosen = plans.ForVoxels(most_voxels);
  if (&chosen != &plans.ForVoxels(fewest_voxels) || &chosen != &plans.ForVoxels(voxels)) return {};
  for (const std::unique_ptr<Step>& step : program.steps) {
    if (step->NeedsSizes(chosen)) return {};
  }
  if (!options.captures) return capacities;
  capacities.points = num_points;
  capacities.upload_bytes = DevicePoints::MostUploadBytes(tasks, sampling_.is_empty() ? 0 : sampling_.words().size());
  capacities = capacity_cache_.Fit(program.id.value(), num_samples, capacities);
  capacities.sites.front() = within_limits(capacities.sites.front());
  return capacities;
}

absl::Status CudaExecutor::CopyIn(const Program& program, BatchTasks tasks, const RunOptions& options,
                                  const BatchCapacities& capacities) {
  CudaContext& cuda = *context_->cuda;
  for (const auto& [arena, expected] :
       {std::pair(&cuda.batch, options.expected.points), std::pair(&cuda.features, options.expected.features)}) {
    arena->Reset();
    arena->Reserve(expected);
  }
  RETURN_IF_ERROR(cuda.stage_ends[0].Record(cuda.stream.view()));
  const absl::Span<const int64_t> words = sampling_.is_empty() ? absl::Span<const int64_t>() : sampling_.words();
  RETURN_IF_ERROR(points_.CopyIn(program.voxelize, tasks, point_begin_,
                                 {.keeps_sweeps = true,
                                  .words = words,
                                  .point_capacity = capacities.points,
                                  .upload_capacity = capacities.upload_bytes},
                                 *context_));
  return EndStage(Stage::kCopyIn);
}

void CudaExecutor::TakeCounts(const Program& program, BatchTasks tasks, const RunLimits& limits, BatchReport& output) {
  TakeVoxelCounts(geometry_, point_begin_, limits, output);
  TakeSampledPoints(sampling_, geometry_, tasks, point_begin_, output);
  RefuseBeyondLimits(geometry_, program.dimension, output);
}

absl::Status CudaExecutor::RunWithinCapacities(const Program& program, BatchTasks tasks, const RunLimits& limits,
                                               const RunOptions& options, const BatchCapacities& capacities,
                                               BatchReport& output) {
  const PlanTable& plans = PlansOf(program, options);
  SiteForecast& forecast = forecasts_.Of(program.id);
  const int64_t num_points = point_begin_.back();
  const std::vector<ConvPlan>& chosen = plans.ForVoxels(static_cast<int64_t>(forecast.MostVoxels(num_points)));
  output.voxel_capacity = capacities.sites.front();
  RETURN_IF_ERROR(CopyIn(program, tasks, options, capacities));
  FeaturePass pass(PassOptions(program, tasks, limits, options, chosen, output));
  RETURN_IF_ERROR(pass.Begin());
  if (options.captures && MayCapture(pass.outputs())) {
    pass.SetPointCapacity(capacities.points);
    RETURN_IF_ERROR(RunCaptured(program, limits, plans, capacities, pass, output));
  } else {
    RETURN_IF_ERROR(QueueWithinCapacities(program, limits, plans, capacities, pass));
  }
  RETURN_IF_ERROR(geometry_.WaitForSizes());
  KeepCaptured();
  LearnSizes(program);  // also of a batch that did not fit, so that the next such batch fits
  if (geometry_.overflowed() || &plans.ForVoxels(geometry_.num_sites()[0]) != &chosen) {
    return absl::OutOfRangeError("a forecast was wrong");
  }
  TakeCounts(program, tasks, limits, output);
  return TakeOutputs(pass, output);
}

void CudaExecutor::LearnSizes(const Program& program) {
  const std::vector<int> behind_prunes = program.LevelsBehindPrunes();
  std::vector<int64_t> num_sites;
  if (geometry_.has_true_sizes()) {
    num_sites = geometry_.num_sites();
    if (geometry_.overflowed()) {
      for (const int level : behind_prunes) num_sites[static_cast<size_t>(level)] = SiteForecast::kUnknown;
    }
  }
  forecasts_.Of(program.id).Learn(point_begin_.back(), num_sites, geometry_.max_coordinate(), behind_prunes);
}

absl::Status CudaExecutor::QueueWithinCapacities(const Program& program, const RunLimits& limits,
                                                 const PlanTable& plans, const BatchCapacities& capacities,
                                                 FeaturePass& pass) {
  RETURN_IF_ERROR(MakeGeometry(program, limits, plans, capacities, pass.context().point_capacity()));
  RETURN_IF_ERROR(EndStage(Stage::kGeometry));
  for (const ProgramSegment& segment : program.segments) {
    if (segment.first_step > 0) RETURN_IF_ERROR(MakeLaterMaps(program, segment, pass.context(), plans));
    RETURN_IF_ERROR(pass.Run(segment));
  }
  RETURN_IF_ERROR(EndStage(Stage::kHead));
  return geometry_.QueueSizes();
}

bool CudaExecutor::MayCapture(const OutputCollector& outputs) const {
  const CudaContext& cuda = *context_->cuda;
  const bool is_in_one_block = cuda.batch.memory_id() != 0 && cuda.features.memory_id() != 0;
  return is_in_one_block && sampling_.is_empty() && outputs.AnswersAllPoints(point_begin_);
}

absl::Status CudaExecutor::RunCaptured(const Program& program, const RunLimits& limits, const PlanTable& plans,
                                       const BatchCapacities& capacities, FeaturePass& pass, BatchReport& output) {
  CudaContext& cuda = *context_->cuda;
  const auto queue = [&] { return QueueWithinCapacities(program, limits, plans, capacities, pass); };
  const auto key = [&] { return KeyOf(ShapeOf(program, limits, plans, capacities, pass)); };
  const DeviceArena::Mark copied_in = cuda.batch.Top();
  const CapturedBatches::Way way = captured_.Choose(key());
  if (way == CapturedBatches::Way::kReplay) {
    RETURN_IF_ERROR(TakeQueued(program, capacities, copied_in, captured_.Batch(), pass));
    output.is_replay = true;
    return captured_.Batch().work->Launch(cuda.stream.view());
  }
  RETURN_IF_ERROR(queue());
  if (way == CapturedBatches::Way::kRun || !MayCapture(pass.outputs())) return absl::OkStatus();
  // Captures the same launches once more, while the GPU runs them.
  CapturedBatch batch{.outputs = pass.outputs().queued(),
                      .batch_bytes = cuda.batch.most_bytes(),
                      .features_bytes = cuda.features.most_bytes()};
  cuda.batch.ReturnTo(copied_in);
  pass.outputs().SetQueued({});
  auto work = CapturedWork::Capture(cuda.stream.view(), queue);
  RETURN_IF_ERROR(TakeQueued(program, capacities, copied_in, batch, pass));
  if (work.ok()) {
    batch.work = *std::move(work);
    new_batch_ = std::move(batch);
    new_key_ = key();  // another one than before if memory grew
    return absl::OkStatus();
  }
  if (!std::exchange(logged_no_capture_, true)) {
    Log(LogLevel::kWarning, "a batch cannot be captured, and runs as it is; here for the first time",
        {{"device", context_->device}, {"error", std::string(work.status().message())}});
  }
  captured_.Decline();
  return absl::OkStatus();
}

absl::Status CudaExecutor::TakeQueued(const Program& program, const BatchCapacities& capacities,
                                      const DeviceArena::Mark& copied_in, const CapturedBatch& batch,
                                      FeaturePass& pass) {
  CudaContext& cuda = *context_->cuda;
  cuda.batch.ReturnTo(copied_in);
  geometry_.BeginReplay(ShapeOfSizes(program), capacities, cuda);
  RETURN_IF_ERROR(cuda.batch.Take(batch.batch_bytes - copied_in.taken).status());
  RETURN_IF_ERROR(cuda.features.Take(batch.features_bytes).status());
  pass.outputs().SetQueued(batch.outputs);
  return absl::OkStatus();
}

BatchShape CudaExecutor::ShapeOf(const Program& program, const RunLimits& limits, const PlanTable& plans,
                                 const BatchCapacities& capacities, const FeaturePass& pass) const {
  const CudaContext& cuda = *context_->cuda;
  BatchShape shape{.program = program.id.value(),
                   .plans = plans.id(),
                   .plan = plans.IndexOf(*pass.context().plans),
                   .num_samples = pass.context().num_samples(),
                   .ignore_label = limits.ignore_label,
                   .max_voxels = limits.max_voxels,
                   .voxel_order = static_cast<uint64_t>(VoxelOrderOf(limits)),
                   .capacities = capacities,
                   .needed_steps = pass.NeededSteps()};
  shape.memory = {cuda.batch.memory_id(), cuda.features.memory_id(), cuda.sizes.memory_id(), cuda.download.memory_id(),
                  cuda.not_finite.memory_id()};
  return shape;
}

void CudaExecutor::KeepCaptured() {
  if (new_batch_.work != nullptr) captured_.Keep(new_key_, std::move(new_batch_));
  new_batch_ = {};
}

absl::Status CudaExecutor::RunWithSizes(const Program& program, BatchTasks tasks, const RunLimits& limits,
                                        const RunOptions& options, BatchReport& output) {
  CudaContext& cuda = *context_->cuda;
  const PlanTable& plans = PlansOf(program, options);
  RETURN_IF_ERROR(CopyIn(program, tasks, options, /*capacities=*/{}));
  absl::Status made = MakeGeometry(program, limits, plans, /*capacities=*/{}, point_begin_.back());
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

DeviceSizes::Shape CudaExecutor::ShapeOfSizes(const Program& program) {
  rulebook_offsets_.clear();
  for (const ProgramRulebook& rulebook : program.rulebooks) {
    rulebook_offsets_.push_back(rulebook.spec.geometry.NumOffsets());
  }
  return {.dimension = program.dimension,
          .num_samples = static_cast<int32_t>(point_begin_.size()) - 1,
          .num_levels = static_cast<int>(program.levels.size()),
          .rulebook_offsets = rulebook_offsets_,
          .num_selected = sampling_.num_selected()};
}

absl::Status CudaExecutor::MakeGeometry(const Program& program, const RunLimits& limits, const PlanTable& plans,
                                        const BatchCapacities& capacities, int64_t num_points) {
  RETURN_IF_ERROR(geometry_.Begin(ShapeOfSizes(program), capacities, *context_->cuda));
  kernels::VoxelizeParams params = FixedVoxelizeParams(program, point_begin_);
  params.num_points = num_points;
  params.point_begin = points_.point_begin();
  params.axes = PointRows(program.voxelize, points_.points(), params.num_points);
  params.is_valid = points_.is_valid();
  if (!sampling_.is_empty()) {
    RETURN_IF_ERROR(geometry_.SamplePoints(sampling_, points_.words(), MostPoints(point_begin_), &params));
    RETURN_IF_ERROR(EndStage(Stage::kSample));
  }
  RETURN_IF_ERROR(geometry_.Voxelize(params, limits.max_voxels, VoxelOrderOf(limits)));
  RETURN_IF_ERROR(EndStage(Stage::kVoxelize));
  return MakeMaps(program, program.segments.front(), /*context=*/nullptr, {.plans = &plans}, geometry_);
}

absl::Status CudaExecutor::MakeLaterMaps(const Program& program, const ProgramSegment& segment,
                                         const StepContext& context, const PlanTable& plans) {
  geometry_.BeginNextSegment();
  return MakeMaps(program, segment, &context, {.plans = &plans, .num_voxels = geometry_.num_sites()[0]}, geometry_);
}

absl::Status CudaExecutor::MakeGeometryOnCpu(const Program& program, BatchTasks tasks, const RunLimits& limits,
                                             const PlanTable& plans, BatchReport& output) {
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
  if (!sampling_.is_empty()) RETURN_IF_ERROR(EndStage(Stage::kSample));
  RETURN_IF_ERROR(maker.on_host().Voxelize(params, limits.max_voxels, VoxelOrderOf(limits)));

  RETURN_IF_ERROR(points_.CopyIn(program.voxelize, tasks, point_begin_, {.keeps_sweeps = false}, *context_));
  RETURN_IF_ERROR(geometry_.Begin(ShapeOfSizes(program), /*capacities=*/{}, cuda));
  RETURN_IF_ERROR(EndStage(Stage::kVoxelize));
  // Makes only the rulebook forms that the plan for this number of voxels reads.
  const PlanTable wanted(program, plans.ForVoxels(maker.on_host().num_sites(0)));
  RETURN_IF_ERROR(MakeMaps(program, program.segments.front(), /*context=*/nullptr, {.plans = &wanted}, maker));
  for (const int level : program.key_levels) RETURN_IF_ERROR(geometry_.UploadKeys(level, maker.on_host()));
  RETURN_IF_ERROR(EndStage(Stage::kGeometry));
  return cuda.stream.view().Synchronize();
}

FeaturePass::Options CudaExecutor::PassOptions(const Program& program, BatchTasks tasks, const RunLimits& limits,
                                               const RunOptions& options, const std::vector<ConvPlan>& plans,
                                               BatchReport& output) {
  return {.program = &program,
          .tasks = tasks,
          .results = absl::MakeSpan(output.samples),
          .plans = &plans,
          .execution = context_,
          .geometry = &geometry_,
          .points = PointRows(program.voxelize, points_.points(), point_begin_.back()),
          .point_begin = &point_begin_,
          .device_point_begin = points_.point_begin(),
          .ignore_label = limits.ignore_label,
          .step_ends = options.times_convs ? &step_ends_ : nullptr};
}

absl::Status CudaExecutor::RunSteps(const Program& program, BatchTasks tasks, const RunLimits& limits,
                                    const RunOptions& options, const std::vector<ConvPlan>& plans,
                                    BatchReport& output) {
  FeaturePass pass(PassOptions(program, tasks, limits, options, plans, output));
  RETURN_IF_ERROR(pass.Begin());
  for (const ProgramSegment& segment : program.segments) {
    if (segment.first_step > 0) {
      RETURN_IF_ERROR(MakeLaterMaps(program, segment, pass.context(), PlansOf(program, options)));
      RETURN_IF_ERROR(geometry_.WaitForSizes());
      RefuseBeyondLimits(geometry_, program.dimension, output);
    }
    RETURN_IF_ERROR(pass.Run(segment));
  }
  RETURN_IF_ERROR(EndStage(Stage::kHead));
  RETURN_IF_ERROR(context_->cuda->stream.view().Synchronize());
  if (options.times_convs) RETURN_IF_ERROR(TakeConvTimes(program, pass, output));
  return TakeOutputs(pass, output);
}

absl::Status CudaExecutor::TakeConvTimes(const Program& program, const FeaturePass& pass, BatchReport& output) const {
  output.conv_times.resize(program.convs.size());
  output.rulebook_sizes.resize(program.rulebooks.size());
  for (size_t i = 0; i < program.rulebooks.size(); ++i) {
    const kernels::PairTablesView rulebook = geometry_.rulebook(static_cast<int>(i));
    if (rulebook.in_pairs == nullptr) continue;  // only a rulebook in the form of pairs has counts per offset
    output.rulebook_sizes[i] = SizesOf(rulebook.offset_begin, rulebook.num_offsets);
  }
  for (const ProgramConv& conv : program.convs) {
    const auto step = static_cast<size_t>(conv.step);
    if (!pass.IsNeeded(step)) continue;
    ASSIGN_OR_RETURN(const absl::Duration time, step_ends_[step + 1].Since(step_ends_[step]));
    output.conv_times[static_cast<size_t>(&conv - program.convs.data())] = time;
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::TakeOutputs(FeaturePass& pass, BatchReport& output) {
  TakeStageTimes(Stage::kHead, output);
  const StageTimer timer(Stage::kCopyOut, output.stages);
  OutputCollector& outputs = pass.outputs();
  outputs.TakeNotFinite();
  RETURN_IF_ERROR(outputs.Distribute());
  return outputs.ConvertTensors();
}

absl::Status CudaExecutor::EndStage(Stage stage) {
  return context_->cuda->stage_ends[StageEnd(stage)].Record(context_->cuda->stream.view());
}

void CudaExecutor::TakeStageTimes(Stage last, BatchReport& output) const {
  const auto& ends = context_->cuda->stage_ends;
  size_t begin = 0;
  for (Stage stage = Stage::kCopyIn; stage <= last; stage = static_cast<Stage>(static_cast<int>(stage) + 1)) {
    if (stage == Stage::kSample && sampling_.is_empty()) continue;
    const absl::StatusOr<absl::Duration> duration = ends[StageEnd(stage)].Since(ends[begin]);
    // In a captured batch nothing orders the ends of two stages but the work between them.
    if (duration.ok()) output.stages.push_back({stage, std::max(*duration, absl::ZeroDuration())});
    begin = StageEnd(stage);
  }
}

int64_t CudaExecutor::allocated_bytes() const {
  const CudaContext& cuda = *context_->cuda;
  return cuda.batch.capacity() + cuda.features.capacity() + cuda.gemm_workspace.bytes();
}

void CudaExecutor::ReleaseHostMemory() {
  CudaContext& cuda = *context_->cuda;
  // Any thread may call this, and CUDA frees memory by the calling thread's device.
  if (cuda.download.capacity() > kKeptDownloadBytes && cuda.MakeCurrent().ok()) {
    captured_.Clear();  // its graphs copy to the memory that is released
    cuda.download.Release();
  }
  if (context_->memory->held_bytes() == 0) return;
  context_->input.Release();
  context_->memory->Settle();
}

}  // namespace voxserve
