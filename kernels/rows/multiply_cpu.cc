#include <cassert>

#include "kernels/rows/multiply.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kMultiplyBlockRows = 2048;

}  // namespace

void MultiplyRows(const MultiplyRowsParams& params, ThreadPool& pool) {
  assert(params.in.dtype == DType::kFloat32 && params.factor.dtype == DType::kFloat32 &&
         params.out.dtype == DType::kFloat32);
  pool.ParallelFor(params.out.capacity, kMultiplyBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const in = params.in.floats(row);
      const float* const factor = params.factor.floats(row);
      float* const out = params.out.floats(row);
      for (int32_t c = 0; c < params.out.channels; ++c) out[c] = in[c] * factor[c];
    }
  });
}

}  // namespace voxserve::kernels::cpu
