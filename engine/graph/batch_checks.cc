#include "engine/graph/batch_checks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/graph/point_reader.h"
#include "engine/runtime/aligned_bytes.h"
#include "kernels/coordinate_key.h"

namespace voxserve {
namespace {

absl::Status TooManyVoxels(int64_t voxels, int64_t limit) {
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat("the cloud occupies ", voxels, " voxels; the model's limit is ", limit)),
      error_reason::kTooManyVoxels);
}

absl::Status BeyondLimits(int64_t sites, int32_t dimension) {
  const kernels::CoordinateKey limits(dimension);
  return WithReason(absl::InvalidArgumentError(absl::StrCat(
                        "a convolution asks ", sites, " times for sites outside ", limits.min_coordinate(), " to ",
                        limits.max_coordinate(), ", the limits of a coordinate in ", dimension, " dimensions")),
                    error_reason::kCoordinateLimits);
}

}  // namespace

absl::Status LayOutPoints(const Program& program, absl::Span<const SampleInput> inputs, BatchOutput& output,
                          std::vector<int64_t>& point_begin) {
  if (inputs.size() > static_cast<size_t>(kernels::kMaxSamples)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a batch of ", inputs.size(), " samples; the limit is ", kernels::kMaxSamples));
  }
  point_begin.assign(1, 0);
  for (size_t i = 0; i < inputs.size(); ++i) {
    output.samples[i].status = CheckInput(program.voxelize, inputs[i]);
    point_begin.push_back(point_begin.back() + (output.samples[i].status.ok() ? inputs[i].num_points() : 0));
  }
  return absl::OkStatus();
}

std::vector<OutputRequest> RequestsOf(absl::Span<const SampleInput> inputs, const std::vector<int64_t>& point_begin,
                                      BatchOutput& output) {
  std::vector<OutputRequest> requests;
  for (size_t i = 0; i < inputs.size(); ++i) {
    // A sample that failed has no points.
    const int64_t num_answers = point_begin[i] == point_begin[i + 1] ? 0 : inputs[i].num_answers();
    requests.push_back(
        {.return_scores = inputs[i].return_scores, .num_answers = num_answers, .output = &output.samples[i]});
  }
  return requests;
}

kernels::VoxelizeParams FixedVoxelizeParams(const Program& program) {
  const VoxelizeOp& op = program.voxelize;
  kernels::VoxelizeParams params{
      .dimension = program.dimension, .rounding = op.rounding, .origin = op.origin, .has_range = op.has_range};
  std::copy(op.voxel_size.begin(), op.voxel_size.end(), params.voxel_size);
  std::copy(op.range_min.begin(), op.range_min.end(), params.range_min);
  std::copy(op.range_max.begin(), op.range_max.end(), params.range_max);
  return params;
}

kernels::OutputCoordinatesParams FixedLevelParams(const CoordinateLevel& level) {
  const SiteRule& rule = level.from;
  kernels::OutputCoordinatesParams params{.rule = rule.rule, .geometry = rule.geometry};
  if (level.spatial_shape) params.out_shape = *level.spatial_shape;
  params.has_lower = rule.lower_bound.has_value();
  params.has_upper = rule.upper_bound.has_value();
  if (params.has_lower) params.lower = *rule.lower_bound;
  if (params.has_upper) params.upper = *rule.upper_bound;
  return params;
}

kernels::VoxelOrder VoxelOrderOf(const RunLimits& limits) {
  return limits.voxel_overflow == ModelConfig::VoxelOverflow::kNearestFirst ? kernels::VoxelOrder::kNearest
                                                                            : kernels::VoxelOrder::kFirstSeen;
}

kernels::SiteFilterParams FilterParams(const Program& program, int level, const StepContext* context) {
  const SiteFilter& filter = *program.levels[static_cast<size_t>(level)].filter;
  kernels::SiteFilterParams params{.lower = filter.lower, .upper = filter.upper, .threshold = filter.threshold};
  if (filter.score_node < 0) return params;
  const Tensor scores = context->At(program.scores[static_cast<size_t>(level)]);
  params.scores = scores.data;
  params.score_dtype = scores.dtype;
  params.scores_pitch = scores.pitch;
  return params;
}

absl::Status OutOfHostMemory() {
  return WithReason(absl::ResourceExhaustedError("the batch does not fit into the host's memory"),
                    error_reason::kOutOfMemory);
}

void TakeVoxelCounts(const BatchCounts& counted, const std::vector<int64_t>& point_begin, const RunLimits& limits,
                     BatchOutput& output) {
  for (size_t i = 0; i < output.samples.size(); ++i) {
    SampleOutput& sample = output.samples[i];
    if (!sample.status.ok()) continue;
    PointCounts& counts = sample.counts;
    counts.voxels = counted.sample_begin[i + 1] - counted.sample_begin[i];
    counts.invalid = counted.num_invalid[i];
    counts.out_of_range = counted.num_out_of_range[i];
    counts.dropped = counted.num_dropped_points[i];
    counts.used = point_begin[i + 1] - point_begin[i] - counts.invalid - counts.out_of_range - counts.dropped;
    if (counted.num_dropped_voxels[i] > 0 && limits.voxel_overflow == ModelConfig::VoxelOverflow::kReject) {
      sample.status = TooManyVoxels(counts.voxels + counted.num_dropped_voxels[i], limits.max_voxels);
    }
  }
}

void RefuseBeyondLimits(const BatchCounts& counted, int32_t dimension, BatchOutput& output) {
  for (size_t i = 0; i < output.samples.size(); ++i) {
    SampleOutput& sample = output.samples[i];
    const int64_t beyond = counted.num_beyond_limits[i];
    if (sample.status.ok() && beyond > 0) sample.status = BeyondLimits(beyond, dimension);
  }
}

absl::Status CheckBatchVoxels(int64_t num_voxels, size_t num_samples, const RunLimits& limits) {
  if (num_samples == 1 || limits.max_batch_voxels == 0 || num_voxels <= limits.max_batch_voxels) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat("the batch occupies ", num_voxels,
                                            " voxels; max_batch_voxels of the model is ", limits.max_batch_voxels));
}

std::vector<int64_t> SizesOf(const int64_t* offset_begin, int32_t num_offsets) {
  std::vector<int64_t> sizes;
  for (int32_t k = 0; k < num_offsets; ++k) sizes.push_back(offset_begin[k + 1] - offset_begin[k]);
  return sizes;
}

bool HasGoodSample(const BatchOutput& output) {
  return std::any_of(output.samples.begin(), output.samples.end(), [](const SampleOutput& s) { return s.status.ok(); });
}

bool WantsScores(absl::Span<const SampleInput> inputs) {
  return std::any_of(inputs.begin(), inputs.end(), [](const SampleInput& input) { return input.return_scores; });
}

void BufferPlaces::SetData(char* block, std::vector<char*>& buffer_data) const {
  for (size_t i = 0; i < buffers.size(); ++i) buffer_data[buffers[i]] = block + begin[i];
}

BufferPlaces PlaceBuffers(const Program& program, const ProgramSegment& segment, const std::vector<int64_t>& num_sites,
                          int64_t num_samples, int64_t num_points) {
  // First fit by first use: 60 buffers or so, so the square of it is nothing.
  BufferPlaces places;
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const int first_step = program.buffers[i].first_step;
    if (first_step >= segment.first_step && first_step < segment.end_step) places.buffers.push_back(i);
  }
  std::stable_sort(places.buffers.begin(), places.buffers.end(),
                   [&](size_t a, size_t b) { return program.buffers[a].first_step < program.buffers[b].first_step; });
  std::vector<int64_t> bytes(places.buffers.size());
  places.begin.assign(places.buffers.size(), 0);
  std::vector<size_t> placed;  // ascending by begin
  for (size_t i = 0; i < places.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[places.buffers[i]];
    const int64_t wanted = buffer.NumRows(num_sites, num_samples, num_points) * buffer.pitch * SizeOf(buffer.dtype);
    bytes[i] = AlignedBytes(wanted);
    int64_t at = 0;
    for (const size_t other : placed) {
      if (program.buffers[places.buffers[other]].last_step < buffer.first_step) continue;
      if (at + bytes[i] <= places.begin[other]) break;
      at = std::max(at, places.begin[other] + bytes[other]);
    }
    places.begin[i] = at;
    places.bytes = std::max(places.bytes, at + bytes[i]);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i,
                                   [&](size_t a, size_t b) { return places.begin[a] < places.begin[b]; }),
                  i);
  }
  return places;
}

int64_t BytesOfSamples(const Program& program, int64_t num_samples, bool on_cuda) {
  const std::vector<int64_t> no_sites(program.levels.size(), 0);
  const std::vector<int64_t> no_points(static_cast<size_t>(num_samples) + 1, 0);
  const std::vector<char*> no_memory(program.buffers.size());
  const StepContext context{
      .num_sites = &no_sites, .buffers = &program.buffers, .buffer_data = &no_memory, .point_begin = &no_points};
  int64_t bytes = 0;
  for (const ProgramSegment& segment : program.segments) {
    bytes += PlaceBuffers(program, segment, no_sites, num_samples, /*num_points=*/0).bytes;
    if (!on_cuda) continue;
    size_t scratch_bytes = 0;
    for (int i = segment.first_step; i < segment.end_step; ++i) {
      const Step& step = *program.steps[static_cast<size_t>(i)];
      if (step.has_scratch_of_samples()) scratch_bytes = std::max(scratch_bytes, step.ScratchBytes(context));
      bytes += step.OutputBytes(context);
    }
    bytes += AlignedBytes(static_cast<int64_t>(scratch_bytes));
  }
  return bytes;
}

}  // namespace voxserve
