#include "engine/ops/mlp/mlp.h"

#include <cstddef>

#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/rows/mlp/mlp.h"

namespace voxserve {
namespace {

// Returns `values` with zeros behind them; without values, only zeros.
Weights Padded(const Weights& values, int32_t size) {
  std::vector<float> padded = values.values();
  padded.resize(static_cast<size_t>(size));
  return padded;
}

}  // namespace

MlpStep::MlpStep(Options options)
    : options_(std::move(options)),
      hidden_channels_(static_cast<int32_t>(options_.first.size()) / options_.in.channels) {
  const int32_t in_channels = options_.in.channels, out_channels = options_.out.channels;
  const kernels::MlpShape shape = kernels::MlpShapeOf(in_channels, hidden_channels_, out_channels);
  if (shape.padded_in == 0) return;  // Upload returns an error
  weights_ = kernels::PackMlpWeights(in_channels, hidden_channels_, out_channels, options_.first.data(),
                                     options_.second.data());
  options_.first = {};
  options_.second = {};
  options_.hidden_bias = Padded(options_.hidden_bias, shape.padded_hidden);
  options_.bias = Padded(options_.bias, shape.padded_out);
  const auto pad = [](std::vector<Norm>& norms, int32_t size) {
    for (Norm& norm : norms) {
      norm.weight = Padded(norm.weight, size);
      norm.bias = Padded(norm.bias, size);
    }
  };
  pad(options_.input_norm, shape.padded_in);
  pad(options_.norms, shape.padded_out);
}

absl::Status MlpStep::Check() const { return absl::InternalError("the MLP's kernel runs only on a GPU"); }

absl::Status MlpStep::Run([[maybe_unused]] const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    const auto norm_of = [&](const Norm& norm) {
      return kernels::MlpNorm{.weight = norm.weight.floats(),
                              .bias = norm.bias.floats(),
                              .epsilon = norm.epsilon,
                              .residual = context.At(norm.residual)};
    };
    kernels::MlpParams params{.in = context.At(options_.in),
                              .out = context.At(options_.out),
                              .hidden_channels = hidden_channels_,
                              .weights = weights_.data(),
                              .hidden_bias = options_.hidden_bias.floats(),
                              .bias = options_.bias.floats(),
                              .activation = options_.activation,
                              .adds_normed_input = options_.adds_normed_input,
                              .residual = context.At(options_.residual),
                              .num_norms = static_cast<int32_t>(options_.norms.size())};
    if (!options_.input_norm.empty()) params.input_norm = norm_of(options_.input_norm.front());
    for (size_t i = 0; i < options_.norms.size(); ++i) params.norms[i] = norm_of(options_.norms[i]);
    RETURN_IF_CUDA_ERROR(kernels::cuda::Mlp(params, context.stream()));
    return absl::OkStatus();
  }
  return Check();
}

absl::Status MlpStep::Upload(WeightUploader& uploader) {
  if (weights_.empty()) return absl::InternalError("no kernel has this MLP's numbers of channels");
  RETURN_IF_ERROR(uploader.Upload(weights_, options_.dtype));
  RETURN_IF_ERROR(uploader.Upload(options_.hidden_bias, DType::kFloat32));
  RETURN_IF_ERROR(uploader.Upload(options_.bias, DType::kFloat32));
  const auto upload = [&](std::vector<Norm>& norms) {
    for (Norm& norm : norms) {
      RETURN_IF_ERROR(uploader.Upload(norm.weight, DType::kFloat32));
      RETURN_IF_ERROR(uploader.Upload(norm.bias, DType::kFloat32));
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(upload(options_.input_norm));
  return upload(options_.norms);
}

}  // namespace voxserve
