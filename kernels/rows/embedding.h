#pragma once

// Embedding looks up a row of a table for each row: out[r] = table[index[r]]. The index is a feature, so it is stored
// as a floating-point number.
//
// An index that is NaN, not a whole number or outside the table gives a row of NaN. `out` is in the type of `index` or
// float32, and must not overlap `index`. The CPU only supports float32.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

// The limit of num_embeddings: float32 represents every whole number up to this limit exactly.
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
