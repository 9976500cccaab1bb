// Tests what the GPU's rotation of rows refuses. Its results are compared in rotary_test.cc.

#include <gtest/gtest.h>

#include <cstdint>

#include "kernels/rows/rotary.h"
#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels::rotary_cuda_test {
namespace {

using support::DeviceArray;
using support::TestStream;

TEST(RotaryCudaTest, RefusesHeadsThatAreTooWide) {
  SKIP_WITHOUT(Device::kCuda);
  const DeviceMatrix in(Device::kCuda, DType::kFloat32, Matrix(2, 258, {}, nullptr));
  const DeviceArray<uint64_t> keys(Device::kCuda, 2);
  const RotaryParams params{.dimension = 3, .keys = keys.data(), .in = in.View(), .out = in.View()};
  EXPECT_EQ(cuda::Rotary(params, TestStream()), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace voxserve::kernels::rotary_cuda_test
