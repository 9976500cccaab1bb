#include "kernels/points/devoxelize.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kBlockRows = 1024;

}  // namespace

void Devoxelize(const DevoxelizeParams& params, ThreadPool& pool) {
  pool.ParallelFor(params.num_rows, kBlockRows, [&](int64_t begin, int64_t end) {
    auto* const out = static_cast<float*>(params.out);
    StartRows(params.epilogue, out, params.out_pitch, params.channels, begin, end);
    for (int64_t row = begin; row < end; ++row) {
      float* const to = out + row * params.out_pitch;
      for (int64_t i = row * params.neighbour_pitch; i < row * params.neighbour_pitch + params.num_neighbours; ++i) {
        if (params.neighbours[i] < 0) continue;
        const float weight = params.weights == nullptr ? 1.0F : params.weights[i];
        const float* const from = static_cast<const float*>(params.in) + params.neighbours[i] * params.in_pitch;
        for (int32_t c = 0; c < params.channels; ++c) to[c] += weight * from[c];
      }
    }
    FinishRows(params.epilogue, out, params.out_pitch, params.channels, begin, end);
  });
}

}  // namespace voxserve::kernels::cpu
