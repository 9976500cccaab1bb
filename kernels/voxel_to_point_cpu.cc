#include <cstring>

#include "kernels/voxel_to_point.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kBlockPoints = 16384;

}  // namespace

void VoxelToPoint(const VoxelToPointParams& params, ThreadPool& pool) {
  const auto* voxels = static_cast<const char*>(params.voxels);
  auto* points = static_cast<char*>(params.points);
  const size_t row_bytes = static_cast<size_t>(params.row_bytes);
  pool.ParallelFor(params.num_points, kBlockPoints, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t voxel = params.point_to_voxel[i];
      const void* from = voxel < 0 ? params.fill : voxels + voxel * params.voxel_pitch_bytes;
      std::memcpy(points + i * params.row_bytes, from, row_bytes);
    }
  });
}

}  // namespace voxserve::kernels::cpu
