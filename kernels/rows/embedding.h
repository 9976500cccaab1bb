#pragma once

// Looks up a table's row for each row: out[r] = table[index[r]], where the index is a feature.
//
// An index that is NaN, no whole number or outside of the table gives a row of NaN. `out` is in the index's type or
// float32, and does not overlap with it. The CPU only supports float32.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

// Every whole number up to it is exact in float32.
inline constexpr int64_t kMaxEmbeddingRows = int64_t{1} << 24;

struct EmbeddingParams {
  ConstRows index;              // one channel
  const void* table = nullptr;  // [num_embeddings, out.channels] in out's type
  int64_t num_embeddings = 0;   // at most kMaxEmbeddingRows
  Rows out;
};
static_assert(std::is_trivially_copyable_v<EmbeddingParams>);

namespace cpu {

void Embedding(const EmbeddingParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t Embedding(const EmbeddingParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
