#include <cassert>
#include <cmath>
#include <limits>

#include "kernels/core/pool_reduce.h"
#include "kernels/rows/row_norm.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kRowNormBlockRows = 1024;
constexpr int32_t kLanes = 16;  // sums side by side, which compilers turn into vectors

// Returns the sum of value_of(channel) over all channels, in a fixed order.
template <typename ValueOf>
float SumOf(int32_t channels, const ValueOf& value_of) {
  float sums[kLanes] = {};
  int32_t first = 0;
  for (; first + kLanes <= channels; first += kLanes) {
    for (int32_t lane = 0; lane < kLanes; ++lane) sums[lane] += value_of(first + lane);
  }
  for (int32_t lane = 0; first + lane < channels; ++lane) sums[lane] += value_of(first + lane);
  for (int32_t half = kLanes / 2; half > 0; half /= 2) {
    for (int32_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

void Softmax(const float* in, int32_t channels, float* out) {
  float largest = -std::numeric_limits<float>::infinity();
  for (int32_t c = 0; c < channels; ++c) largest = LargerOrNan(largest, in[c]);
  for (int32_t c = 0; c < channels; ++c) out[c] = std::exp(in[c] - largest);
  const float sum = SumOf(channels, [=](int32_t c) { return out[c]; });
  for (int32_t c = 0; c < channels; ++c) out[c] /= sum;
}

void LayerNorm(const RowNormParams& params, int64_t row) {
  const int32_t channels = params.in.channels;
  const float* const in = params.in.floats(row);
  const float* const residual = params.residual.data == nullptr ? nullptr : params.residual.floats(row);
  float* const out = params.out.floats(row);
  const auto count = static_cast<float>(channels);
  const float mean = SumOf(channels, [=](int32_t c) { return in[c]; }) / count;
  const float variance = SumOf(channels, [=](int32_t c) { return (in[c] - mean) * (in[c] - mean); }) / count;
  const float scale = 1.0f / std::sqrt(variance + params.epsilon);
  for (int32_t c = 0; c < channels; ++c) {
    float value = (in[c] - mean) * scale;
    if (params.weight != nullptr) value *= params.weight[c];
    if (params.bias != nullptr) value += params.bias[c];
    out[c] = residual == nullptr ? value : value + residual[c];
  }
  ActivateRow(params.activation, out, channels);
}

void NormalizeByLength(float epsilon, const float* in, int32_t channels, float* out) {
  const float length = std::sqrt(SumOf(channels, [=](int32_t c) { return in[c] * in[c]; }));
  const float divisor = length < epsilon ? epsilon : length;  // NaN stays NaN
  for (int32_t c = 0; c < channels; ++c) out[c] = in[c] / divisor;
}

// Combines the values of a row in the order of the channels.
template <typename Combine>
float Combined(const float* in, int32_t channels, const Combine& combine) {
  float result = in[0];
  for (int32_t c = 1; c < channels; ++c) result = combine(result, in[c]);
  return result;
}

}  // namespace

void NormalizeRows(const RowNormParams& params, ThreadPool& pool) {
  assert(params.in.dtype == DType::kFloat32 && params.out.dtype == DType::kFloat32);
  const int32_t channels = params.in.channels;
  pool.ParallelFor(params.out.capacity, kRowNormBlockRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const in = params.in.floats(row);
      float* const out = params.out.floats(row);
      switch (params.kind) {
        case RowNorm::kSoftmax:
          Softmax(in, channels, out);
          break;
        case RowNorm::kLayerNorm:
          LayerNorm(params, row);
          if (params.second.out.data != nullptr) LayerNorm(SecondNormOf(params), row);
          break;
        case RowNorm::kL2:
          NormalizeByLength(params.epsilon, in, channels, out);
          break;
        case RowNorm::kSum:
          *out = SumOf(channels, [=](int32_t c) { return in[c]; });
          break;
        case RowNorm::kMean:
          *out = SumOf(channels, [=](int32_t c) { return in[c]; }) / static_cast<float>(channels);
          break;
        case RowNorm::kMax:
          *out = Combined(in, channels, LargerOrNan);
          break;
        case RowNorm::kMin:
          *out = Combined(in, channels, SmallerOrNan);
          break;
        case RowNorm::kLength:
          *out = std::sqrt(SumOf(channels, [=](int32_t c) { return in[c] * in[c]; }));
          break;
      }
    }
  });
}

}  // namespace voxserve::kernels::cpu
