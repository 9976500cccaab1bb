#include <algorithm>

#include "kernels/points/point_to_voxel.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kBlockSites = 1024;

}  // namespace

void PointToVoxel(const PointToVoxelParams& params, ThreadPool& pool) {
  pool.ParallelFor(params.out.capacity, kBlockSites, [&](int64_t first, int64_t last) {
    for (int64_t site = first; site < last; ++site) {
      const int64_t begin = params.site_begin[site];
      int64_t end = params.site_begin[site + 1];
      const bool is_full = end - begin >= params.max_points;
      if (params.max_points > 0 && is_full) end = begin + params.max_points;
      float* const out = params.out.floats(site);
      if (begin == end) std::fill_n(out, params.out.channels, 0.0F);
      for (int64_t i = begin; i < end; ++i) {
        const float* const row = params.in.floats(params.sorted_points[i]);
        if (i == begin) {
          std::copy_n(row, params.out.channels, out);
        } else if (params.reduce == PoolReduce::kMax) {
          for (int32_t c = 0; c < params.out.channels; ++c) out[c] = LargerOrNan(out[c], row[c]);
        } else {
          for (int32_t c = 0; c < params.out.channels; ++c) out[c] += row[c];
        }
      }
      if (params.empty_slots.data != nullptr && !is_full) {
        const float* const slot = params.empty_slots.floats(site);
        for (int32_t c = 0; c < params.out.channels; ++c)
          out[c] = begin == end ? slot[c] : LargerOrNan(out[c], slot[c]);
      }
      if (params.reduce != PoolReduce::kAverage || end - begin < 2) continue;
      for (int32_t c = 0; c < params.out.channels; ++c) out[c] /= static_cast<float>(end - begin);
    }
  });
}

}  // namespace voxserve::kernels::cpu
