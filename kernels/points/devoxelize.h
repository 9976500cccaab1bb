#pragma once

// Devoxelize computes, for every position (a point or a site), the weighted sum of its neighbours' rows:
//   out[p] = epilogue(sum over n of weights[p, n] * in[neighbours[p, n]]).
// InterpolationWeights (interpolation_weights.h) computes neighbours and weights. With one neighbour of weight 1 per
// point, Devoxelize copies every point's voxel (SPVCNN's voxel_to_point).
//
// One thread computes a value, in float32 and in ascending order of n, so the result is deterministic.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/epilogue.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct DevoxelizeParams {
  int32_t num_neighbours = 1;
  const int32_t* neighbours = nullptr;  // [positions, num_neighbours], rows neighbour_pitch apart; negative: none
  const float* weights = nullptr;       // [positions, num_neighbours], rows neighbour_pitch apart; null: all are 1
  int64_t neighbour_pitch = 1;          // values from one row to the next

  ConstRows in;       // the CPU only supports float32
  Rows out;           // one row per position, below 2^31; in's channels; in's type or float32; must not overlap `in`
  Epilogue epilogue;  // its bias is float32
};
static_assert(std::is_trivially_copyable_v<DevoxelizeParams>);

namespace cpu {

void Devoxelize(const DevoxelizeParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t Devoxelize(const DevoxelizeParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
