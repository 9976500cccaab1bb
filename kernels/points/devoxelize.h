#pragma once

// Every position gets the weighted sum of its neighbours' rows: the step of a devoxelization after the search
// (interpolation_weights.h), and with one neighbour of weight 1 every point's voxel (SPVCNN's voxel_to_point).
//
// Output-stationary: one thread makes a value in float32, in ascending order of neighbours. Deterministic.

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
  const float* weights = nullptr;       // [positions, num_neighbours], rows neighbour_pitch apart; null: 1
  int64_t neighbour_pitch = 1;          // values

  ConstRows in;       // the CPU has float32 alone
  Rows out;           // a row a position, below 2^31; in's channels, its type or float32; must not overlap `in`
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
