#include <algorithm>
#include <cassert>
#include <limits>

#include "kernels/image/sites/voxel_positions.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kVoxelPositionsBlockRows = 2048;

void FindMinima(const VoxelPositionsParams& params, ThreadPool& pool) {
  pool.ParallelFor(params.num_samples, 1, [&](int64_t first, int64_t last) {
    for (int64_t sample = first; sample < last; ++sample) {
      float* const minimum = params.minima + sample * kMaxDimension;
      std::fill_n(minimum, kMaxDimension, std::numeric_limits<float>::infinity());
      for (int64_t point = params.point_begin[sample]; point < params.point_begin[sample + 1]; ++point) {
        if (params.point_to_voxel[point] < 0) continue;
        const float* const axes = params.axes.floats(point);
        for (int32_t axis = 0; axis < params.out.channels; ++axis) minimum[axis] = std::min(minimum[axis], axes[axis]);
      }
    }
  });
}

}  // namespace

void VoxelPositions(const VoxelPositionsParams& params, ThreadPool& pool) {
  assert(params.out.dtype == DType::kFloat32);
  if (params.minima != nullptr) FindMinima(params, pool);
  pool.ParallelFor(params.out.capacity, kVoxelPositionsBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t voxel = begin; voxel < end; ++voxel) {
      const int32_t* const points = params.sorted_points + params.voxel_begin[voxel];
      const int64_t count = params.is_mean ? params.voxel_begin[voxel + 1] - params.voxel_begin[voxel] : 1;
      const float* minimum = nullptr;
      if (params.minima != nullptr) {
        const int64_t* const after =
            std::upper_bound(params.point_begin + 1, params.point_begin + params.num_samples, int64_t{points[0]});
        minimum = params.minima + (after - params.point_begin - 1) * kMaxDimension;
      }
      float* const out = params.out.floats(voxel);
      for (int32_t axis = 0; axis < params.out.channels; ++axis) {
        float value = params.axes.floats(points[0])[axis];
        for (int64_t i = 1; i < count; ++i) value += params.axes.floats(points[i])[axis];
        if (count > 1) value /= static_cast<float>(count);
        if (minimum != nullptr) value -= minimum[axis];
        out[axis] = value * params.scale[axis] + params.shift[axis];
      }
    }
  });
}

}  // namespace voxserve::kernels::cpu
