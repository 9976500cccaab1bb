#include <cassert>
#include <limits>

#include "kernels/core/floats.h"
#include "kernels/rows/argmax.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kArgmaxBlockRows = 4096;

}  // namespace

void Argmax(const ArgmaxParams& params, ThreadPool& pool) {
  assert(params.in.dtype == DType::kFloat32);
  pool.ParallelFor(params.in.capacity, kArgmaxBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* in = params.in.floats(row);
      int32_t best = 0;
      float best_value = -std::numeric_limits<float>::infinity();
      bool is_finite = true;
      for (int32_t c = 0; c < params.in.channels; ++c) {
        is_finite = is_finite && IsFinite(in[c]);
        if (in[c] > best_value) {
          best_value = in[c];
          best = c;
        }
      }
      if (!is_finite) best = params.not_finite_label;
      if (params.labels.dtype == DType::kUint8) {
        static_cast<uint8_t*>(params.labels.data)[row] = static_cast<uint8_t>(best);
      } else {
        static_cast<uint16_t*>(params.labels.data)[row] = static_cast<uint16_t>(best);
      }
    }
  });
}

}  // namespace voxserve::kernels::cpu
