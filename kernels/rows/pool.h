#pragma once

// Pool computes local pooling on sparse rows: out[o] is the maximum, average or sum of in[i] over the rulebook's pairs
// (k, i, o), channel by channel. A rulebook lists which input rows i each output row o reads, for each kernel offset k
// (kernels/conv/rulebook.h).
// - The average divides by the number of existing pairs, not of the kernel's cells, like the average pooling of
//   MinkowskiEngine and spconv.
// - With the rulebook of an inverse convolution (input and output swapped), Pool is MinkowskiEngine's pooling
//   transpose. If every output then has one pair, it is unpooling.
// - An output without a pair is 0. A maximum is NaN if one of its values is NaN.
// - Then out[o] = epilogue(out[o] * scale), as ScaleShift computes it (scale_shift.h). The engine uses it for the batch
//   norm, addition and activation behind a pool.
//
// One thread computes all of an output value, in ascending order of offsets, so results are deterministic.

#include <cstdint>
#include <type_traits>

#include "kernels/conv/neighbours.h"
#include "kernels/conv/rulebook.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/epilogue.h"
#include "kernels/core/pool_reduce.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct PoolParams {
  RulebookView rulebook;
  PoolReduce reduce = PoolReduce::kMax;
  ConstRows in;                  // float32
  Rows out;                      // [num_out_rows, in.channels] float32; must not overlap `in` or the residual
  const float* scale = nullptr;  // [out.channels]; null: all are 1
  Epilogue epilogue;             // the bias is float32
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
  Rows out;                      // one row per output site; in's channels; in's type or float32; must not overlap `in`
  const float* scale = nullptr;  // [out.channels]; null: all are 1
  Epilogue epilogue;             // the bias is float32
};
static_assert(std::is_trivially_copyable_v<PoolParams>);

// Returns cudaErrorInvalidValue if in's rows are 4 GiB or more apart.
cudaError_t Pool(const PoolParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
