#include "tests/bench/half_layers.h"

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/conv/implicit_gemm/implicit_gemm.h"

namespace voxserve::bench {

using support::Device;
using support::DeviceArray;

DeviceArray<__half> RandomHalves(size_t count, float magnitude) {
  std::minstd_rand engine(7);
  std::uniform_real_distribution<float> uniform(-magnitude, magnitude);
  std::vector<__half> values(count);
  for (__half& value : values) value = __float2half(uniform(engine));
  return {Device::kCuda, values};
}

DeviceArray<__half> RandomWeights(int32_t num_offsets, int32_t in_channels, int32_t out_channels) {
  std::minstd_rand engine(8);
  std::uniform_real_distribution<float> uniform(-0.1f, 0.1f);
  std::vector<float> weights(static_cast<size_t>(int64_t{num_offsets} * in_channels * out_channels));
  for (float& weight : weights) weight = uniform(engine);
  const std::vector<float> packed = kernels::PackImplicitGemmWeights(num_offsets, in_channels, out_channels,
                                                                     kernels::DType::kFloat16, weights.data());
  std::vector<__half> halves(packed.size());
  std::transform(packed.begin(), packed.end(), halves.begin(), [](float value) { return __float2half(value); });
  return {Device::kCuda, halves};
}

}  // namespace voxserve::bench
