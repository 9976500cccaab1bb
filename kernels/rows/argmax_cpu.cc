#include <cassert>
#include <limits>

#include "kernels/rows/argmax.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kBlockRows = 4096;

}  // namespace

void Argmax(const ArgmaxParams& params, ThreadPool& pool) {
  assert(params.dtype == DType::kFloat32);
  pool.ParallelFor(params.num_rows, kBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* in = static_cast<const float*>(params.in) + row * params.in_pitch;
      int32_t best = 0;
      float best_value = -std::numeric_limits<float>::infinity();
      for (int32_t c = 0; c < params.channels; ++c) {
        if (in[c] > best_value) {
          best_value = in[c];
          best = c;
        }
      }
      if (params.label_bytes == 1) {
        static_cast<uint8_t*>(params.labels)[row] = static_cast<uint8_t>(best);
      } else {
        static_cast<uint16_t*>(params.labels)[row] = static_cast<uint16_t>(best);
      }
    }
  });
}

}  // namespace voxserve::kernels::cpu
