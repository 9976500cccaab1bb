#include <cstring>

#include "kernels/points/voxel_to_point.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kBlockPoints = 16384;

}  // namespace

void VoxelToPoint(const VoxelToPointParams& params, ThreadPool& pool) {
  const auto* rows = static_cast<const char*>(params.rows);
  auto* points = static_cast<char*>(params.points);
  const size_t row_bytes = static_cast<size_t>(params.row_bytes);
  const auto byte_label = static_cast<uint8_t>(params.fill_label);
  const auto word_label = static_cast<uint16_t>(params.fill_label);
  pool.ParallelFor(params.num_points, kBlockPoints, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t voxel = params.point_to_voxel[i];
      char* to = points + i * params.row_bytes;
      if (voxel >= 0) {
        std::memcpy(to, rows + (params.rows_are_points ? i : voxel) * params.pitch_bytes, row_bytes);
      } else if (row_bytes == sizeof(byte_label)) {
        std::memcpy(to, &byte_label, sizeof(byte_label));
      } else if (row_bytes == sizeof(word_label)) {
        std::memcpy(to, &word_label, sizeof(word_label));
      } else {
        std::memset(to, 0, row_bytes);
      }
    }
  });
}

}  // namespace voxserve::kernels::cpu
