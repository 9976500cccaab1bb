#pragma once

// Every position gets the weighted sum of its neighbours' rows: the step of a devoxelization after the search
// (interpolation_weights.h), and with one neighbour of weight 1 every point's voxel (SPVCNN's voxel_to_point).
//
// Output-stationary: one thread makes a value in float32, in ascending order of neighbours. Deterministic.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/dtype.h"
#include "kernels/core/epilogue.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct DevoxelizeParams {
  int64_t num_rows = 0;  // positions, below 2^31
  int32_t num_neighbours = 1;
  const int32_t* neighbours = nullptr;  // [num_rows, num_neighbours], rows neighbour_pitch apart; negative: none
  const float* weights = nullptr;       // likewise; null: 1
  int64_t neighbour_pitch = 1;          // values

  int32_t channels = 0;
  DType dtype = DType::kFloat32;      // of in; the CPU has float32 alone
  DType out_dtype = DType::kFloat32;  // of out: dtype, or float32
  const void* in = nullptr;           // rows in_pitch values apart
  int64_t in_pitch = 0;
  void* out = nullptr;  // [num_rows, channels], rows out_pitch values apart; must not overlap `in`
  int64_t out_pitch = 0;
  Epilogue epilogue;  // bias in float32, residual in dtype
};
static_assert(std::is_trivially_copyable_v<DevoxelizeParams>);

namespace cpu {

void Devoxelize(const DevoxelizeParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t Devoxelize(const DevoxelizeParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
