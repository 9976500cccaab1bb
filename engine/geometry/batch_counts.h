#pragma once

// What a geometry pass says about each sample, in host memory, whatever device it ran on.

#include <cstdint>
#include <vector>

namespace voxserve {

struct BatchCounts {
  // Of the voxels; kernels/points/voxelize.h and voxel_limit.h say what each holds.
  std::vector<int64_t> sample_begin;
  std::vector<int64_t> num_invalid;
  std::vector<int64_t> num_out_of_range;
  std::vector<int64_t> num_dropped_points;
  std::vector<int64_t> num_dropped_voxels;

  // Of the points, where a sample selected farthest ones; else empty. kernels/points/farthest/farthest_point_sample.h
  // says what each holds; PointSampling, where a sample's begin.
  std::vector<int64_t> num_valid;
  std::vector<int32_t> selected_points;

  // [samples] of all levels made since Voxelize; kernels/coordinates/output_coordinates.h says what it counts. Above 0:
  // the sample's levels are not whole, and whoever runs it refuses it.
  std::vector<int64_t> num_beyond_limits;
};

}  // namespace voxserve
