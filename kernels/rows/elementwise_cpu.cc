#include <cassert>

#include "kernels/rows/elementwise.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kElementwiseBlockRows = 2048;

}  // namespace

void CombineRows(const CombineRowsParams& params, ThreadPool& pool) {
  assert(params.a.dtype == DType::kFloat32 && params.b.dtype == DType::kFloat32 && params.out.dtype == DType::kFloat32);
  const int32_t channels = params.out.channels;
  const bool is_a_wide = params.a.channels == channels, is_b_wide = params.b.channels == channels;
  VisitElementwise(params, [&](const auto& function) {
    pool.ParallelFor(params.out.capacity, kElementwiseBlockRows, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float* const a = params.a.floats(row);
        const float* const b = params.b.floats(row);
        float* const out = params.out.floats(row);
        if (is_a_wide && is_b_wide) {
          for (int32_t c = 0; c < channels; ++c) out[c] = function(a[c], b[c]);
        } else if (is_a_wide) {
          for (int32_t c = 0; c < channels; ++c) out[c] = function(a[c], *b);
        } else {
          for (int32_t c = 0; c < channels; ++c) out[c] = function(*a, b[c]);
        }
      }
    });
  });
}

}  // namespace voxserve::kernels::cpu
