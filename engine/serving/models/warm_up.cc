#include "engine/serving/models/warm_up.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "engine/base/steady_time.h"
#include "engine/executor/point_sample.h"
#include "engine/runtime/cuda_status.h"
#include "engine/tensor/point_cloud.h"
#include "kernels/conv/gemm_warm_up.h"

namespace voxserve {
namespace {

// Sizes of the warm-up clouds, the largest first, so that memory is allocated once. Each is a little below a power of
// two or the half octave between two, since batches of half an octave share capacities (capacity_cache.h): a smaller
// scan then fits the capacities that were captured.
constexpr int64_t kNumPoints[] = {262'000, 185'000, 131'000, 92'600, 65'500, 46'300,
                                  32'700,  23'100,  16'300,  11'500, 8'100,  4'000};

// The number of sampled points in runs with a sample. The choice of kernels depends on the cloud's size, not on this
// number.
constexpr uint64_t kNumSampled = 64;

// A size runs at most this many times until its batch is a replay: it takes memory, runs as a new shape, is captured
// and replayed. Once more, in case it outgrows its capacities.
constexpr int kMostRunsUntilReplay = 5;

// The device memory for the matrix products of LoadKernels. Products that need more memory are left out.
constexpr int64_t kProductBytes = int64_t{256} << 20;

// The simulated sensor. Angles in radians, lengths in metres.
constexpr int kNumBeams = 64;
constexpr double kLowestBeam = -0.43, kHighestBeam = 0.035;
constexpr double kHeight = 1.73, kRange = 80, kNoise = 0.02;
constexpr double kPi = 3.14159265358979;

// Returns how far a beam sees: to the ground, or to walls that are near in some directions and far in others.
double DistanceOf(double elevation, double azimuth) {
  const double ground = elevation < 0 ? kHeight / std::tan(-elevation) : std::numeric_limits<double>::infinity();
  const double walls = 7 + 45 * std::pow(std::sin(2.5 * azimuth), 2) + 3 * std::sin(23 * azimuth);
  return std::min({ground, walls, kRange});
}

// Makes a cloud with the program's axes (x, y, z, ...) and features. All features are 0.5.
absl::StatusOr<PointCloud> MakeStreet(const VoxelizeOp& voxelize, int64_t num_points) {
  std::vector<std::string> fields = voxelize.axes;
  for (const InputFeature& feature : voxelize.features) {
    if (std::find(fields.begin(), fields.end(), feature.name) == fields.end()) fields.push_back(feature.name);
  }
  std::mt19937 random(1);
  std::uniform_real_distribution<double> noise(-kNoise, kNoise);
  std::vector<float> values;
  values.reserve(static_cast<size_t>(num_points) * fields.size());
  for (int64_t i = 0; i < num_points; ++i) {
    const double beam = static_cast<double>(i % kNumBeams) / (kNumBeams - 1);
    const double elevation = kLowestBeam + beam * (kHighestBeam - kLowestBeam);
    const double azimuth = 2 * kPi * static_cast<double>(i) / static_cast<double>(num_points);
    const double distance = DistanceOf(elevation, azimuth) + noise(random);
    const double place[] = {distance * std::cos(azimuth), distance * std::sin(azimuth), distance * std::tan(elevation),
                            0};
    for (size_t axis = 0; axis < voxelize.axes.size(); ++axis) {
      double value = place[axis];
      if (voxelize.has_range) value += (voxelize.range_min[axis] + voxelize.range_max[axis]) / 2.0;
      values.push_back(static_cast<float>(value));
    }
    values.insert(values.end(), fields.size() - voxelize.axes.size(), 0.5f);
  }
  return PointCloud::FromFloats(fields, values.data(), static_cast<uint64_t>(num_points));
}

// One run of the program on a cloud. is_typical: the run takes as much memory as usual requests.
struct WarmUpRun {
  InferTask task;
  bool is_typical = true;
};

// Returns a run with scores, then one with the default outputs. If the program has both tensors and labels or boxes, a
// run with all tensors comes first. It is not typical: usual requests do not ask for tensors, so they take less memory.
std::vector<WarmUpRun> RunsOf(const Program& program, const PointCloud& cloud) {
  std::vector<WarmUpRun> runs;
  if (!program.tensors.empty() && (program.has_labels || program.has_boxes)) {
    InferTask with_tensors{.cloud = cloud, .tensor_set = AllTensors(program.tensors.size())};
    runs.push_back({.task = std::move(with_tensors), .is_typical = false});
  }
  runs.push_back({.task = {.cloud = cloud, .return_scores = program.has_scores}});
  runs.push_back({.task = {.cloud = cloud}});
  return runs;
}

// Runs each cloud until its batch has been captured and is a replay, if it can be captured. All clouds have run before,
// since the capacities of a size follow from all sizes of its octave (site_forecast.h).
absl::Status CaptureSizes(const Program& program, const RunOptions& options, const RunLimits& limits,
                          const std::vector<PointCloud>& clouds, DeviceArbiter& arbiter, Executor& executor) {
  for (const PointCloud& cloud : clouds) {
    const InferTask task{.cloud = cloud};
    for (int i = 0; i < kMostRunsUntilReplay; ++i) {
      const BatchReport output = arbiter.TryOnce(
          options, [&](const RunOptions& allowed) { return executor.Run(program, task, limits, allowed); });
      if (IsOutOfMemory(output.status)) break;
      RETURN_IF_ERROR(output.status);
      const bool needs_sizes = output.voxel_capacity == 0 && !output.ran_again;  // on the host: it is never captured
      if (output.is_replay || needs_sizes) break;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadKernels([[maybe_unused]] const Program& program, [[maybe_unused]] ExecutionContext& context) {
  if constexpr (kernels::kHasCuda) {
    if (context.cuda == nullptr) return absl::OkStatus();
    CudaContext& cuda = *context.cuda;
    RETURN_IF_ERROR(cuda.MakeCurrent());
    cuda.features.Reset();
    ASSIGN_OR_RETURN(char* memory, cuda.features.Take(kProductBytes));
    ASSIGN_OR_RETURN(kernels::cuda::Gemm* const gemm, cuda.ReadyGemm());
    gemm->set_allow_tf32(program.allow_tf32);
    gemm->set_deterministic(program.is_deterministic);
    std::set<std::tuple<kernels::DType, int32_t, int32_t, int32_t>> seen;
    for (const ProgramConv& conv : program.convs) {
      const int32_t num_offsets = program.rulebooks[static_cast<size_t>(conv.rulebook)].spec.geometry.NumOffsets();
      if (!seen.insert({conv.dtype, conv.in_channels, conv.out_channels, num_offsets}).second) continue;
      RETURN_IF_CUDA_ERROR(kernels::cuda::WarmUpGemm({.dtype = conv.dtype,
                                                      .in_channels = conv.in_channels,
                                                      .out_channels = conv.out_channels,
                                                      .max_count = num_offsets,
                                                      .max_rows = kNumPoints[0],
                                                      .memory = memory,
                                                      .memory_bytes = kProductBytes},
                                                     *gemm));
    }
    return cuda.stream.view().Synchronize();
  }
  return absl::OkStatus();
}

absl::Status WarmUp(const Program& program, const RunOptions& options, const RunLimits& limits, int64_t max_points,
                    DeviceArbiter& arbiter, Executor& executor, MemoryModel& memory, LatencyFit* latency) {
  std::vector<PointCloud> clouds;
  for (const int64_t num_points : kNumPoints) {
    ASSIGN_OR_RETURN(PointCloud cloud, MakeStreet(program.voxelize, std::min(num_points, max_points)));
    clouds.push_back(std::move(cloud));
  }
  const RunOptions uncaptured{.plans = options.plans};
  absl::Status first_failure;
  for (const PointCloud& cloud : clouds) {
    BatchReport output;
    absl::Duration time;
    for (const auto& [task, is_typical] : RunsOf(program, cloud)) {
      output = arbiter.TryOnce(uncaptured, [&, &task = task](const RunOptions& allowed) {
        const absl::Time start = SteadyNow();
        BatchReport ran = executor.Run(program, task, limits, allowed);
        time = SteadyNow() - start;
        return ran;
      });
      first_failure.Update(output.status);
      if (!output.status.ok() && (is_typical || !IsOutOfMemory(output.status))) break;
      if (!is_typical || !output.samples[0].status.ok()) continue;  // the cloud may have too many voxels for the model
      memory.Observe(static_cast<int64_t>(cloud.num_points()),
                     std::max(output.samples[0].counts.voxels, output.voxel_capacity), output.bytes);
    }
    if (IsOutOfMemory(output.status)) continue;
    RETURN_IF_ERROR(output.status);
    // Requests may ask for a sample. The network sees only the sampled points here, since it has already run on the
    // whole cloud.
    const FarthestPoints few{.num_points = std::min(kNumSampled, uint64_t{cloud.num_points()}),
                             .restricts_network = true};
    const InferTask sampled{.cloud = cloud, .sample = few};
    if (CheckSample(program.voxelize, sampled).ok()) {
      const BatchReport ran = arbiter.TryOnce(
          uncaptured, [&](const RunOptions& allowed) { return executor.Run(program, sampled, limits, allowed); });
      first_failure.Update(ran.status);
      if (!IsOutOfMemory(ran.status)) RETURN_IF_ERROR(ran.status);
    }
    if (latency == nullptr || !output.samples[0].status.ok()) continue;
    // Learns only from the last run of this size, since an earlier one may have loaded code.
    latency->Observe(
        {.points = static_cast<int64_t>(cloud.num_points()), .voxels = output.samples[0].counts.voxels, .requests = 1},
        time);
  }
  if (options.captures) first_failure.Update(CaptureSizes(program, options, limits, clouds, arbiter, executor));
  return first_failure;
}

}  // namespace voxserve
