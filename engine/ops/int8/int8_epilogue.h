#pragma once

// FusedInt8Epilogue is the work that a step in 8 bits does on its sums before it stores them
// (kernels/int8/int8_product.h).

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/ops/step.h"
#include "kernels/int8/int8_product.h"

namespace voxserve {

// Returns the values with zeros after them, as kernels in 8 bits read arrays of a value per channel.
inline std::vector<float> PaddedForInt8(std::vector<float> values) {
  values.resize(static_cast<size_t>(kernels::PaddedInt8Channels(static_cast<int64_t>(values.size()))));
  return values;
}

// Returns 1 / each value, padded.
inline std::vector<float> InverseForInt8(std::vector<float> values) {
  for (float& value : values) value = 1.0f / value;
  return PaddedForInt8(std::move(values));
}

struct FusedInt8Epilogue {
  std::vector<float> multiplier;  // padded, as are the others
  std::vector<float> bias;        // empty: none
  BufferSlice residual;
  std::vector<float> residual_scale;  // empty: the residual is float32
  kernels::Activation activation;
  std::vector<float> inverse_scale;  // empty: the output is float32

  // Returns the kernel's parameters for the batch.
  kernels::Int8Epilogue In(const StepContext& context) const {
    const auto data = [](const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); };
    return {.multiplier = data(multiplier),
            .bias = data(bias),
            .residual = context.At(residual),
            .residual_scale = data(residual_scale),
            .activation = activation,
            .inverse_scale = data(inverse_scale)};
  }
};

}  // namespace voxserve
