#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "engine/executor/batch_checks.h"
#include "engine/executor/captured_work.h"
#include "engine/executor/cuda_batch.h"
#include "engine/executor/geometry_pass.h"
#include "engine/executor/host_points.h"
#include "engine/executor/point_reader.h"
#include "engine/executor/point_sample.h"
#include "engine/executor/stage_timer.h"
#include "engine/geometry/uploaded_geometry.h"
#include "engine/ops/cuda_output_collector.h"
#include "kernels/coordinates/check_capacities.h"

namespace voxserve {

CudaBatch::CudaBatch(const Program& program, BatchTasks tasks, const RunLimits& limits, const RunOptions& options,
                     CudaExecutorState& state, BatchReport& output)
    : program_(program),
      tasks_(tasks),
      limits_(limits),
      options_(options),
      plans_(PlansOf(program, options)),
      state_(state),
      output_(output),
      context_(state.context),
      geometry_(state.geometry),
      points_(state.points) {}

absl::Status CudaBatch::Run() {
  RETURN_IF_ERROR(LayOutPoints(program_, tasks_, output_, point_begin_));
  LayOutSampling(program_, tasks_, point_begin_, sampling_);
  capacities_ = ForecastCapacities();
  if (!capacities_.sites.empty()) {
    absl::Status ran = RunWithinCapacities();
    const bool had_no_memory = IsOutOfMemory(ran) && context_->memory->refusal().ok();
    if (!absl::IsOutOfRange(ran) && !had_no_memory) return ran;
    if (had_no_memory) state_.forecasts.Of(program_.id).HadNoMemory(point_begin_.back());
    RETURN_IF_ERROR(context_->cuda->stream.view().Synchronize());
    points_.ReleaseSweeps();
    DropCaptured();
    if (had_no_memory) state_.captured.Clear();
    capacities_ = {};
    output_.ran_again = true;
    output_.is_replay = false;
    output_.voxel_capacity = 0;
  }
  RETURN_IF_ERROR(RunWithSizes());
  if (output_.geometry_on_cpu) {
    state_.forecasts.Of(program_.id).HadNoMemory(point_begin_.back());
  } else if (point_begin_.back() > 0 && HasGoodSample(output_) && !sampling_.restricts_network()) {
    LearnSizes();
  }
  return absl::OkStatus();
}

BatchCapacities CudaBatch::ForecastCapacities() {
  const int64_t num_points = point_begin_.back();
  const SiteForecast* const forecast = state_.forecasts.Find(program_.id);
  if (forecast == nullptr || !forecast->has_learned(num_points) || num_points == 0) return {};
  if (options_.times_convs || program_.levels.size() > kernels::kMostHeldLevels) return {};
  // No forecast knows how many sites are left if the network sees only the sampled points.
  if (sampling_.restricts_network()) return {};
  for (const RulebookForms& forms : plans_.forms()) {
    if (forms.pairs) return {};
  }
  BatchCapacities capacities = forecast->CapacitiesFor(num_points);
  const auto num_samples = static_cast<int64_t>(point_begin_.size()) - 1;
  const auto most_voxels = static_cast<int64_t>(forecast->MostVoxels(num_points));
  if (!CheckBatchVoxels(most_voxels, static_cast<size_t>(num_samples), limits_).ok()) return {};
  const auto within_limits = [&](int64_t voxels) {
    if (limits_.max_voxels > 0) voxels = std::min(voxels, num_samples * limits_.max_voxels);
    if (limits_.max_batch_voxels > 0 && num_samples > 1) voxels = std::min(voxels, limits_.max_batch_voxels);
    return voxels;
  };
  int64_t& voxels = capacities.sites.front();
  voxels = within_limits(std::min(voxels, num_points));
  // If batches of this size alternate between two plans, waiting for exact sizes costs less than a wrong forecast.
  constexpr double kSure = 0.1;
  const auto fewest_voxels = static_cast<int64_t>(forecast->FewestVoxels(num_points) * (1 - kSure));
  const std::vector<ConvPlan>& chosen = plans_.ForVoxels(most_voxels);
  if (&chosen != &plans_.ForVoxels(fewest_voxels) || &chosen != &plans_.ForVoxels(voxels)) return {};
  for (const std::unique_ptr<Step>& step : program_.steps) {
    if (step->NeedsSizes(chosen)) return {};
  }
  if (!options_.captures) return capacities;
  capacities.points = num_points;
  capacities.upload_bytes = DevicePoints::MostUploadBytes(tasks_, sampling_.is_empty() ? 0 : sampling_.words().size());
  capacities = state_.capacity_cache.Fit(program_.id.value(), num_samples, capacities);
  capacities.sites.front() = within_limits(capacities.sites.front());
  return capacities;
}

absl::Status CudaBatch::CopyIn() {
  CudaContext& cuda = *context_->cuda;
  for (const auto& [arena, expected] :
       {std::pair(&cuda.batch, options_.expected.points), std::pair(&cuda.features, options_.expected.features)}) {
    arena->Reset();
    arena->Reserve(expected);
  }
  RETURN_IF_ERROR(cuda.stage_ends[0].Record(cuda.stream.view()));
  const absl::Span<const int64_t> words = sampling_.is_empty() ? absl::Span<const int64_t>() : sampling_.words();
  RETURN_IF_ERROR(points_.CopyIn(program_.voxelize, tasks_, point_begin_,
                                 {.keeps_sweeps = true,
                                  .words = words,
                                  .point_capacity = capacities_.points,
                                  .upload_capacity = capacities_.upload_bytes},
                                 *context_));
  return EndStage(Stage::kCopyIn);
}

void CudaBatch::TakeCounts() {
  TakeVoxelCounts(geometry_, point_begin_, limits_, output_);
  TakeSampledPoints(sampling_, geometry_, tasks_, point_begin_, output_);
  RefuseBeyondLimits(geometry_, program_.dimension, output_);
}

absl::Status CudaBatch::RunWithinCapacities() {
  SiteForecast& forecast = state_.forecasts.Of(program_.id);
  const int64_t num_points = point_begin_.back();
  const std::vector<ConvPlan>& chosen = plans_.ForVoxels(static_cast<int64_t>(forecast.MostVoxels(num_points)));
  output_.voxel_capacity = capacities_.sites.front();
  RETURN_IF_ERROR(CopyIn());
  FeaturePass pass(PassOptions(chosen));
  RETURN_IF_ERROR(pass.Begin());
  if (options_.captures && MayCapture(pass.outputs())) {
    pass.SetPointCapacity(capacities_.points);
    RETURN_IF_ERROR(RunCaptured(pass));
  } else {
    RETURN_IF_ERROR(QueueWithinCapacities(pass));
  }
  RETURN_IF_ERROR(geometry_.WaitForSizes());
  KeepCaptured();
  LearnSizes();  // also of a batch that did not fit, so that the next such batch fits
  if (geometry_.overflowed() || &plans_.ForVoxels(geometry_.num_sites()[0]) != &chosen) {
    return absl::OutOfRangeError("a forecast was wrong");
  }
  TakeCounts();
  return TakeOutputs(pass);
}

void CudaBatch::LearnSizes() {
  const std::vector<int> behind_prunes = program_.LevelsBehindPrunes();
  std::vector<int64_t> num_sites;
  if (geometry_.has_true_sizes()) {
    num_sites = geometry_.num_sites();
    if (geometry_.overflowed()) {
      for (const int level : behind_prunes) num_sites[static_cast<size_t>(level)] = SiteForecast::kUnknown;
    }
  }
  state_.forecasts.Of(program_.id).Learn(point_begin_.back(), num_sites, geometry_.max_coordinate(), behind_prunes);
}

absl::Status CudaBatch::QueueWithinCapacities(FeaturePass& pass) {
  RETURN_IF_ERROR(MakeGeometry(pass.context().point_capacity()));
  RETURN_IF_ERROR(EndStage(Stage::kGeometry));
  for (const ProgramSegment& segment : program_.segments) {
    if (segment.first_step > 0) RETURN_IF_ERROR(MakeLaterMaps(segment, pass.context()));
    RETURN_IF_ERROR(pass.Run(segment));
  }
  RETURN_IF_ERROR(EndStage(Stage::kHead));
  return geometry_.QueueSizes();
}

bool CudaBatch::MayCapture(const OutputCollector& outputs) const {
  const CudaContext& cuda = *context_->cuda;
  const bool is_in_one_block = cuda.batch.memory_id() != 0 && cuda.features.memory_id() != 0;
  return is_in_one_block && sampling_.is_empty() && outputs.AnswersAllPoints(point_begin_);
}

absl::Status CudaBatch::RunCaptured(FeaturePass& pass) {
  CudaContext& cuda = *context_->cuda;
  const auto queue = [&] { return QueueWithinCapacities(pass); };
  const auto key = [&] { return KeyOf(ShapeOf(pass)); };
  const DeviceArena::Mark copied_in = cuda.batch.Top();
  const CapturedBatches::Way way = state_.captured.Choose(key());
  if (way == CapturedBatches::Way::kReplay) {
    RETURN_IF_ERROR(TakeQueued(copied_in, state_.captured.Batch(), pass));
    output_.is_replay = true;
    return state_.captured.Batch().work->Launch(cuda.stream.view());
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
  RETURN_IF_ERROR(TakeQueued(copied_in, batch, pass));
  if (work.ok()) {
    batch.work = *std::move(work);
    new_batch_ = std::move(batch);
    new_key_ = key();  // another one than before if memory grew
    return absl::OkStatus();
  }
  if (!std::exchange(state_.logged_no_capture, true)) {
    Log(LogLevel::kWarning, "a batch cannot be captured, and runs as it is; here for the first time",
        {{"device", context_->device}, {"error", std::string(work.status().message())}});
  }
  state_.captured.Decline();
  return absl::OkStatus();
}

absl::Status CudaBatch::TakeQueued(const DeviceArena::Mark& copied_in, const CapturedBatch& batch, FeaturePass& pass) {
  CudaContext& cuda = *context_->cuda;
  cuda.batch.ReturnTo(copied_in);
  geometry_.BeginReplay(ShapeOfSizes(), capacities_, cuda);
  RETURN_IF_ERROR(cuda.batch.Take(batch.batch_bytes - copied_in.taken).status());
  RETURN_IF_ERROR(cuda.features.Take(batch.features_bytes).status());
  pass.outputs().SetQueued(batch.outputs);
  return absl::OkStatus();
}

BatchShape CudaBatch::ShapeOf(const FeaturePass& pass) const {
  const CudaContext& cuda = *context_->cuda;
  BatchShape shape{.program = program_.id.value(),
                   .plans = plans_.id(),
                   .plan = plans_.IndexOf(*pass.context().plans),
                   .num_samples = pass.context().num_samples(),
                   .ignore_label = limits_.ignore_label,
                   .max_voxels = limits_.max_voxels,
                   .voxel_order = static_cast<uint64_t>(VoxelOrderOf(limits_)),
                   .capacities = capacities_,
                   .needed_steps = pass.NeededSteps()};
  shape.memory = {cuda.batch.memory_id(), cuda.features.memory_id(), cuda.sizes.memory_id(), cuda.download.memory_id(),
                  cuda.not_finite.memory_id()};
  return shape;
}

void CudaBatch::KeepCaptured() {
  if (new_batch_.work != nullptr) state_.captured.Keep(new_key_, std::move(new_batch_));
  new_batch_ = {};
}

absl::Status CudaBatch::RunWithSizes() {
  CudaContext& cuda = *context_->cuda;
  RETURN_IF_ERROR(CopyIn());
  absl::Status made = MakeGeometry(point_begin_.back());
  if (made.ok()) {
    RETURN_IF_ERROR(EndStage(Stage::kGeometry));
    made = geometry_.WaitForSizes();
  }
  const bool may_make_maps_on_cpu = options_.may_make_maps_on_cpu && program_.segments.size() == 1;
  if (IsOutOfMemory(made) && may_make_maps_on_cpu) {
    RETURN_IF_ERROR(MakeGeometryOnCpu());
  } else {
    RETURN_IF_ERROR(made);
  }
  TakeCounts();
  if (!HasGoodSample(output_)) {
    RETURN_IF_ERROR(cuda.stream.view().Synchronize());
    TakeStageTimes(Stage::kGeometry);
    return absl::OkStatus();
  }
  const int64_t num_voxels = geometry_.num_sites()[0];
  RETURN_IF_ERROR(CheckBatchVoxels(num_voxels, tasks_.size(), limits_));
  const std::vector<ConvPlan>& chosen = plans_.ForVoxels(num_voxels);
  absl::Status ran = RunSteps(chosen);
  const bool is_host_full = !context_->memory->refusal().ok();
  if (IsOutOfMemory(ran) && !is_host_full && may_make_maps_on_cpu && !output_.geometry_on_cpu) {
    // The kernel maps' memory was sized for the most sites that the points could occupy. So it may have left too little
    // room for the features.
    RETURN_IF_ERROR(MakeGeometryOnCpu());
    ran = RunSteps(chosen);
  }
  return ran;
}

DeviceSizes::Shape CudaBatch::ShapeOfSizes() {
  rulebook_offsets_.clear();
  for (const ProgramRulebook& rulebook : program_.rulebooks) {
    rulebook_offsets_.push_back(rulebook.spec.geometry.NumOffsets());
  }
  return {.dimension = program_.dimension,
          .num_samples = static_cast<int32_t>(point_begin_.size()) - 1,
          .num_levels = static_cast<int>(program_.levels.size()),
          .rulebook_offsets = rulebook_offsets_,
          .num_selected = sampling_.num_selected()};
}

absl::Status CudaBatch::MakeGeometry(int64_t num_points) {
  RETURN_IF_ERROR(geometry_.Begin(ShapeOfSizes(), capacities_, *context_->cuda));
  kernels::VoxelizeParams params = FixedVoxelizeParams(program_, point_begin_);
  params.num_points = num_points;
  params.point_begin = points_.point_begin();
  params.axes = PointRows(program_.voxelize, points_.points(), params.num_points);
  params.is_valid = points_.is_valid();
  if (!sampling_.is_empty()) {
    RETURN_IF_ERROR(geometry_.SamplePoints(sampling_, points_.words(), MostPoints(point_begin_), &params));
    RETURN_IF_ERROR(EndStage(Stage::kSample));
  }
  RETURN_IF_ERROR(geometry_.Voxelize(params, limits_.max_voxels, VoxelOrderOf(limits_)));
  RETURN_IF_ERROR(EndStage(Stage::kVoxelize));
  return MakeMaps(program_, program_.segments.front(), /*context=*/nullptr, {.plans = &plans_}, geometry_);
}

absl::Status CudaBatch::MakeLaterMaps(const ProgramSegment& segment, const StepContext& context) {
  geometry_.BeginNextSegment();
  return MakeMaps(program_, segment, &context, {.plans = &plans_, .num_voxels = geometry_.num_sites()[0]}, geometry_);
}

absl::Status CudaBatch::MakeGeometryOnCpu() {
  CudaContext& cuda = *context_->cuda;
  if (!std::exchange(state_.logged_cpu_fallback, true)) {
    Log(LogLevel::kWarning, "maps that do not fit the GPU are made on the CPU, here for the first time",
        {{"device", context_->device}, {"points", point_begin_.back()}});
  }
  output_.geometry_on_cpu = true;
  RETURN_IF_ERROR(cuda.stream.view().Synchronize());
  points_.ReleaseSweeps();
  cuda.ReleaseMemory();
  // This path is rare, so it keeps nothing for later batches except the context's `input`, until ReleaseHostMemory.
  HostPoints host_points(context_->memory.get());
  UploadedGeometry maker(context_->pool, context_->memory.get(), &geometry_);
  RETURN_IF_ERROR(host_points.Read(program_.voxelize, tasks_, point_begin_, *context_));
  kernels::VoxelizeParams params = FixedVoxelizeParams(program_, point_begin_);
  params.point_begin = point_begin_.data();
  params.axes = PointRows(program_.voxelize, host_points.points(), params.num_points);
  params.is_valid = host_points.is_valid();
  maker.on_host().SamplePoints(sampling_, &params);
  if (!sampling_.is_empty()) RETURN_IF_ERROR(EndStage(Stage::kSample));
  RETURN_IF_ERROR(maker.on_host().Voxelize(params, limits_.max_voxels, VoxelOrderOf(limits_)));

  RETURN_IF_ERROR(points_.CopyIn(program_.voxelize, tasks_, point_begin_, {.keeps_sweeps = false}, *context_));
  RETURN_IF_ERROR(geometry_.Begin(ShapeOfSizes(), capacities_, cuda));
  RETURN_IF_ERROR(EndStage(Stage::kVoxelize));
  // Makes only the rulebook forms that the plan for this number of voxels reads.
  const PlanTable wanted(program_, plans_.ForVoxels(maker.on_host().num_sites(0)));
  RETURN_IF_ERROR(MakeMaps(program_, program_.segments.front(), /*context=*/nullptr, {.plans = &wanted}, maker));
  for (const int level : program_.key_levels) RETURN_IF_ERROR(geometry_.UploadKeys(level, maker.on_host()));
  RETURN_IF_ERROR(EndStage(Stage::kGeometry));
  return cuda.stream.view().Synchronize();
}

FeaturePass::Options CudaBatch::PassOptions(const std::vector<ConvPlan>& chosen) {
  return {.program = &program_,
          .tasks = tasks_,
          .results = absl::MakeSpan(output_.samples),
          .plans = &chosen,
          .execution = context_,
          .geometry = &geometry_,
          .points = PointRows(program_.voxelize, points_.points(), point_begin_.back()),
          .point_begin = &point_begin_,
          .device_point_begin = points_.point_begin(),
          .ignore_label = limits_.ignore_label,
          .step_ends = options_.times_convs ? &state_.step_ends : nullptr};
}

absl::Status CudaBatch::RunSteps(const std::vector<ConvPlan>& chosen) {
  FeaturePass pass(PassOptions(chosen));
  RETURN_IF_ERROR(pass.Begin());
  for (const ProgramSegment& segment : program_.segments) {
    if (segment.first_step > 0) {
      RETURN_IF_ERROR(MakeLaterMaps(segment, pass.context()));
      RETURN_IF_ERROR(geometry_.WaitForSizes());
      RefuseBeyondLimits(geometry_, program_.dimension, output_);
    }
    RETURN_IF_ERROR(pass.Run(segment));
  }
  RETURN_IF_ERROR(EndStage(Stage::kHead));
  RETURN_IF_ERROR(context_->cuda->stream.view().Synchronize());
  if (options_.times_convs) RETURN_IF_ERROR(TakeConvTimes(pass));
  return TakeOutputs(pass);
}

absl::Status CudaBatch::TakeConvTimes(const FeaturePass& pass) const {
  output_.conv_times.resize(program_.convs.size());
  output_.rulebook_sizes.resize(program_.rulebooks.size());
  for (size_t i = 0; i < program_.rulebooks.size(); ++i) {
    const kernels::PairTablesView rulebook = geometry_.rulebook(static_cast<int>(i));
    if (rulebook.in_pairs == nullptr) continue;  // only a rulebook in the form of pairs has counts per offset
    output_.rulebook_sizes[i] = SizesOf(rulebook.offset_begin, rulebook.num_offsets);
  }
  for (const ProgramConv& conv : program_.convs) {
    const auto step = static_cast<size_t>(conv.step);
    if (!pass.IsNeeded(step)) continue;
    ASSIGN_OR_RETURN(const absl::Duration time, state_.step_ends[step + 1].Since(state_.step_ends[step]));
    output_.conv_times[static_cast<size_t>(&conv - program_.convs.data())] = time;
  }
  return absl::OkStatus();
}

absl::Status CudaBatch::TakeOutputs(FeaturePass& pass) {
  TakeStageTimes(Stage::kHead);
  const StageTimer timer(Stage::kCopyOut, output_.stages);
  CudaOutputCollector& outputs = pass.outputs();
  outputs.TakeNotFinite();
  RETURN_IF_ERROR(outputs.Distribute());
  return outputs.ConvertTensors();
}

absl::Status CudaBatch::EndStage(Stage stage) {
  return context_->cuda->stage_ends[StageEnd(stage)].Record(context_->cuda->stream.view());
}

void CudaBatch::TakeStageTimes(Stage last) const {
  const auto& ends = context_->cuda->stage_ends;
  size_t begin = 0;
  for (Stage stage = Stage::kCopyIn; stage <= last; stage = static_cast<Stage>(static_cast<int>(stage) + 1)) {
    if (stage == Stage::kSample && sampling_.is_empty()) continue;
    const absl::StatusOr<absl::Duration> duration = ends[StageEnd(stage)].Since(ends[begin]);
    // In a captured batch nothing orders the ends of two stages but the work between them.
    if (duration.ok()) output_.stages.push_back({stage, std::max(*duration, absl::ZeroDuration())});
    begin = StageEnd(stage);
  }
}

}  // namespace voxserve
