// Compares convolutions of images in 8 bits with loops over whole numbers, byte by byte, for every vector instruction
// set of this machine.

#include <gtest/gtest.h>

#include <memory_resource>
#include <tuple>
#include <vector>

#include "kernels/int8/int8_dispatch.h"
#include "tests/kernels/int8/int8_conv2d_testing.h"
#include "tests/kernels/int8/int8_testing.h"

namespace voxserve::kernels::int8_conv2d_test {
namespace {

// The parameters are the geometry, input channels and output channels.
class Int8Conv2dTest : public testing::TestWithParam<std::tuple<Conv2dGeometry, int, int>> {};

TEST_P(Int8Conv2dTest, HasTheBytesOfItsDefinition) {
  const auto& [geometry, in_channels, out_channels] = GetParam();
  constexpr int32_t kImages = 2, kRows = 9, kColumns = 13;
  const auto out_rows = static_cast<int32_t>(geometry.OutSize(0, kRows));
  const auto out_columns = static_cast<int32_t>(geometry.OutSize(1, kColumns));
  const int32_t num_cells = geometry.kernel_size[0] * geometry.kernel_size[1];
  const int64_t num_out = int64_t{kImages} * out_rows * out_columns;
  Random random(static_cast<uint32_t>(in_channels * 1009 + out_channels + num_cells));
  ThreadPool pool(3);
  for (const Int8Case& c : Cases()) {
    Int8Table in(c.in, kImages * kRows * kColumns, in_channels, 1, 2);
    in.Fill(random);
    Int8Product product(c, num_out, in_channels, out_channels, num_cells, random);
    const Int8Table expected = product.Finish(
        Conv2dSums({geometry, kImages, kRows, kColumns, in_channels, out_channels}, in, product.weights()));
    for (const cpu::Int8Isa* isa : cpu::SupportedInt8Isas()) {
      const std::vector<Int8Line> packed =
          cpu::PackInt8Weights(*isa, product.weights().data(), num_cells, in_channels, out_channels);
      Int8Table out = product.Out();
      cpu::Int8Conv2d(*isa,
                      {.geometry = geometry,
                       .num_images = kImages,
                       .in_rows = kRows,
                       .in_columns = kColumns,
                       .in = in.View(),
                       .weights = packed.data(),
                       .out = out.View(),
                       .epilogue = product.Epilogue()},
                      pool, std::pmr::get_default_resource());
      ASSERT_EQ(out.bytes(), expected.bytes()) << isa->name << ", " << NameOf(c.in) << " to " << NameOf(c.out);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Geometries, Int8Conv2dTest,
    testing::Combine(testing::Values(Conv2dGeometry{.kernel_size = {3, 3}, .padding = {1, 1}},
                                     Conv2dGeometry{.kernel_size = {1, 1}, .stride = {2, 3}},
                                     Conv2dGeometry{.kernel_size = {3, 2}, .stride = {2, 1}, .padding = {0, 1}},
                                     Conv2dGeometry{.kernel_size = {3, 3}, .padding = {4, 2}, .dilation = {2, 3}},
                                     Conv2dGeometry{.kernel_size = {2, 2}, .stride = {2, 2}, .is_transposed = true},
                                     Conv2dGeometry{.kernel_size = {3, 4},
                                                    .stride = {2, 3},
                                                    .padding = {1, 2},
                                                    .output_padding = {1, 0},
                                                    .is_transposed = true}),
                     testing::Values(3, 16, 70), testing::Values(1, 16, 72)));

// The images have many blocks of positions.
TEST(Int8Conv2dBlocksTest, BlocksMeetWithinRows) {
  constexpr int32_t kRows = 61, kColumns = 47, kChannels = 16;
  const Conv2dGeometry geometry{.kernel_size = {3, 3}, .padding = {1, 1}};
  Random random(6);
  ThreadPool pool(3);
  Int8Table in(DType::kUint8, kRows * kColumns, kChannels, 0, 0);
  in.Fill(random);
  const std::vector<int8_t> weights = RandomWeights(random, 9 * kChannels);
  const std::vector<float> one = Padded({1});
  const std::vector<Int8Line> packed = cpu::PackInt8Weights(weights.data(), 9, kChannels, 1);
  Int8Table out(DType::kFloat32, kRows * kColumns, 1, 0, 0);
  cpu::Int8Conv2d({.geometry = geometry,
                   .num_images = 1,
                   .in_rows = kRows,
                   .in_columns = kColumns,
                   .in = in.View(),
                   .weights = packed.data(),
                   .out = out.View(),
                   .epilogue = {.multiplier = one.data()}},
                  pool, std::pmr::get_default_resource());
  for (int32_t y = 0; y < kRows; ++y) {
    for (int32_t x = 0; x < kColumns; ++x) {
      int64_t sum = 0;
      for (int32_t cell = 0; cell < 9; ++cell) {
        const int32_t in_y = y + cell / 3 - 1, in_x = x + cell % 3 - 1;
        if (in_y < 0 || in_y >= kRows || in_x < 0 || in_x >= kColumns) continue;
        for (int32_t i = 0; i < kChannels; ++i) {
          sum += static_cast<int64_t>(in.Get(in_y * kColumns + in_x, i)) *
                 weights[static_cast<size_t>(cell * kChannels + i)];
        }
      }
      ASSERT_EQ(out.Get(y * kColumns + x, 0), static_cast<float>(sum)) << y << ", " << x;
    }
  }
}

}  // namespace
}  // namespace voxserve::kernels::int8_conv2d_test
