#pragma once

// The counts that a geometry pass makes for each sample, in host memory, whatever device it ran on.

#include <cstdint>
#include <vector>

namespace voxserve {

struct BatchCounts {
  // Counts of voxels. kernels/points/voxelize.h and voxel_limit.h say what each holds.
  std::vector<int64_t> sample_begin;
  std::vector<int64_t> num_invalid;
  std::vector<int64_t> num_out_of_range;
  std::vector<int64_t> num_dropped_points;
  std::vector<int64_t> num_dropped_voxels;

  // The farthest points, where a sample selected some; else empty. kernels/points/farthest/farthest_point_sample.h says
  // what each holds, PointSampling where a sample's begin.
  std::vector<int64_t> num_valid;
  std::vector<int32_t> selected_points;

  // [samples] counted over all levels made since Voxelize, as kernels/coordinates/output_coordinates.h says. Above 0
  // the sample's levels are not whole, and the executor refuses the sample.
  std::vector<int64_t> num_beyond_limits;
};

}  // namespace voxserve
