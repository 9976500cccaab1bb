#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "kernels/rows/embedding.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kEmbeddingBlockRows = 2048;

}  // namespace

void Embedding(const EmbeddingParams& params, ThreadPool& pool) {
  assert(params.index.dtype == DType::kFloat32 && params.out.dtype == DType::kFloat32);
  assert(params.num_embeddings <= kMaxEmbeddingRows);
  const auto num_embeddings = static_cast<float>(params.num_embeddings);
  const auto* const table = static_cast<const float*>(params.table);
  pool.ParallelFor(params.out.capacity, kEmbeddingBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float index = *params.index.floats(row);
      float* const out = params.out.floats(row);
      if (index >= 0.0f && index < num_embeddings && index == std::trunc(index)) {
        std::copy_n(table + static_cast<int64_t>(index) * params.out.channels, params.out.channels, out);
      } else {
        std::fill_n(out, params.out.channels, std::numeric_limits<float>::quiet_NaN());
      }
    }
  });
}

}  // namespace voxserve::kernels::cpu
