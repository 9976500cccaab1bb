// Tests the order of the weights that convolutions of images in 8 bits read (kernels/image/int8/int8_im2col_weights.h),
// by reading them as a warp group's product does.

#include "kernels/image/int8/int8_im2col_weights.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "kernels/image/conv2d_im2col_limits.h"
#include "kernels/image/int8/int8_im2col.h"

namespace voxserve::kernels::int8_im2col_weights_test {
namespace {

// Returns the byte of a chunk that a product takes as value k of a column, by the address bits that hardware swizzles:
// with rows of 128 bytes bits 4 to 6 are combined with bits 7 to 9, with rows of 64 bytes bits 4 and 5 with 7 and 8.
int64_t AddressOf(int32_t row_bytes, int64_t column, int64_t k) {
  const int64_t address = column * row_bytes + k;
  return address ^ ((address >> 7 & (row_bytes == 128 ? 7 : 3)) << 4);
}

// Returns the output channel whose sum lane t of four holds in register `sum` of those of 32 columns and one row.
// Register 2 j + odd has column 8 j + 2 t + odd (warp_group_products.cuh). A lane stores its registers as channels 8 t
// to 8 t + 7.
struct Held {
  int32_t column, channel;
};
Held HeldBy(int32_t t, int32_t sum) { return {8 * (sum / 2) + 2 * t + sum % 2, 8 * t + sum}; }

class Int8Im2colWeightsTest : public testing::TestWithParam<std::tuple<Conv2dGeometry, int, int>> {};

TEST_P(Int8Im2colWeightsTest, EachLaneHoldsEightNeighbouringChannels) {
  const auto& [geometry, in_channels, out_channels] = GetParam();
  const int32_t num_cells = geometry.kernel_size[0] * geometry.kernel_size[1];
  // The weight's bytes tell its cell, input channel and output channel; 0 is padding.
  const auto weight = [&](int32_t cell, int32_t i, int32_t o) {
    return static_cast<int8_t>(1 + (cell * 59 + i * 7 + o * 31) % 126);
  };
  std::vector<int8_t> weights;
  for (int32_t cell = 0; cell < num_cells; ++cell) {
    for (int32_t i = 0; i < in_channels; ++i) {
      for (int32_t o = 0; o < out_channels; ++o) weights.push_back(weight(cell, i, o));
    }
  }
  const Int8Im2colWeights layout(geometry, in_channels, out_channels);
  const std::vector<int8_t> packed = PackInt8Im2colWeights(geometry, in_channels, out_channels, weights.data());
  ASSERT_EQ(static_cast<int64_t>(packed.size()), layout.PhaseBytes() * NumPhases(geometry));
  std::vector<bool> is_read(packed.size());
  for (int32_t phase = 0; phase < NumPhases(geometry); ++phase) {
    const Conv2dPhase rows = PhaseOf(geometry, 0, 1, phase / NumPhases(geometry, 1));
    const Conv2dPhase columns = PhaseOf(geometry, 1, 1, phase % NumPhases(geometry, 1));
    // The order in which the copier goes through the chunks of a phase.
    int64_t chunk = 0;
    for (int32_t first = 0; first < in_channels; first += layout.row_bytes) {
      for (int32_t column_cell = 0; column_cell < columns.num_cells; ++column_cell) {
        for (int32_t row_cell = 0; row_cell < rows.num_cells; ++row_cell, ++chunk) {
          const int32_t cell = (rows.first_cell + row_cell * rows.cell_step) * geometry.kernel_size[1] +
                               columns.first_cell + column_cell * columns.cell_step;
          const int64_t begin = phase * layout.PhaseBytes() + chunk * layout.padded_out_channels * layout.row_bytes;
          for (int32_t part = 0; part < layout.padded_out_channels; part += 32) {
            for (int32_t t = 0; t < 4; ++t) {
              for (int32_t sum = 0; sum < 8; ++sum) {
                const auto [column, channel] = HeldBy(t, sum);
                for (int32_t k = 0; k < layout.row_bytes; ++k) {
                  const auto at = static_cast<size_t>(begin + AddressOf(layout.row_bytes, part + column, k));
                  ASSERT_FALSE(is_read[at]);
                  is_read[at] = true;
                  const int32_t o = part + channel;
                  ASSERT_EQ(packed[at], o < out_channels ? weight(cell, first + k, o) : 0)
                      << "phase " << phase << ", cell " << cell << ", input " << first + k << ", output " << o;
                }
              }
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Geometries, Int8Im2colWeightsTest,
    testing::Combine(
        testing::Values(Conv2dGeometry(), Conv2dGeometry{.kernel_size = {3, 2}, .padding = {1, 1}},
                        Conv2dGeometry{.kernel_size = {2, 2}, .stride = {2, 2}, .is_transposed = true},
                        Conv2dGeometry{.kernel_size = {4, 4}, .stride = {4, 4}, .is_transposed = true},
                        Conv2dGeometry{
                            .kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .is_transposed = true}),
        testing::Values(64, 128, 192), testing::Values(8, 40, 128)));

TEST(IsForInt8Im2colTest, SaysWhatIsServed) {
  const Conv2dGeometry same = {.kernel_size = {3, 3}, .padding = {1, 1}};
  EXPECT_TRUE(IsForInt8Im2col(same, 188, 188, 128));
  EXPECT_TRUE(IsForInt8Im2col(same, 188, 188, 64));
  EXPECT_TRUE(IsForInt8Im2col({.kernel_size = {2, 2}, .stride = {2, 2}, .is_transposed = true}, 94, 94, 256));
  EXPECT_FALSE(IsForInt8Im2col(same, 188, 188, 96));
  EXPECT_FALSE(IsForInt8Im2col(same, 188, 188, 0));
  Conv2dGeometry grouped = same;
  grouped.groups = 2;
  EXPECT_FALSE(IsForInt8Im2col(grouped, 188, 188, 128));
  EXPECT_FALSE(IsForInt8Im2col({.kernel_size = {3, 3}, .padding = {129, 1}}, 188, 188, 128));
  EXPECT_TRUE(IsForInt8Im2col({.kernel_size = {4, 4}, .stride = {4, 4}, .is_transposed = true}, 117, 117, 256));
  EXPECT_FALSE(IsForInt8Im2col({.kernel_size = {5, 5}, .stride = {5, 5}, .is_transposed = true}, 94, 94, 128))
      << "25 phases";
  EXPECT_FALSE(IsForInt8Im2col({.stride = {2, 2}, .is_transposed = true}, 94, 94, 128)) << "phases without cells";
  EXPECT_FALSE(IsForInt8Im2col({.kernel_size = {7, 7}}, 94, 94, 64 * 64)) << "sums that may exceed an int32";
}

}  // namespace
}  // namespace voxserve::kernels::int8_im2col_weights_test
