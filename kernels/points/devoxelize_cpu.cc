#include "kernels/points/devoxelize.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kBlockRows = 1024;

}  // namespace

void Devoxelize(const DevoxelizeParams& params, ThreadPool& pool) {
  pool.ParallelFor(params.out.capacity, kBlockRows, [&](int64_t begin, int64_t end) {
    StartRows(params.epilogue, params.out, begin, end);
    for (int64_t row = begin; row < end; ++row) {
      float* const to = params.out.floats(row);
      for (int64_t i = row * params.neighbour_pitch; i < row * params.neighbour_pitch + params.num_neighbours; ++i) {
        if (params.neighbours[i] < 0) continue;
        const float weight = params.weights == nullptr ? 1.0F : params.weights[i];
        const float* const from = params.in.floats(params.neighbours[i]);
        for (int32_t c = 0; c < params.out.channels; ++c) to[c] += weight * from[c];
      }
    }
    FinishRows(params.epilogue, params.out, begin, end);
  });
}

}  // namespace voxserve::kernels::cpu
