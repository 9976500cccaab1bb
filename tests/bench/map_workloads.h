#pragma once

// The maps of a network on a real scan, for benchmarks of mapping: its coordinate levels, its convolutions' index
// spaces, and what the CPU makes of them, which every result of a GPU is held to.

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

// A convolution's map; several layers may share it.
struct NetworkMap {
  int in_level = 0;
  int out_level = 0;
  kernels::ConvGeometry geometry;

  bool is_submanifold() const { return in_level == out_level; }
  // Of these the centre is the identity, and offset K - 1 - k mirrors offset k.
  bool is_symmetric() const { return is_submanifold() && geometry.IsSymmetric(); }
  std::string name() const;  // "submanifold 3x3x3", "3x1x1, stride 2x1x1"
};

struct MapWorkload {
  std::string name;
  support::RealScan scan;
  std::vector<std::string> axes;                         // the cloud's fields, in the order of the coordinates
  kernels::VoxelizeParams voxelize;                      // without pointers and counts; dimension 3
  std::vector<kernels::OutputCoordinatesParams> levels;  // [l]: the rule that makes level l + 1 of level l
  std::vector<NetworkMap> maps;                          // by in_level, the submanifold one first

  int num_levels() const { return static_cast<int>(levels.size()) + 1; }
};

// Submanifold 3^3 at five levels, 2^3 of stride 2 between them; x, y, z rounded, minimum subtracted.
MapWorkload MinkUNetMaps(const support::RealScan& scan, float voxel_size_m);

// VoxelResBackBone8x (CenterPoint, Waymo): 41 x 1504 x 1504 cells, submanifold 3^3 at four levels, 3^3 of stride 2
// between them, (3, 1, 1) of stride (2, 1, 1) at the end; z, y, x, spconv's rule.
MapWorkload CenterPointMaps(const support::RealScan& scan);

struct CpuMaps {
  std::vector<float> points;                       // [num_points, 3] in the workload's axes
  std::vector<std::vector<uint64_t>> levels;       // ascending CoordinateKeys
  std::vector<std::vector<int64_t>> offset_begin;  // of each map, [K + 1]; every offset is searched, none mirrored

  int64_t num_points() const { return static_cast<int64_t>(points.size()) / 3; }
  int64_t num_sites(int level) const { return static_cast<int64_t>(levels[static_cast<size_t>(level)].size()); }
};

// NOT_FOUND where the scan is not there.
absl::StatusOr<CpuMaps> MapOnCpu(const MapWorkload& workload, kernels::ThreadPool& pool);

}  // namespace voxserve::bench
