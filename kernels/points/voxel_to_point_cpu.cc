#include <cstring>

#include "kernels/points/voxel_to_point.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kBlockPoints = 16384;

}  // namespace

void VoxelToPoint(const VoxelToPointParams& params, ThreadPool& pool) {
  const auto* rows = static_cast<const char*>(params.rows.data);
  auto* points = static_cast<char*>(params.points.data);
  const auto row_bytes = static_cast<size_t>(params.rows.channels * SizeOf(params.rows.dtype));
  const auto byte_label = static_cast<uint8_t>(params.fill_label);
  const auto word_label = static_cast<uint16_t>(params.fill_label);
  pool.ParallelFor(params.points.capacity, kBlockPoints, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t voxel = params.point_to_voxel[i];
      char* to = points + static_cast<size_t>(i) * row_bytes;
      if (voxel >= 0) {
        std::memcpy(to, rows + (params.rows_are_points ? i : voxel) * params.rows.pitch_bytes(), row_bytes);
      } else if (params.rows.dtype == DType::kUint8) {
        std::memcpy(to, &byte_label, sizeof(byte_label));
      } else if (params.rows.dtype == DType::kUint16) {
        std::memcpy(to, &word_label, sizeof(word_label));
      } else {
        std::memset(to, 0, row_bytes);
      }
    }
  });
}

}  // namespace voxserve::kernels::cpu
