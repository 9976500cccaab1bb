// Tests cuda::Gemm, the GPU's dense matrix products, against naive loops in double, and linear layers, which use it.

#include "kernels/core/gemm_cuda.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/conv/gemm_warm_up.h"
#include "kernels/rows/linear.h"
#include "tests/kernels/core/feature_testing.h"
#include "tests/kernels/core/test_gemm.h"

namespace voxserve::kernels::gemm_cuda_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

class GemmTest : public testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT(Device::kCuda); }
};

// WarmUpGemm multiplies whatever the memory holds, even NaN. It must not read or write outside of the memory, which
// compute-sanitizer checks.
TEST_F(GemmTest, WarmUpStaysWithinItsMemory) {
  const TestGemm gemm;
  constexpr int64_t kBytes = 1 << 20;
  const support::DeviceArray<uint8_t> memory(Device::kCuda, kBytes);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBfloat16}) {
    for (const int64_t channels : {4, 32, 96}) {
      ExpectCudaSuccess(cuda::WarmUpGemm({.dtype = dtype,
                                          .in_channels = channels,
                                          .out_channels = 64,
                                          .max_count = 27,
                                          .max_rows = 5000,
                                          .memory = memory.data(),
                                          .memory_bytes = kBytes},
                                         *gemm));
    }
  }
  ExpectCudaSuccess(cuda::WarmUpGemm({.in_channels = 32, .out_channels = 64, .max_count = 3, .max_rows = 100}, *gemm));
  ExpectCudaSuccess(cudaStreamSynchronize((*gemm).stream()));
}

TEST_F(GemmTest, Float32IsNotRoundedToTensorFloat32UnlessAllowed) {
  Random random(31);
  constexpr int64_t kM = 300, kN = 64, kK = 96;
  const Matrix a(kM, kK, {}, &random), b(kK, kN, {}, &random);
  Expected expected(kM, kN);
  for (int64_t row = 0; row < kM; ++row) {
    for (int64_t c = 0; c < kN; ++c) {
      for (int64_t i = 0; i < kK; ++i) expected.Add(row, c, double{a.at(row, i)} * b.at(i, c));
    }
  }
  const DeviceMatrix device_a(Device::kCuda, DType::kFloat32, a), device_b(Device::kCuda, DType::kFloat32, b);
  const TestGemm gemm;
  std::vector<uint8_t> float32_bytes[2];  // index: whether the product is fused
  for (const bool allow : {false, true}) {
    (*gemm).set_allow_tf32(allow);
    for (const bool fused : {false, true}) {
      SCOPED_TRACE(testing::Message() << "allowed " << allow << ", fused " << fused);
      const DeviceMatrix c(Device::kCuda, DType::kFloat32, Matrix(kM, kN, {}, nullptr));
      if (fused) {
        ExpectCudaSuccess((*gemm).MultiplyFused({.a = device_a.View(), .b = device_b.View(), .d = c.View()}));
      } else {
        ExpectCudaSuccess((*gemm).Multiply({.a = device_a.View(), .b = device_b.View(), .c = c.View()}));
      }
      ExpectNear(c.ToHost(), expected, allow ? DType::kFloat16 : DType::kFloat32);
      if (allow) {
        EXPECT_NE(c.Bytes(), float32_bytes[fused]) << "TensorFloat-32 was not used";
      } else {
        float32_bytes[fused] = c.Bytes();
      }
    }
  }
}

TEST_F(GemmTest, BatchesStepByTheirStridesAndAccumulate) {
  const TestGemm gemm;
  // Two products [1, 2] x [2, 1] with a gap between the matrices.
  const DeviceArray<float> a(Device::kCuda, {1, 2, 99, 3, 4, 99}), b(Device::kCuda, {5, 6, 99, 7, 8, 99});
  const DeviceArray<float> c(Device::kCuda, {100, 99, 200, 99});
  for (const bool accumulate : {true, false}) {
    ExpectCudaSuccess((*gemm).Multiply({.a = ConstRows::Packed(a.data(), DType::kFloat32, 1, 2),
                                        .b = ConstRows::Packed(b.data(), DType::kFloat32, 2, 1),
                                        .c = Rows::Packed(c.data(), DType::kFloat32, 1, 1),
                                        .accumulate = accumulate,
                                        .count = 2,
                                        .a_stride = 3,
                                        .b_stride = 3,
                                        .c_stride = 2}));
    EXPECT_THAT(c.ToHost(), accumulate ? testing::ElementsAre(117, 99, 253, 99) : testing::ElementsAre(17, 99, 53, 99));
  }
}

TEST_F(GemmTest, WrongSizesTypesAndStreamsAreRefused) {
  const TestGemm gemm;
  const DeviceArray<float> values(Device::kCuda, 16);
  const Rows one = Rows::Packed(values.data(), DType::kFloat32, 1, 1);
  cuda::MultiplyParams params{.a = one, .b = one, .c = one};
  params.c.capacity = int64_t{1} << 31;
  EXPECT_EQ((*gemm).Multiply(params), cudaErrorInvalidValue);
  params.c.capacity = 1;
  params.c.dtype = DType::kFloat16;
  EXPECT_EQ((*gemm).Multiply(params), cudaErrorInvalidValue);
  params.c.dtype = DType::kFloat32;
  params.a.channels = 0;
  EXPECT_EQ((*gemm).Multiply(params), cudaErrorInvalidValue);
  params.c.capacity = 0;
  EXPECT_EQ((*gemm).Multiply(params), cudaSuccess);
  EXPECT_EQ(cuda::Linear({.in = {.channels = 1}, .out = {.channels = 1, .capacity = 1}}, *gemm, nullptr),
            cudaErrorInvalidValue);
}

// Gemm keeps a shape's algorithm for later products. The choice must not depend on the products before.
TEST_F(GemmTest, ResultsDoNotDependOnWhatRanBefore) {
  Random random(32);
  constexpr int32_t kIn = 64, kOut = 96;
  const Matrix in(256, kIn, {}, &random, DType::kFloat16);
  const std::vector<float> weights = random.Floats(kIn * kOut, DType::kFloat16);
  const DeviceMatrix device_in(Device::kCuda, DType::kFloat16, in);
  const DeviceValues device_weights(Device::kCuda, DType::kFloat16, weights);
  const auto run = [&](const TestGemm& gemm, int64_t rows) {
    const DeviceMatrix out(Device::kCuda, DType::kFloat16, Matrix(rows, kOut, {}, nullptr));
    ExpectCudaSuccess(cuda::Linear({.in = ConstRows::Packed(device_in.data(), DType::kFloat16, rows, kIn),
                                    .weights = device_weights.data(),
                                    .out = out.View()},
                                   *gemm, TestStream()));
    return out.Bytes();
  };
  const TestGemm fresh, used;
  run(used, 256);
  run(used, 1);
  EXPECT_EQ(run(used, 130), run(fresh, 130));
}

}  // namespace
}  // namespace voxserve::kernels::gemm_cuda_test
