#pragma once

// Local pooling: out[o] = the largest, the average or the sum, channel by channel, of in[i] over the rulebook's pairs
// (k, i, o). The average is over the pairs that there are, not over the kernel's cells: MinkowskiEngine's and spconv's
// average pooling. An inverse rulebook makes it MinkowskiEngine's pooling transpose, and unpooling where every output
// has one pair. An output without a pair is 0; NaN wins every comparison.
//
// Output-stationary: one thread makes a value, in ascending order of offsets. Deterministic.

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
  ConstRows in;  // float32, as out
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
  Rows out;  // with in's channels, of its type or float32; must not overlap `in`
};
static_assert(std::is_trivially_copyable_v<PoolParams>);

cudaError_t Pool(const PoolParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
