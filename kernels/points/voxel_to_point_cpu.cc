#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>

#include "kernels/core/floats.h"
#include "kernels/points/voxel_to_point.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kVoxelToPointBlockPoints = 16384;

int32_t SampleOf(const VoxelToPointParams& params, int64_t point) {
  const int64_t* const ends = params.point_begin + 1;
  return static_cast<int32_t>(std::upper_bound(ends, ends + params.num_samples, params.first_point + point) - ends);
}

template <typename Label>
void CopyLabels(const VoxelToPointParams& params, int64_t begin, int64_t end) {
  const auto* const rows = static_cast<const Label*>(params.rows.data);
  auto* const points = static_cast<Label*>(params.points.data);
  const auto fill_label = static_cast<Label>(params.fill_label);
  for (int64_t i = begin; i < end; ++i) {
    const int32_t voxel = params.point_to_voxel[i];
    points[i] = fill_label;
    if (voxel < 0) continue;
    points[i] = rows[(params.rows_are_points ? i : voxel) * params.rows.pitch];
    if (points[i] == fill_label && params.num_filled != nullptr) {
      std::atomic_ref(params.num_filled[SampleOf(params, i)]).fetch_add(1, std::memory_order_relaxed);
    }
  }
}

void CopyScores(const VoxelToPointParams& params, int64_t begin, int64_t end) {
  const int32_t channels = params.rows.channels;
  for (int64_t i = begin; i < end; ++i) {
    const int32_t voxel = params.point_to_voxel[i];
    float* const to = params.points.floats(i);
    const float* const from = voxel < 0 ? nullptr : params.rows.floats(params.rows_are_points ? i : voxel);
    if (from != nullptr && (params.keeps_not_finite || std::all_of(from, from + channels, IsFinite))) {
      std::copy(from, from + channels, to);
    } else {
      std::fill(to, to + channels, 0.0f);
    }
  }
}

}  // namespace

void VoxelToPoint(const VoxelToPointParams& params, ThreadPool& pool) {
  assert(params.points.pitch == params.points.channels);
  pool.ParallelFor(params.points.capacity, kVoxelToPointBlockPoints, [&](int64_t begin, int64_t end) {
    switch (params.rows.dtype) {
      case DType::kUint8:
        return CopyLabels<uint8_t>(params, begin, end);
      case DType::kUint16:
        return CopyLabels<uint16_t>(params, begin, end);
      default:
        assert(params.rows.dtype == DType::kFloat32);
        return CopyScores(params, begin, end);
    }
  });
}

}  // namespace voxserve::kernels::cpu
