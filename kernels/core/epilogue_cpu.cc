#include <cstring>

#include "kernels/core/epilogue.h"

namespace voxserve::kernels::cpu {

void StartRows(const Epilogue& epilogue, const Rows& out, int64_t begin, int64_t end) {
  const int32_t channels = out.channels;
  const size_t row_bytes = sizeof(float) * static_cast<size_t>(channels);
  const auto* bias = static_cast<const float*>(epilogue.bias);
  for (int64_t row = begin; row < end; ++row) {
    float* to = out.floats(row);
    if (epilogue.residual.data != nullptr) {
      const float* residual = epilogue.residual.floats(row);
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

void FinishRows(const Epilogue& epilogue, const Rows& out, int64_t begin, int64_t end) {
  if (epilogue.activation.function == ActivationFunction::kNone) return;
  for (int64_t row = begin; row < end; ++row) ActivateRow(epilogue.activation, out.floats(row), out.channels);
}

void ActivateRow(const Activation& activation, float* row, int32_t channels) {
  if (activation.function == ActivationFunction::kNone) return;
  if (activation.function == ActivationFunction::kRelu) {  // compilers vectorise this loop
    for (int32_t c = 0; c < channels; ++c) row[c] = Activate(ActivationFunction::kRelu, row[c]);
    return;
  }
  for (int32_t c = 0; c < channels; ++c) row[c] = Activate(activation, row[c]);
}

}  // namespace voxserve::kernels::cpu
