#include <cassert>

#include "kernels/rows/prelu.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kPreluBlockRows = 2048;

}  // namespace

void PRelu(const PReluParams& params, ThreadPool& pool) {
  assert(params.in.dtype == DType::kFloat32 && params.out.dtype == DType::kFloat32);
  pool.ParallelFor(params.out.capacity, kPreluBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const in = params.in.floats(row);
      float* const out = params.out.floats(row);
      for (int32_t c = 0; c < params.out.channels; ++c) out[c] = in[c] < 0.0f ? params.slopes[c] * in[c] : in[c];
    }
  });
}

}  // namespace voxserve::kernels::cpu
