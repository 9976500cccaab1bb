#pragma once

// Describes the levels and kernel maps of a network on a real scan, for benchmarks of the kernels that make them. A
// level is the set of occupied sites at one stride. A kernel map says which input rows each output row of a convolution
// reads. MapOnCpu computes the CPU's results, with which the benchmarks compare every result of a GPU.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/coordinates/conv_geometry.h"
#include "kernels/coordinates/output_coordinates.h"
#include "kernels/core/thread_pool.h"
#include "kernels/points/voxelize.h"
#include "tests/support/real_scans.h"

namespace voxserve::bench {

// The kernel map of a convolution. Several layers may share one map.
struct NetworkMap {
  int in_level = 0;
  int out_level = 0;
  kernels::ConvGeometry geometry;

  bool is_submanifold() const { return in_level == out_level; }
  // Returns true if the kernel's centre pairs each row with itself and offset K - 1 - k mirrors offset k.
  bool is_symmetric() const { return is_submanifold() && geometry.IsSymmetric(); }
  std::string name() const;  // for example "submanifold 3x3x3", "3x1x1, stride 2x1x1"
};

struct MapWorkload {
  std::string name;
  support::RealScan scan;
  std::vector<std::string> axes;                         // names of the cloud's fields, in the order of the coordinates
  kernels::VoxelizeParams voxelize;                      // without pointers and counts; dimension 3
  std::vector<kernels::OutputCoordinatesParams> levels;  // [l]: the rule that makes level l + 1 from level l
  std::vector<NetworkMap> maps;                          // sorted by in_level; a level's submanifold map is the first

  int num_levels() const { return static_cast<int>(levels.size()) + 1; }
};

// Returns MinkUNet's maps: submanifold maps of kernel 3x3x3 at five levels, and maps of kernel 2x2x2 and stride 2
// between the levels. Voxels are the rounded x, y, z minus the minimum of each axis.
MapWorkload MinkUNetMaps(const support::RealScan& scan, float voxel_size_m);

// Returns the maps of VoxelResBackBone8x (CenterPoint on Waymo), which has 41 x 1504 x 1504 cells: submanifold maps of
// kernel 3x3x3 at four levels, maps of kernel 3x3x3 and stride 2 between these levels, and a map of kernel 3x1x1 and
// stride 2x1x1 at the end. The axes are z, y, x. spconv's rule makes the output sites.
MapWorkload CenterPointMaps(const support::RealScan& scan);

// The results of the CPU for a workload.
struct CpuMaps {
  std::vector<float> points;                       // [num_points, 3] in the workload's axes
  std::vector<std::vector<uint64_t>> levels;       // ascending CoordinateKeys
  std::vector<std::vector<int64_t>> offset_begin;  // per map, [K + 1] first pair of each offset

  int64_t num_points() const { return static_cast<int64_t>(points.size()) / 3; }
  int64_t num_sites(int level) const { return static_cast<int64_t>(levels[static_cast<size_t>(level)].size()); }
};

// Returns NOT_FOUND if the scan's file is missing.
absl::StatusOr<CpuMaps> MapOnCpu(const MapWorkload& workload, kernels::ThreadPool& pool);

}  // namespace voxserve::bench
