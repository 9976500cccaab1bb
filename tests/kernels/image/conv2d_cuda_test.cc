// Tests what only the GPU has of 2D convolutions: every tiling gives the results of the definition, and arguments that
// a launcher does not support are refused.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/image/conv2d.h"
#include "tests/kernels/image/conv2d_testing.h"

namespace voxserve::kernels::conv2d_cuda_test {
namespace {

// Returns true if the GPU supports this tiling for float16.
bool Takes(Conv2dTiling tiling) {
  if constexpr (kHasCuda) {
    const DeviceArray<uint16_t> values(Device::kCuda, std::vector<uint16_t>(4096));
    const cudaError_t status = cuda::Conv2d({.geometry = {.kernel_size = {3, 3}, .padding = {1, 1}},
                                             .num_images = 1,
                                             .in_rows = 1,
                                             .in_columns = 1,
                                             .in = Rows::Packed(values.data(), DType::kFloat16, 1, 8),
                                             .weights = values.data() + 1024,
                                             .out = Rows::Packed(values.data() + 512, DType::kFloat16, 1, 8),
                                             .tiling = tiling},
                                            TestStream());
    return status == cudaError_t{};
  }
  return false;
}

constexpr Conv2dTiling kWarpGroupTilings[] = {Conv2dTiling::kTwoWarpGroups, Conv2dTiling::kThreeWarpGroups,
                                              Conv2dTiling::kFourWarpGroups, Conv2dTiling::kFiveWarpGroups,
                                              Conv2dTiling::kWideWarpGroups};

TEST(Conv2dCudaTest, Tf32RoundsNoMoreThanItsFactors) {
  SKIP_WITHOUT(Device::kCuda);
  Random random(11);
  for (const int32_t out_channels : {3, 24, 64, 130}) {
    const Shape shape = {{.kernel_size = {3, 3}, .padding = {1, 1}}, 2, 12, 15, 36, out_channels};
    SCOPED_TRACE(Described(shape));
    Operands operands({Device::kCuda, DType::kFloat32}, shape, {}, random);
    operands.allow_tf32 = true;
    const EpilogueCase with = {.bias = true, .residual = true, .relu = false};
    const Matrix out = operands.Run(DType::kFloat32, {}, with);
    operands.ExpectOutputs(out, with, random, DType::kFloat16);  // float16 has as many significant bits as TF32
  }
}

TEST(Conv2dCudaTest, EveryTilingEqualsTheDefinition) {
  SKIP_WITHOUT(Device::kCuda);
  Random random(12);
  const Conv2dGeometry same = {.kernel_size = {3, 3}, .padding = {1, 1}};
  const Conv2dGeometry doubled = {.kernel_size = {2, 2}, .stride = {2, 2}, .is_transposed = true};
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    for (const Conv2dTiling tiling :
         {Conv2dTiling::kWarps, Conv2dTiling::kTwoWarpGroups, Conv2dTiling::kThreeWarpGroups,
          Conv2dTiling::kFourWarpGroups, Conv2dTiling::kFiveWarpGroups, Conv2dTiling::kWideWarpGroups}) {
      if (!Takes(tiling)) continue;
      for (const auto& [in_channels, out_channels] :
           std::vector<std::array<int32_t, 2>>{{8, 3}, {16, 64}, {72, 72}, {64, 128}, {200, 300}}) {
        for (const Conv2dGeometry& geometry : {same, doubled, Conv2dGeometry()}) {
          for (const auto& [images, size] : std::vector<std::array<int32_t, 2>>{{1, 1}, {3, 9}, {1, 40}}) {
            const Shape shape = {geometry, images, size, size, in_channels, out_channels};
            SCOPED_TRACE(Described(shape) + ", tiling " + std::to_string(static_cast<int>(tiling)));
            Operands operands({Device::kCuda, dtype}, shape, {}, random);
            operands.tiling = tiling;
            const EpilogueCase with = random.OneOf(EpilogueCases());
            operands.ExpectOutputs(operands.Run(dtype, {}, with), with, random, dtype);
          }
        }
      }
    }
  }
}

// All of these tilings must give the same bytes, because the number of images may decide which of them runs.
TEST(Conv2dCudaTest, TilingsOfWarpGroupsAddUpInOneOrder) {
  SKIP_WITHOUT(Device::kCuda);
  if (!Takes(Conv2dTiling::kTwoWarpGroups)) GTEST_SKIP() << "This GPU has no products of warp groups";
  Random random(13);
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    for (const int32_t out_channels : {64, 128, 200, 256}) {
      const Shape shape = {{.kernel_size = {3, 3}, .padding = {1, 1}}, 2, 30, 31, 136, out_channels};
      SCOPED_TRACE(Described(shape));
      Operands operands({Device::kCuda, dtype}, shape, {}, random);
      operands.tiling = Conv2dTiling::kTwoWarpGroups;
      const EpilogueCase with = {.bias = true, .residual = true, .relu = false};
      const Matrix expected = operands.Run(DType::kFloat32, {}, with);
      for (const Conv2dTiling tiling : kWarpGroupTilings) {
        operands.tiling = tiling;
        const Matrix out = operands.Run(DType::kFloat32, {}, with);
        ASSERT_EQ(out.values, expected.values) << "tiling " << static_cast<int>(tiling);
      }
    }
  }
}

TEST(Conv2dCudaTest, FewOutputsEqualTheDefinition) {
  SKIP_WITHOUT(Device::kCuda);
  if (!Takes(Conv2dTiling::kFewOutputs)) GTEST_SKIP() << "This GPU has no products of warps";
  Random random(14);
  const std::vector<Margins> all_margins = {{}, {.before = 8, .after = 8}, {.before = 1}, {.after = 4}};
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBfloat16}) {
    for (Conv2dGeometry geometry : FewOutputsGeometries()) {
      for (const auto& [groups, group_in, group_out] : std::vector<std::array<int32_t, 3>>{
               {36, 64, 3}, {6, 64, 1}, {1, 8, 4}, {3, 24, 2}, {2, 136, 3}, {5, 13, 1}, {1, 200, 3}}) {
        geometry.groups = groups;
        // With more slices, some geometries would cost as much as with another tiling.
        const int32_t cells = geometry.kernel_size[0] * geometry.kernel_size[1];
        const bool is_one_slice = cells * group_out <= 32;
        const int32_t outputs = is_one_slice ? group_out : 1;
        for (const auto& [images, rows, columns] :
             std::vector<std::array<int32_t, 3>>{{1, 14, 14}, {3, 5, 30}, {2, 33, 7}}) {
          const Shape shape = {geometry, images, rows, columns, groups * group_in, groups * outputs};
          SCOPED_TRACE(Described(shape));
          Operands operands({Device::kCuda, dtype}, shape, random.OneOf(all_margins), random);
          operands.allow_tf32 = true;
          operands.tiling = Conv2dTiling::kFewOutputs;
          const EpilogueCase with = random.OneOf(EpilogueCases());
          const Matrix out = operands.Run(random.OneOf(OutDTypes(dtype)), random.OneOf(all_margins), with);
          // TensorFloat-32 has as many significant bits as float16.
          operands.ExpectOutputs(out, with, random, dtype == DType::kFloat32 ? DType::kFloat16 : dtype);
        }
      }
    }
  }
  // These outputs are computed in slices.
  for (const int32_t group_out : {4, 7, 10, 16}) {
    const Shape shape = {{.kernel_size = {3, 3}, .padding = {1, 1}, .groups = 3}, 2, 31, 17, 3 * 72, 3 * group_out};
    SCOPED_TRACE(Described(shape));
    Operands operands({Device::kCuda, DType::kFloat16}, shape, {}, random);
    operands.tiling = Conv2dTiling::kFewOutputs;
    const EpilogueCase with = {.bias = true, .residual = true, .relu = true};
    operands.ExpectOutputs(operands.Run(DType::kFloat16, {}, with), with, random, DType::kFloat16);
  }
}

TEST(Conv2dCudaTest, RefusesGeometryBeyondItsLimits) {
  SKIP_WITHOUT(Device::kCuda);
  if constexpr (kHasCuda) {
    const Conv2dParams good = {
        .num_images = 0, .in_rows = 8, .in_columns = 8, .in = {.channels = 8}, .out = {.channels = 8}};
    ExpectCudaSuccess(cuda::Conv2d(good, TestStream()));
    const auto expect_refused = [&](const auto& change) {
      Conv2dParams params = good;
      change(params);
      EXPECT_NE(cuda::Conv2d(params, TestStream()), cudaError_t{});
    };
    expect_refused([](Conv2dParams& p) { p.geometry.kernel_size = {8, 1}; });
    expect_refused([](Conv2dParams& p) { p.geometry.kernel_size = {1, 0}; });
    expect_refused([](Conv2dParams& p) { p.geometry.stride = {0, 1}; });
    expect_refused([](Conv2dParams& p) { p.geometry.padding = {0, -1}; });
    expect_refused([](Conv2dParams& p) { p.geometry.dilation = {0, 1}; });
    expect_refused([](Conv2dParams& p) { p.geometry.groups = 3; });
    expect_refused([](Conv2dParams& p) { p.geometry.groups = 0; });
    expect_refused([](Conv2dParams& p) { p.geometry.output_padding = {1, 0}; });
    expect_refused([](Conv2dParams& p) { p.geometry.is_transposed = true, p.geometry.groups = 2; });
    expect_refused([](Conv2dParams& p) { p.geometry.is_transposed = true, p.geometry.output_padding = {1, 0}; });
    expect_refused([](Conv2dParams& p) { p.geometry.is_transposed = true, p.geometry.dilation = {2, 1}; });
    expect_refused([](Conv2dParams& p) { p.in.channels = 0; });
    expect_refused([](Conv2dParams& p) { p.out.dtype = DType::kFloat16; });

    // Each case below sets a tiling that does not support the convolution, so the launcher must refuse it.
    const DeviceArray<float> values(Device::kCuda, std::vector<float>(4096));
    Conv2dParams one = good;
    one.num_images = 1;
    one.in = Rows::Packed(values.data(), DType::kFloat32, 64, 8);
    one.weights = values.data() + 1024;
    one.out = Rows::Packed(values.data() + 2048, DType::kFloat32, 64, 8);
    ExpectCudaSuccess(cuda::Conv2d(one, TestStream()));
    for (const Conv2dTiling tiling : kWarpGroupTilings) {  // they do not support float32
      one.tiling = tiling;
      EXPECT_NE(cuda::Conv2d(one, TestStream()), cudaError_t{});
    }
    one.tiling = Conv2dTiling::kFewOutputs;  // refuses a kernel of one cell
    one.allow_tf32 = true;
    EXPECT_NE(cuda::Conv2d(one, TestStream()), cudaError_t{});
    one.geometry = {.kernel_size = {3, 3}, .padding = {1, 1}};
    one.allow_tf32 = false;  // kFewOutputs has no exact float32 products
    EXPECT_NE(cuda::Conv2d(one, TestStream()), cudaError_t{});
    Synchronize();
  }
}

}  // namespace
}  // namespace voxserve::kernels::conv2d_cuda_test
