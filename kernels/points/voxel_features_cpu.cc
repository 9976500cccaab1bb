#include <algorithm>

#include "kernels/points/voxel_features.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kVoxelsAChunk = 2048;

}  // namespace

void VoxelFeatures(const VoxelFeaturesParams& params, ThreadPool& pool) {
  pool.ParallelFor(params.out.capacity, kVoxelsAChunk, [&](int64_t begin, int64_t end) {
    for (int64_t voxel = begin; voxel < end; ++voxel) {
      const int32_t* points = params.sorted_points + params.voxel_begin[voxel];
      int64_t count = params.voxel_begin[voxel + 1] - params.voxel_begin[voxel];
      if (params.max_points_per_voxel > 0) count = std::min(count, params.max_points_per_voxel);
      if (params.reduce == VoxelReduce::kFirst) count = 1;
      float* out = params.out.floats(voxel);
      std::fill(std::copy_n(params.features.floats(points[0]), params.out.channels, out), out + params.out.pitch, 0.0F);
      if (count == 1) continue;
      for (int64_t i = 1; i < count; ++i) {
        const float* row = params.features.floats(points[i]);
        for (int32_t c = 0; c < params.out.channels; ++c) out[c] += row[c];
      }
      for (int32_t c = 0; c < params.out.channels; ++c) out[c] /= static_cast<float>(count);
    }
  });
}

}  // namespace voxserve::kernels::cpu
