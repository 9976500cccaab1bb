#include "engine/graph/executor.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "engine/graph/point_reader.h"
#include "kernels/coordinate_key.h"

namespace voxserve {
namespace {

// Appends a stage's time when it goes out of scope.
class StageTimer {
 public:
  StageTimer(std::string name, std::vector<StageTime>& stages)
      : name_(std::move(name)), stages_(stages), start_(std::chrono::steady_clock::now()) {}
  ~StageTimer() { stages_.push_back({std::move(name_), absl::FromChrono(std::chrono::steady_clock::now() - start_)}); }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  std::string name_;
  std::vector<StageTime>& stages_;
  std::chrono::steady_clock::time_point start_;
};

kernels::VoxelizeParams FixedVoxelizeParams(const Program& program) {
  const VoxelizeOp& op = program.voxelize;
  kernels::VoxelizeParams params{
      .dimension = program.dimension, .rounding = op.rounding, .origin = op.origin, .has_range = op.has_range};
  std::copy(op.voxel_size.begin(), op.voxel_size.end(), params.voxel_size);
  std::copy(op.range_min.begin(), op.range_min.end(), params.range_min);
  std::copy(op.range_max.begin(), op.range_max.end(), params.range_max);
  return params;
}

absl::Status TooManyVoxels(int64_t voxels, int64_t limit) {
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat("the cloud occupies ", voxels, " voxels; the model's limit is ", limit)),
      error_reason::kTooManyVoxels);
}

absl::Status BeyondLimits(int64_t sites, int32_t dimension) {
  const kernels::CoordinateKey limits(dimension);
  return WithReason(absl::InvalidArgumentError(absl::StrCat(
                        "a strided convolution asks ", sites, " times for sites outside ", limits.min_coordinate(),
                        " to ", limits.max_coordinate(), ", the limits of a coordinate in ", dimension, " dimensions")),
                    error_reason::kCoordinateLimits);
}

bool HasGoodSample(const BatchOutput& output) {
  return std::any_of(output.samples.begin(), output.samples.end(), [](const SampleOutput& s) { return s.status.ok(); });
}

}  // namespace

BatchOutput Executor::Run(const Program& program, absl::Span<const SampleInput> inputs, const RunLimits& limits) {
  BatchOutput output;
  output.samples.resize(inputs.size());
  const bool want_scores =
      std::any_of(inputs.begin(), inputs.end(), [](const SampleInput& input) { return input.return_scores; });
  const auto run = [&]() -> absl::Status {
    if (inputs.size() > static_cast<size_t>(kernels::kMaxSamples)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a batch of ", inputs.size(), " samples; the limit is ", kernels::kMaxSamples));
    }
    RETURN_IF_ERROR(CopyIn(program, inputs, output));
    RETURN_IF_ERROR(Voxelize(program, limits, output));
    if (!HasGoodSample(output)) return absl::OkStatus();  // a cloud that was refused costs no more than this
    RETURN_IF_ERROR(MakeGeometry(program, limits, output));
    if (!HasGoodSample(output)) return absl::OkStatus();
    RETURN_IF_ERROR(PlaceBuffers(program));
    const StepContext context = MakeStepContext(program, inputs, limits, output);
    for (const bool is_head : {false, true}) {
      const StageTimer timer(is_head ? "head" : "features", output.stages);
      for (const auto& step : program.steps) {  // those of the head stand last
        const bool is_wanted = step->is_for_labels || (want_scores && step->is_for_scores);
        if (is_wanted && step->is_head() == is_head) RETURN_IF_ERROR(step->Run(context));
      }
    }
    return absl::OkStatus();
  };
  output.status = run();
  if (!output.status.ok()) output.samples.clear();
  return output;
}

absl::Status Executor::CopyIn(const Program& program, absl::Span<const SampleInput> inputs, BatchOutput& output) {
  const StageTimer timer("copy_in", output.stages);
  point_begin_.assign(1, 0);
  for (size_t i = 0; i < inputs.size(); ++i) {
    output.samples[i].status = CheckFields(program.voxelize, *inputs[i].cloud);
    const int64_t num_points = output.samples[i].status.ok() ? static_cast<int64_t>(inputs[i].cloud->num_points()) : 0;
    point_begin_.push_back(point_begin_.back() + num_points);
  }
  const int64_t num_points = point_begin_.back();
  const int64_t columns = NumPointColumns(program.voxelize);
  RETURN_IF_ERROR(context_->input.Reserve(num_points * columns * static_cast<int64_t>(sizeof(float))));
  is_valid_.resize(static_cast<size_t>(num_points));
  auto* points = reinterpret_cast<float*>(context_->input.data());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (point_begin_[i] == point_begin_[i + 1]) continue;
    ReadPoints(program.voxelize, *inputs[i].cloud, points + point_begin_[i] * columns,
               is_valid_.data() + point_begin_[i], *context_->pool);
  }
  return absl::OkStatus();
}

absl::Status Executor::Voxelize(const Program& program, const RunLimits& limits, BatchOutput& output) {
  const StageTimer timer("voxelize", output.stages);
  kernels::VoxelizeParams params = FixedVoxelizeParams(program);
  params.num_points = point_begin_.back();
  params.num_samples = static_cast<int32_t>(output.samples.size());
  params.point_begin = point_begin_.data();
  params.axes = reinterpret_cast<const float*>(context_->input.data());
  params.axes_pitch = NumPointColumns(program.voxelize);
  params.is_valid = is_valid_.data();
  RETURN_IF_ERROR(geometry_.Voxelize(params, limits.max_voxels, *context_->pool));
  for (size_t i = 0; i < output.samples.size(); ++i) {
    SampleOutput& sample = output.samples[i];
    if (!sample.status.ok()) continue;
    PointCounts& counts = sample.counts;
    counts.voxels = geometry_.sample_begin[i + 1] - geometry_.sample_begin[i];
    counts.invalid = geometry_.num_invalid[i];
    counts.out_of_range = geometry_.num_out_of_range[i];
    counts.dropped = geometry_.num_dropped_points[i];
    counts.used = point_begin_[i + 1] - point_begin_[i] - counts.invalid - counts.out_of_range - counts.dropped;
    if (geometry_.num_dropped_voxels[i] > 0 && !limits.keep_nearest_voxels) {
      sample.status = TooManyVoxels(counts.voxels + geometry_.num_dropped_voxels[i], limits.max_voxels);
    }
  }
  return absl::OkStatus();
}

absl::Status Executor::MakeGeometry(const Program& program, const RunLimits& limits, BatchOutput& output) {
  const StageTimer timer("geometry", output.stages);
  const std::vector<CoordinateLevel>& levels = program.levels;
  for (size_t level = 1; level < levels.size(); ++level) {
    const SiteRule& rule = levels[level].from;
    kernels::OutputCoordinatesParams params{.rule = rule.rule, .geometry = rule.geometry};
    if (levels[level].spatial_shape) params.out_shape = *levels[level].spatial_shape;
    params.has_lower = rule.lower_bound.has_value();
    params.has_upper = rule.upper_bound.has_value();
    if (params.has_lower) params.lower = *rule.lower_bound;
    if (params.has_upper) params.upper = *rule.upper_bound;
    RETURN_IF_ERROR(geometry_.MakeLevel(static_cast<int>(level), levels[level].parent, params, *context_->pool));
  }
  for (size_t i = 0; i < output.samples.size(); ++i) {
    SampleOutput& sample = output.samples[i];
    const int64_t beyond = geometry_.num_beyond_limits[i];
    if (sample.status.ok() && beyond > 0) sample.status = BeyondLimits(beyond, program.dimension);
  }
  for (size_t i = 0; i < program.rulebooks.size(); ++i) {
    const auto index = static_cast<int>(i);
    const ProgramRulebook& rulebook = program.rulebooks[i];
    if (rulebook.swap_of >= 0) {
      geometry_.SwapRulebook(index, rulebook.swap_of, *context_->pool);
    } else if (geometry_.MakeRulebook(index, rulebook.spec.in_level, rulebook.spec.out_level, rulebook.spec.geometry,
                                      rulebook.map_search, limits.max_grid_bytes, *context_->pool)) {
      ++output.grid_fallbacks;
    }
  }
  return absl::OkStatus();
}

absl::Status Executor::PlaceBuffers(const Program& program) {
  // First fit by first use: 60 buffers or so, so the square of it is nothing.
  const size_t count = program.buffers.size();
  std::vector<int64_t> bytes(count);
  std::vector<size_t> order(count);
  for (size_t i = 0; i < count; ++i) {
    const Buffer& buffer = program.buffers[i];
    const int64_t wanted = geometry_.num_sites(buffer.level) * buffer.pitch * SizeOf(buffer.dtype);
    bytes[i] = (wanted + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
    order[i] = i;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return program.buffers[a].first_step < program.buffers[b].first_step; });
  buffer_begin_.assign(count, 0);
  int64_t total = 0;
  std::vector<size_t> placed;  // ascending by begin
  for (const size_t i : order) {
    int64_t begin = 0;
    for (const size_t other : placed) {
      if (program.buffers[other].last_step < program.buffers[i].first_step) continue;
      if (begin + bytes[i] <= buffer_begin_[other]) break;
      begin = std::max(begin, buffer_begin_[other] + bytes[other]);
    }
    buffer_begin_[i] = begin;
    total = std::max(total, begin + bytes[i]);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i,
                                   [&](size_t a, size_t b) { return buffer_begin_[a] < buffer_begin_[b]; }),
                  i);
  }
  return context_->features.Reserve(total);
}

StepContext Executor::MakeStepContext(const Program& program, absl::Span<const SampleInput> inputs,
                                      const RunLimits& limits, BatchOutput& output) const {
  StepContext context{.execution = context_,
                      .geometry = &geometry_,
                      .buffers = &program.buffers,
                      .buffer_begin = &buffer_begin_,
                      .points = reinterpret_cast<const float*>(context_->input.data()),
                      .points_pitch = NumPointColumns(program.voxelize),
                      .point_begin = &point_begin_,
                      .ignore_label = limits.ignore_label};
  for (size_t i = 0; i < inputs.size(); ++i) {
    context.requests.push_back({.return_scores = inputs[i].return_scores, .output = &output.samples[i]});
  }
  return context;
}

int64_t Executor::allocated_bytes() const {
  return geometry_.allocated_bytes() + context_->input.capacity() + context_->features.capacity() +
         static_cast<int64_t>(is_valid_.capacity());
}

}  // namespace voxserve
