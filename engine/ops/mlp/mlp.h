#pragma once

// MlpStep computes the two linear layers of a transformer block in one kernel, with the activation between them and the
// layer norms before and behind them (kernels/rows/mlp/mlp.h). It runs only on GPUs that have that kernel, in 16 bits.

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/ops/step.h"

namespace voxserve {

class MlpStep final : public Step {
 public:
  // A layer norm. Weight and bias have a value for each channel.
  struct Norm {
    Weights weight, bias;
    float epsilon = 0;
    BufferSlice residual;  // added behind the norm; not for the input's norm
  };
  struct Options {
    BufferSlice in, out;        // on one level; do not overlap
    std::vector<float> first;   // [in channels, hidden channels]
    std::vector<float> second;  // [hidden channels, out channels]
    Weights hidden_bias, bias;  // [hidden channels], [out channels]; empty: 0
    kernels::ActivationFunction activation = kernels::ActivationFunction::kGelu;  // or kRelu
    std::vector<Norm> input_norm;                                                 // one, or none
    bool adds_normed_input = false;  // the residual is the result of the input's norm, or `in` itself without a norm
    BufferSlice residual;
    std::vector<Norm> norms;  // of the sum, one behind the other; at most kMaxMlpNorms
    DType dtype = DType::kFloat16;
  };

  explicit MlpStep(Options options);

  absl::Status Run(const StepContext& context) const override;
  absl::Status Check() const override;
  absl::Status Upload(WeightUploader& uploader) override;

 private:
  Options options_;
  int32_t hidden_channels_;
  Weights weights_;  // both, packed
};

}  // namespace voxserve
