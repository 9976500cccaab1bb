#include <algorithm>

#include "kernels/points/point_features.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kPointFeaturesBlockPoints = 16384;

}  // namespace

void PointFeatures(const PointFeaturesParams& params, ThreadPool& pool) {
  pool.ParallelFor(params.out.capacity, kPointFeaturesBlockPoints, [&](int64_t begin, int64_t end) {
    for (int64_t point = begin; point < end; ++point) {
      float* const out = params.out.floats(point);
      if (params.point_to_voxel[point] < 0) {
        std::fill_n(out, params.out.channels, 0.0F);
      } else {
        std::copy_n(params.features.floats(point), params.out.channels, out);
      }
    }
  });
}

}  // namespace voxserve::kernels::cpu
