// Tests the order in which convolutions of images on a GPU add up products (kernels/image/conv2d_summed_axis.h).

#include "kernels/image/conv2d_summed_axis.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace voxserve::kernels {
namespace {

constexpr int32_t kChunkChannels = 64;

// Returns how often each place of an axis of 3 rows and 2 columns of cells is taken.
std::vector<int> Taken(const Conv2dSummedAxis& axis) {
  std::vector<int> taken(static_cast<size_t>(axis.num_cell_rows * axis.num_cell_columns * axis.cell_channels));
  for (int32_t row = 0; row < axis.num_cell_rows; ++row) {
    for (int32_t column = 0; column < axis.num_cell_columns; ++column) {
      for (int32_t channel = 0; channel < axis.cell_channels; ++channel) {
        ++taken.at(static_cast<size_t>(axis.PlaceOf(row, column, channel)));
      }
    }
  }
  return taken;
}

TEST(Conv2dSummedAxisTest, EveryPairHasAPlaceOfItsOwn) {
  for (const int32_t channels : {8, 56, 64, 72, 128, 136, 192}) {
    const Conv2dSummedAxis axis = {3, 2, channels, kChunkChannels};
    EXPECT_EQ(Taken(axis), std::vector<int>(static_cast<size_t>(3 * 2 * channels), 1)) << channels;
  }
}

// So a box of inputs serves the cells of a column one after the other.
TEST(Conv2dSummedAxisTest, AChunkOfChannelsMeetsTheCellsColumnByColumn) {
  const Conv2dSummedAxis axis = {3, 2, 2 * kChunkChannels, kChunkChannels};
  EXPECT_TRUE(axis.IsByChannels());
  int32_t place = 0;
  for (int32_t chunk = 0; chunk < 2; ++chunk) {
    for (int32_t column = 0; column < 2; ++column) {
      for (int32_t row = 0; row < 3; ++row) {
        for (int32_t i = 0; i < kChunkChannels; ++i) {
          EXPECT_EQ(axis.PlaceOf(row, column, chunk * kChunkChannels + i), place++);
        }
      }
    }
  }
}

TEST(Conv2dSummedAxisTest, OtherwiseACellHasAllItsChannelsTogether) {
  const Conv2dSummedAxis axis = {3, 2, 72, kChunkChannels};
  EXPECT_FALSE(axis.IsByChannels());
  EXPECT_EQ(axis.PlaceOf(0, 1, 0), 72);
  EXPECT_EQ(axis.PlaceOf(1, 0, 5), 2 * 72 + 5);
  EXPECT_EQ(axis.PlaceOf(2, 1, 71), 6 * 72 - 1);
}

}  // namespace
}  // namespace voxserve::kernels
