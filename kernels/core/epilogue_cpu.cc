#include <algorithm>
#include <cstring>

#include "kernels/core/epilogue.h"

namespace voxserve::kernels::cpu {
namespace {

// Copies the channels of a row in steps of 64 bytes, which are a few instructions. Rows are short: a call of memcpy
// takes longer than the copy.
void CopyRow(const float* from, float* to, int32_t channels) {
  constexpr int32_t kStep = 16;
  int32_t c = 0;
  for (; c + kStep <= channels; c += kStep) std::memcpy(to + c, from + c, kStep * sizeof(float));
  for (; c < channels; ++c) to[c] = from[c];
}

void ActivateValues(const Activation& activation, float* values, int64_t count) {
  if (activation.function == ActivationFunction::kNone) return;
  if (activation.function == ActivationFunction::kRelu) {  // compilers vectorise this loop
    for (int64_t i = 0; i < count; ++i) values[i] = Activate(ActivationFunction::kRelu, values[i]);
    return;
  }
  for (int64_t i = 0; i < count; ++i) values[i] = Activate(activation, values[i]);
}

}  // namespace

void StartRows(const Epilogue& epilogue, const Rows& out, int64_t begin, int64_t end) {
  const int32_t channels = out.channels;
  const auto* bias = static_cast<const float*>(epilogue.bias);
  for (int64_t row = begin; row < end; ++row) {
    float* to = out.floats(row);
    if (epilogue.residual.data != nullptr) {
      const float* residual = epilogue.residual.floats(row);
      if (bias != nullptr) {
        for (int32_t c = 0; c < channels; ++c) to[c] = residual[c] + bias[c];
      } else if (to != residual) {
        CopyRow(residual, to, channels);
      }
    } else if (bias != nullptr) {
      CopyRow(bias, to, channels);
    } else {
      std::fill_n(to, channels, 0.0f);
    }
  }
}

void FinishRows(const Epilogue& epilogue, const Rows& out, int64_t begin, int64_t end) {
  const Activation& activation = epilogue.activation;
  if (activation.function == ActivationFunction::kNone || begin == end) return;
  if (out.pitch == out.channels) return ActivateValues(activation, out.floats(begin), (end - begin) * out.pitch);
  for (int64_t row = begin; row < end; ++row) ActivateValues(activation, out.floats(row), out.channels);
}

void ActivateRow(const Activation& activation, float* row, int32_t channels) {
  ActivateValues(activation, row, channels);
}

}  // namespace voxserve::kernels::cpu
