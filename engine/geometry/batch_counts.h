#pragma once

// BatchCounts holds the counts that a geometry pass makes for each sample. They are in host memory on every device.

#include <cstdint>
#include <vector>

namespace voxserve {

struct BatchCounts {
  // Counts of points and voxels. kernels/points/voxelize.h and voxel_limit.h define each.
  std::vector<int64_t> sample_begin;
  std::vector<int64_t> num_invalid;
  std::vector<int64_t> num_out_of_range;
  std::vector<int64_t> num_dropped_points;
  std::vector<int64_t> num_dropped_voxels;

  // The farthest points; empty where no sample of the batch selects any.
  // kernels/points/farthest/farthest_point_sample.h defines both arrays, and PointSampling tells where each sample's
  // points begin.
  std::vector<int64_t> num_valid;
  std::vector<int32_t> selected_points;

  // [samples] sites beyond the coordinate key's limits, counted over all levels made since Voxelize
  // (kernels/coordinates/output_coordinates.h). Above 0 the sample's levels lack sites, and the executor refuses it.
  std::vector<int64_t> num_beyond_limits;
};

}  // namespace voxserve
