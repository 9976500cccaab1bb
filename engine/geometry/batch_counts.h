#pragma once

// BatchCounts holds the counts that a geometry pass makes for each sample. They are in host memory on every device.

#include <cstdint>
#include <vector>

namespace voxserve {

struct BatchCounts {
  // Counts of points and voxels. kernels/points/voxelize.h and voxel_limit.h define each. sample_begin: [samples + 1]
  // the first voxel of each sample; the others: [samples].
  std::vector<int64_t> sample_begin;
  std::vector<int64_t> num_invalid;
  std::vector<int64_t> num_out_of_range;
  std::vector<int64_t> num_dropped_points;
  std::vector<int64_t> num_dropped_voxels;

  // The farthest points; empty where no sample of the batch selects any.
  // kernels/points/farthest/farthest_point_sample.h defines both arrays, and PointSampling::selected_begin tells where
  // each sample's selected points begin.
  std::vector<int64_t> num_valid;
  std::vector<int32_t> selected_points;

  // [samples] how often, in all levels made since Voxelize, a level's rule asked for a site whose coordinates a
  // coordinate key cannot hold. A site counts once for every pair of an input and a kernel cell that asks for it
  // (kernels/coordinates/output_coordinates.h). Such sites are not made. If the count is above 0, the sample's levels
  // lack sites, and the executor refuses the sample.
  std::vector<int64_t> num_beyond_limits;
};

}  // namespace voxserve
