#pragma once

// FusedInt8Epilogue is the work that a step in 8 bits does on its sums before it stores them
// (kernels/conv/int8_epilogue.h).

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/ops/step.h"
#include "kernels/conv/int8_epilogue.h"

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
  Weights multiplier;  // padded, as are the others
  Weights bias;        // empty: none
  BufferSlice residual;
  Weights residual_scale;  // empty: 1
  kernels::Activation activation;
  Weights inverse_scale;  // empty: 1

  // Returns the kernel's parameters for the batch.
  kernels::Int8Epilogue In(const StepContext& context) const {
    return {.multiplier = multiplier.floats(),
            .bias = bias.floats(),
            .residual = context.At(residual),
            .residual_scale = residual_scale.floats(),
            .activation = activation,
            .inverse_scale = inverse_scale.floats()};
  }
  absl::Status Upload(WeightUploader& uploader) {
    for (Weights* const values : {&multiplier, &bias, &residual_scale, &inverse_scale}) {
      RETURN_IF_ERROR(uploader.Upload(*values, DType::kFloat32));
    }
    return absl::OkStatus();
  }
};

}  // namespace voxserve
