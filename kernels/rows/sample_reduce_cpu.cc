#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/rows/sample_reduce.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kPartRows = 1024;

struct Part {
  int32_t sample;
  int64_t begin, end;  // rows
};

double Powered(const SampleReduceParams& params, float value) {
  return std::pow(double{value < params.least ? params.least : value}, double{params.exponent});  // NaN stays NaN
}

void Combine(PoolReduce reduce, double value, double& result) {
  if (reduce != PoolReduce::kMax) {
    result += value;
  } else if (value > result || std::isnan(value)) {
    result = value;
  }
}

}  // namespace

void SampleReduce(const SampleReduceParams& params, ThreadPool& pool) {
  assert(params.in.dtype == DType::kFloat32 && params.out.dtype == DType::kFloat32);
  std::vector<Part> parts;
  std::vector<size_t> first_part = {0};  // per sample
  for (int32_t sample = 0; sample < params.out.capacity; ++sample) {
    const int64_t end = params.sample_begin[sample + 1];
    for (int64_t begin = params.sample_begin[sample]; begin < end; begin += kPartRows) {
      parts.push_back({sample, begin, std::min(begin + kPartRows, end)});
    }
    first_part.push_back(parts.size());
  }
  const auto channels = static_cast<size_t>(params.out.channels);
  const double start = params.reduce == PoolReduce::kMax ? -std::numeric_limits<double>::infinity() : 0.0;
  std::vector<double> results(parts.size() * channels, start);
  pool.ParallelFor(static_cast<int64_t>(parts.size()), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const Part& part = parts[static_cast<size_t>(i)];
      const float* centre =
          params.centre == nullptr ? nullptr : params.centre + static_cast<size_t>(part.sample) * channels;
      double* const result = results.data() + static_cast<size_t>(i) * channels;
      for (int64_t row = part.begin; row < part.end; ++row) {
        const float* in = params.in.floats(row);
        if (params.exponent != 0) {
          for (size_t c = 0; c < channels; ++c) result[c] += Powered(params, in[c]);
          continue;
        }
        for (size_t c = 0; c < channels; ++c) {
          const double value = centre == nullptr ? double{in[c]} : double{in[c]} - double{centre[c]};
          Combine(params.reduce, centre == nullptr ? value : value * value, result[c]);
        }
      }
    }
  });
  for (int32_t sample = 0; sample < params.out.capacity; ++sample) {
    float* const out = params.out.floats(sample);
    const auto num_rows = static_cast<double>(params.sample_begin[sample + 1] - params.sample_begin[sample]);
    const size_t begin = first_part[static_cast<size_t>(sample)], end = first_part[static_cast<size_t>(sample) + 1];
    for (size_t c = 0; c < channels; ++c) {
      double result = begin == end ? 0.0 : start;
      for (size_t part = begin; part < end; ++part) Combine(params.reduce, results[part * channels + c], result);
      if (params.reduce == PoolReduce::kAverage && begin != end) result /= num_rows;
      if (params.exponent != 0 && begin != end) result = std::pow(result, 1 / double{params.exponent});
      out[c] = static_cast<float>(result);
    }
  }
}

void GroupAverage(const GroupAverageParams& params) {
  const int32_t group_channels = params.channels / params.num_groups;
  for (int32_t i = 0; i < params.num_samples * params.num_groups; ++i) {
    float* const values = params.values + int64_t{i} * group_channels;
    double sum = 0;
    for (int32_t c = 0; c < group_channels; ++c) sum += values[c];
    const auto mean = static_cast<float>(sum / group_channels);
    const float* const weight =
        params.weight == nullptr ? nullptr : params.weight + i % params.num_groups * group_channels;
    for (int32_t c = 0; c < group_channels; ++c) {
      values[c] = params.is_scale ? (weight == nullptr ? 1.0f : weight[c]) / std::sqrt(mean + params.epsilon) : mean;
    }
  }
}

}  // namespace voxserve::kernels::cpu
