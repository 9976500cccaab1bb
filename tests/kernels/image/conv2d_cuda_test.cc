// Tests what only the GPU has of 2D convolutions: every tiling gives the results of the definition, and arguments that
// a launcher does not support are refused.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
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

// Rows of inputs that begin at a multiple of 16 bytes can arrive by tensor copies on Hopper, others cannot. A sample's
// rows may be either, so both must have the same bytes.
TEST(Conv2dCudaTest, FewOutputsHaveTheSameBytesForEveryAlignment) {
  SKIP_WITHOUT(Device::kCuda);
  if (!Takes(Conv2dTiling::kFewOutputs)) GTEST_SKIP() << "This GPU has no products of warps";
  Random random(16);
  unsigned seed = 0;
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    for (Conv2dGeometry geometry : FewOutputsGeometries()) {
      for (const auto& [groups, group_in, group_out] :
           std::vector<std::array<int32_t, 3>>{{6, 64, 3}, {1, 64, 1}, {2, 128, 3}, {3, 192, 2}}) {
        geometry.groups = groups;
        const int32_t cells = geometry.kernel_size[0] * geometry.kernel_size[1];
        const int32_t outputs = cells * group_out <= 32 ? group_out : 1;
        for (const auto& [images, rows, columns] :
             std::vector<std::array<int32_t, 3>>{{1, 3, 2}, {3, 5, 30}, {2, 45, 61}}) {
          const Shape shape = {geometry, images, rows, columns, groups * group_in, groups * outputs};
          SCOPED_TRACE(Described(shape));
          const EpilogueCase with = random.OneOf(EpilogueCases());
          const DType out_dtype = random.OneOf(OutDTypes(dtype));
          ++seed;
          const auto run = [&](const Margins& margins) {
            Random same(seed);
            Operands operands({Device::kCuda, dtype}, shape, margins, same);
            operands.tiling = Conv2dTiling::kFewOutputs;
            return operands.Run(out_dtype, {}, with);
          };
          const Matrix aligned = run({}), unaligned = run({.before = 1});
          for (int64_t position = 0; position < shape.NumOut(); ++position) {
            for (int64_t channel = 0; channel < shape.out_channels; ++channel) {
              ASSERT_EQ(aligned.at(position, channel), unaligned.at(position, channel))
                  << "position " << position << ", channel " << channel;
            }
          }
          EXPECT_EQ(run({.before = 8, .after = 16}).values, aligned.values) << "a slice of wider rows";
        }
      }
    }
  }
}

TEST(Conv2dCudaTest, AnImageOfFewOutputsHasTheSameBytesAloneAndInABatch) {
  SKIP_WITHOUT(Device::kCuda);
  if (!Takes(Conv2dTiling::kFewOutputs)) GTEST_SKIP() << "This GPU has no products of warps";
  Random random(17);
  const Shape all = {{.kernel_size = {3, 3}, .padding = {1, 1}, .groups = 6}, 5, 30, 43, 6 * 64, 6 * 3};
  Operands together({Device::kCuda, DType::kFloat16}, all, {}, random);
  together.tiling = Conv2dTiling::kFewOutputs;
  const EpilogueCase with = {.bias = true, .residual = false, .relu = false};
  const Matrix out = together.Run(DType::kFloat32, {}, with);
  Operands alone = together;
  alone.shape.num_images = 1;
  for (int64_t image = 0; image < all.num_images; ++image) {
    const int64_t in_values = alone.shape.NumIn() * all.in_channels,
                  out_values = alone.shape.NumOut() * all.out_channels;
    alone.in.rows = alone.shape.NumIn();
    alone.in.values.assign(together.in.values.begin() + image * in_values,
                           together.in.values.begin() + (image + 1) * in_values);
    const std::vector<float> expected(out.values.begin() + image * out_values,
                                      out.values.begin() + (image + 1) * out_values);
    EXPECT_EQ(alone.Run(DType::kFloat32, {}, with).values, expected) << "image " << image;
  }
}

// The heads' inputs are overwritten at once, by a convolution that starts before the heads' own has ended.
TEST(Conv2dCudaTest, FewOutputsWaitForTheKernelsBeforeThem) {
  SKIP_WITHOUT(Device::kCuda);
  if (!Takes(Conv2dTiling::kFewOutputs)) GTEST_SKIP() << "This GPU has no products of warps";
  if constexpr (kHasCuda) {
    Random random(18);
    constexpr int kNumRuns = 6;
    constexpr int32_t kRows = 90, kColumns = 100, kGroups = 6;
    const Conv2dGeometry same = {.kernel_size = {3, 3}, .padding = {1, 1}};
    Conv2dGeometry grouped = same;
    grouped.groups = kGroups;
    const Shape hidden = {same, 1, kRows, kColumns, 64, kGroups * 64};
    const Shape heads = {grouped, 1, kRows, kColumns, kGroups * 64, kGroups * 3};
    const Operands first({Device::kCuda, DType::kFloat16}, hidden, {}, random),
        second({Device::kCuda, DType::kFloat16}, heads, {}, random);
    const DeviceValues first_weights(Device::kCuda, DType::kFloat16, first.PackedWeights()),
        second_weights(Device::kCuda, DType::kFloat16, second.PackedWeights());
    std::vector<std::unique_ptr<DeviceMatrix>> images;
    for (int i = 0; i < kNumRuns; ++i) {
      images.push_back(std::make_unique<DeviceMatrix>(Device::kCuda, DType::kFloat16,
                                                      Matrix(hidden.NumIn(), 64, {}, &random, DType::kFloat16)));
    }
    const auto run = [&](bool waits) {
      const DeviceMatrix between(Device::kCuda, DType::kFloat16, Matrix(heads.NumIn(), heads.in_channels, {}, nullptr));
      std::vector<std::vector<uint8_t>> bytes;
      std::vector<std::unique_ptr<DeviceMatrix>> outs;
      for (const auto& image : images) {
        outs.push_back(std::make_unique<DeviceMatrix>(Device::kCuda, DType::kFloat16,
                                                      Matrix(heads.NumOut(), heads.out_channels, {}, nullptr)));
        const auto queue = [&](const Conv2dGeometry& geometry, const Rows& in, const DeviceValues& weights,
                               const Rows& out) {
          ExpectCudaSuccess(cuda::Conv2d({.geometry = geometry,
                                          .num_images = 1,
                                          .in_rows = kRows,
                                          .in_columns = kColumns,
                                          .in = in,
                                          .weights = weights.data(),
                                          .out = out},
                                         TestStream()));
          if (waits) Synchronize();
        };
        queue(same, image->View(), first_weights, between.View());
        queue(grouped, between.View(), second_weights, outs.back()->View());
      }
      Synchronize();
      for (const auto& out : outs) bytes.push_back(out->Bytes());
      return bytes;
    };
    EXPECT_EQ(run(/*waits=*/false), run(/*waits=*/true));
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
