#pragma once

// Local pooling: out[o] = the largest, the average or the sum, channel by channel, of in[i] over the rulebook's pairs
// (k, i, o). The average is over the pairs that there are, not over the kernel's cells: MinkowskiEngine's and spconv's
// average pooling. An inverse rulebook makes it MinkowskiEngine's pooling transpose, and unpooling where every output
// has one pair. An output without a pair is 0; NaN wins every comparison.
//
// Output-stationary: one thread makes a value, in ascending order of offsets. Deterministic.

#include <cstdint>
#include <type_traits>

#include "kernels/conv/rulebook.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/dtype.h"
#include "kernels/core/pool_reduce.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct PoolParams {
  RulebookView rulebook;
  PoolReduce reduce = PoolReduce::kMax;
  int32_t channels = 0;
  const float* in = nullptr;  // [num_in_rows, channels], rows in_pitch apart
  int64_t in_pitch = 0;       // floats
  float* out = nullptr;       // [num_out_rows, channels], rows out_pitch apart; must not overlap `in`
  int64_t out_pitch = 0;
};
static_assert(std::is_trivially_copyable_v<PoolParams>);

namespace cpu {

void Pool(const PoolParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

struct PoolParams {
  int32_t num_offsets = 0;              // K
  const int32_t* neighbours = nullptr;  // [K, neighbours_pitch] the input row of an output row, or -1
  int64_t neighbours_pitch = 0;
  int64_t num_out_rows = 0;
  PoolReduce reduce = PoolReduce::kMax;
  int32_t channels = 0;
  DType dtype = DType::kFloat32;      // of in; sums are float32
  DType out_dtype = DType::kFloat32;  // of out: dtype, or float32
  const void* in = nullptr;           // rows in_pitch values apart
  int64_t in_pitch = 0;
  void* out = nullptr;  // [num_out_rows, channels], rows out_pitch values apart; must not overlap `in`
  int64_t out_pitch = 0;
};
static_assert(std::is_trivially_copyable_v<PoolParams>);

cudaError_t Pool(const PoolParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
