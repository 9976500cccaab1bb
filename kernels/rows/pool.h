#pragma once

// Local pooling: out[o] = the maximum, average or sum of in[i] over the rulebook's pairs (k, i, o), channel by channel.
// - The average counts the existing pairs, not the kernel's cells, as average pooling of MinkowskiEngine and spconv
//   does.
// - With an inverse rulebook it is MinkowskiEngine's pooling transpose, and unpooling if every output has one pair.
// - An output without a pair is 0. NaN wins every comparison.
//
// Output-stationary: one thread computes a value, in ascending order of offsets. Results are deterministic.

#include <cstdint>
#include <type_traits>

#include "kernels/conv/neighbours.h"
#include "kernels/conv/rulebook.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/pool_reduce.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct PoolParams {
  RulebookView rulebook;
  PoolReduce reduce = PoolReduce::kMax;
  ConstRows in;  // float32; out too
  Rows out;      // [num_out_rows, in.channels]; must not overlap `in`
};
static_assert(std::is_trivially_copyable_v<PoolParams>);

namespace cpu {

void Pool(const PoolParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

struct PoolParams {
  NeighboursView neighbours;
  PoolReduce reduce = PoolReduce::kMax;  // sums are float32
  ConstRows in;
  Rows out;  // in's channels, in's type or float32; must not overlap `in`
};
static_assert(std::is_trivially_copyable_v<PoolParams>);

cudaError_t Pool(const PoolParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
