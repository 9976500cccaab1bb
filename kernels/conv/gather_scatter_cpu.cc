#include <cstring>

#include "kernels/conv/gather_scatter.h"

namespace voxserve::kernels::cpu {

void Gather(const GatherParams& params) {
  const size_t row_bytes = sizeof(float) * static_cast<size_t>(params.channels);
  for (int64_t i = 0; i < params.num_rows; ++i) {
    std::memcpy(params.to + i * params.channels, params.from + params.rows[i] * params.from_pitch, row_bytes);
  }
}

void ScatterAdd(const ScatterAddParams& params) {
  for (int64_t i = 0; i < params.num_rows; ++i) {
    const float* from = params.from + i * params.channels;
    float* to = params.to + params.rows[i] * params.to_pitch;
    for (int32_t c = 0; c < params.channels; ++c) to[c] += from[c];
  }
}

}  // namespace voxserve::kernels::cpu
