#include <algorithm>

#include "kernels/points/point_features.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kBlockPoints = 16384;

}  // namespace

void PointFeatures(const PointFeaturesParams& params, ThreadPool& pool) {
  pool.ParallelFor(params.num_points, kBlockPoints, [&](int64_t begin, int64_t end) {
    for (int64_t point = begin; point < end; ++point) {
      float* const out = static_cast<float*>(params.out) + point * params.out_pitch;
      if (params.point_to_voxel[point] < 0) {
        std::fill_n(out, params.channels, 0.0F);
      } else {
        std::copy_n(params.features + point * params.features_pitch, params.channels, out);
      }
    }
  });
}

}  // namespace voxserve::kernels::cpu
