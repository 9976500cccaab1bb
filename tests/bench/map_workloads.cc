#include "tests/bench/map_workloads.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"
#include "engine/geometry/batch_geometry.h"
#include "kernels/conv/rulebook_search.h"

namespace voxserve::bench {
namespace {

using kernels::Axes;
using kernels::ConvGeometry;

constexpr ConvGeometry kSubmanifold = {.kernel_size = {3, 3, 3, 1}, .padding = {1, 1, 1, 0}};

// Adds a level that is made from the last one, and two maps that read the last level: its submanifold map and the map
// to the new level.
void AddLevel(const ConvGeometry& geometry, kernels::CoordinateRule rule, const Axes& out_shape,
              MapWorkload& workload) {
  const int last = workload.num_levels() - 1;
  workload.maps.push_back({.in_level = last, .out_level = last, .geometry = kSubmanifold});
  workload.maps.push_back({.in_level = last, .out_level = last + 1, .geometry = geometry});
  kernels::OutputCoordinatesParams params;
  params.rule = rule;
  params.geometry = geometry;
  params.out_shape = out_shape;
  params.num_samples = 1;
  workload.levels.push_back(params);
}

std::string ByAxis(const Axes& sizes) { return absl::StrFormat("%dx%dx%d", sizes[0], sizes[1], sizes[2]); }

}  // namespace

std::string NetworkMap::name() const {
  if (is_submanifold()) return absl::StrCat("submanifold ", ByAxis(geometry.kernel_size));
  return absl::StrCat(ByAxis(geometry.kernel_size), ", stride ", ByAxis(geometry.stride));
}

MapWorkload MinkUNetMaps(const support::RealScan& scan, float voxel_size_m) {
  constexpr ConvGeometry kHalving = {.kernel_size = {2, 2, 2, 1}, .stride = {2, 2, 2, 1}};
  MapWorkload workload{
      .name = absl::StrFormat("MinkUNet, %s, %g m", scan.name, voxel_size_m), .scan = scan, .axes = {"x", "y", "z"}};
  for (float& size : workload.voxelize.voxel_size) size = voxel_size_m;
  for (int level = 0; level < 4; ++level) AddLevel(kHalving, kernels::CoordinateRule::kFloor, {}, workload);
  workload.maps.push_back({.in_level = 4, .out_level = 4, .geometry = kSubmanifold});
  return workload;
}

MapWorkload CenterPointMaps(const support::RealScan& scan) {
  constexpr ConvGeometry kDown = {.kernel_size = {3, 3, 3, 1}, .stride = {2, 2, 2, 1}, .padding = {1, 1, 1, 0}};
  constexpr ConvGeometry kLastDown = {.kernel_size = {3, 3, 3, 1}, .stride = {2, 2, 2, 1}, .padding = {0, 1, 1, 0}};
  constexpr ConvGeometry kOut = {.kernel_size = {3, 1, 1, 1}, .stride = {2, 1, 1, 1}};
  MapWorkload workload{
      .name = absl::StrFormat("CenterPoint, %s, 0.1 x 0.1 x 0.15 m", scan.name), .scan = scan, .axes = {"z", "y", "x"}};
  workload.voxelize.rounding = kernels::VoxelRounding::kFloor;
  workload.voxelize.origin = kernels::VoxelOrigin::kRange;
  workload.voxelize.has_range = true;
  constexpr float kSize[] = {0.15F, 0.1F, 0.1F}, kMin[] = {-2, -75.2F, -75.2F}, kMax[] = {4, 75.2F, 75.2F};
  for (size_t axis = 0; axis < 3; ++axis) {
    workload.voxelize.voxel_size[axis] = kSize[axis];
    workload.voxelize.range_min[axis] = kMin[axis];
    workload.voxelize.range_max[axis] = kMax[axis];
  }
  Axes shape = {41, 1504, 1504, 1};  // the grid's shape, with one more cell in z, as in VoxelResBackBone8x
  for (const ConvGeometry& geometry : {kDown, kDown, kLastDown, kOut}) {
    shape = kernels::OutputShape(geometry, shape);
    AddLevel(geometry, kernels::CoordinateRule::kPadded, shape, workload);
  }
  return workload;
}

absl::StatusOr<CpuMaps> MapOnCpu(const MapWorkload& workload, kernels::ThreadPool& pool) {
  ASSIGN_OR_RETURN(const PointCloud cloud, support::ReadScan(workload.scan.format, workload.scan.path()));
  CpuMaps made;
  made.points.resize(3 * cloud.num_points());
  for (size_t axis = 0; axis < 3; ++axis) {
    const PointField* const field = cloud.FindField(workload.axes[axis]);
    if (field == nullptr) return absl::InvalidArgumentError(absl::StrCat("no field ", workload.axes[axis]));
    cloud.ReadField(*field, 0, cloud.num_points(), made.points.data() + axis, 3);
  }

  const int64_t point_begin[] = {0, made.num_points()};
  kernels::VoxelizeParams voxelize = workload.voxelize;
  voxelize.num_points = made.num_points();
  voxelize.num_samples = 1;
  voxelize.point_begin = point_begin;
  voxelize.axes = kernels::ConstRows::Packed(made.points.data(), kernels::DType::kFloat32, voxelize.num_points, 3);
  BatchGeometry geometry(&pool);
  RETURN_IF_ERROR(geometry.Voxelize(voxelize, /*max_voxels=*/0, kernels::VoxelOrder::kNearest));
  made.levels.emplace_back(geometry.keys(0).begin(), geometry.keys(0).end());
  for (int level = 1; level < workload.num_levels(); ++level) {
    RETURN_IF_ERROR(geometry.MakeLevel(level, level - 1, workload.levels[static_cast<size_t>(level) - 1]));
    made.levels.emplace_back(geometry.keys(level).begin(), geometry.keys(level).end());
  }
  for (const NetworkMap& map : workload.maps) {
    const std::vector<uint64_t>& in_keys = made.levels[static_cast<size_t>(map.in_level)];
    // Copies the keys: if inputs and outputs were the same vector, the search would mirror one half of the pairs, and
    // the symmetric sizes that benchmarks report would prove nothing.
    const std::vector<uint64_t> out_keys = made.levels[static_cast<size_t>(map.out_level)];
    kernels::Rulebook rulebook;
    kernels::cpu::SearchRulebook({.geometry = map.geometry,
                                  .in_keys = in_keys.data(),
                                  .num_in = static_cast<int64_t>(in_keys.size()),
                                  .out_keys = out_keys.data(),
                                  .num_out = static_cast<int64_t>(out_keys.size())},
                                 pool, rulebook);
    made.offset_begin.push_back(rulebook.offset_begin);
  }
  return made;
}

}  // namespace voxserve::bench
