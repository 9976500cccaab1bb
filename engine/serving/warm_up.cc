#include "engine/serving/warm_up.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/tensor/point_cloud.h"

namespace voxserve {
namespace {

// Sizes between which the choice of kernels changes.
constexpr int64_t kNumPoints[] = {5'000, 40'000, 150'000};
constexpr double kPointsAVoxel = 1.3;

// x, y, z, ..., then the features, all 0.5.
absl::StatusOr<PointCloud> MakeGround(const VoxelizeOp& voxelize, int64_t num_points) {
  std::vector<std::string> fields = voxelize.axes;
  for (const InputFeature& feature : voxelize.features) {
    if (std::find(fields.begin(), fields.end(), feature.name) == fields.end()) fields.push_back(feature.name);
  }
  const double radius = std::sqrt(static_cast<double>(num_points) / kPointsAVoxel / 3.14159265);  // voxels
  std::mt19937 random(1);
  std::uniform_real_distribution<double> unit(0, 1);
  std::vector<float> values;
  values.reserve(static_cast<size_t>(num_points) * fields.size());
  for (int64_t i = 0; i < num_points; ++i) {
    const double r = radius * std::sqrt(unit(random)), angle = 2 * 3.14159265 * unit(random);
    const double place[] = {r * std::cos(angle), r * std::sin(angle), 2 * unit(random), 0};  // voxels
    for (size_t axis = 0; axis < voxelize.axes.size(); ++axis) {
      double value = place[axis] * voxelize.voxel_size[axis];
      if (voxelize.has_range) value += (voxelize.range_min[axis] + voxelize.range_max[axis]) / 2.0;
      values.push_back(static_cast<float>(value));
    }
    values.insert(values.end(), fields.size() - voxelize.axes.size(), 0.5f);
  }
  return PointCloud::FromFloats(fields, values.data(), static_cast<uint64_t>(num_points));
}

}  // namespace

absl::Status WarmUp(const Program& program, const PlanTable* plans, const RunLimits& limits, int64_t max_points,
                    SharedMemory& shared_memory, ExecutionContext& context) {
  const std::unique_ptr<Executor> executor = Executor::Create(&context);
  for (const int64_t num_points : kNumPoints) {
    ASSIGN_OR_RETURN(const PointCloud cloud, MakeGround(program.voxelize, std::min(num_points, max_points)));
    for (const bool return_scores : {false, program.has_scores}) {
      const SampleInput input{.cloud = &cloud, .return_scores = return_scores};
      RETURN_IF_ERROR(shared_memory
                          .Run({.plans = plans},
                               [&](const RunOptions& options) {
                                 return executor->Run(program, {&input, 1}, limits, options);
                               })
                          .status);
    }
  }
  return absl::OkStatus();
}

}  // namespace voxserve
