#include <algorithm>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/points/point_offsets.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kPointOffsetsBlockPoints = 16384;

}  // namespace

void PointOffsets(const PointOffsetsParams& params, ThreadPool& pool) {
  const CoordinateKey layout(params.dimension);
  pool.ParallelFor(params.out.capacity, kPointOffsetsBlockPoints, [&](int64_t begin, int64_t end) {
    for (int64_t point = begin; point < end; ++point) {
      float* const out = params.out.floats(point);
      const int32_t voxel = params.point_to_voxel[point];
      if (voxel < 0) {
        std::fill_n(out, params.dimension, 0.0F);
        continue;
      }
      for (int32_t axis = 0; axis < params.dimension; ++axis) {
        float from;
        if (params.means.data != nullptr) {
          from = params.means.floats(voxel)[axis];
        } else {
          const int32_t coordinate = layout.Coordinate(params.voxel_keys[voxel], axis);
          from = static_cast<float>(coordinate) * params.voxel_size[axis] + params.first_center[axis];
        }
        out[axis] = params.axes.floats(point)[axis] - from;
      }
    }
  });
}

}  // namespace voxserve::kernels::cpu
