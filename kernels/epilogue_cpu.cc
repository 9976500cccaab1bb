#include <cstring>

#include "kernels/epilogue.h"

namespace voxserve::kernels::cpu {

void StartRows(const Epilogue& epilogue, float* out, int64_t out_pitch, int32_t channels, int64_t begin, int64_t end) {
  const size_t row_bytes = sizeof(float) * static_cast<size_t>(channels);
  const auto* bias = static_cast<const float*>(epilogue.bias);
  for (int64_t row = begin; row < end; ++row) {
    float* to = out + row * out_pitch;
    if (epilogue.residual != nullptr) {
      const float* residual = static_cast<const float*>(epilogue.residual) + row * epilogue.residual_pitch;
      if (bias != nullptr) {
        for (int32_t c = 0; c < channels; ++c) to[c] = residual[c] + bias[c];
      } else if (to != residual) {
        std::memcpy(to, residual, row_bytes);
      }
    } else if (bias != nullptr) {
      std::memcpy(to, bias, row_bytes);
    } else {
      std::memset(to, 0, row_bytes);
    }
  }
}

void FinishRows(const Epilogue& epilogue, float* out, int64_t out_pitch, int32_t channels, int64_t begin, int64_t end) {
  const ActivationFunction activation = epilogue.activation;
  if (activation == ActivationFunction::kNone) return;
  for (int64_t row = begin; row < end; ++row) {
    float* to = out + row * out_pitch;
    for (int32_t c = 0; c < channels; ++c) to[c] = Activate(activation, to[c]);
  }
}

}  // namespace voxserve::kernels::cpu
