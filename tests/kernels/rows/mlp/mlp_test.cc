// Tests which channels an MLP's kernel takes, and that its packed weights are where the kernel's products read them.

#include "kernels/rows/mlp/mlp.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/rows/mlp/mlp_layout.h"

namespace voxserve::kernels::mlp_test {
namespace {

struct Channels {
  int32_t in, hidden, out;
};

void ExpectShape(const Channels& channels, const MlpShape& expected) {
  const MlpShape shape = MlpShapeOf(channels.in, channels.hidden, channels.out);
  EXPECT_EQ(shape.padded_in, expected.padded_in) << channels.in << " " << channels.hidden << " " << channels.out;
  EXPECT_EQ(shape.padded_hidden, expected.padded_hidden);
  EXPECT_EQ(shape.padded_out, expected.padded_out);
}

TEST(MlpShapeTest, PadsChannelsToThoseOfAKernel) {
  ExpectShape({32, 128, 32}, {32, 128, 32});
  ExpectShape({64, 256, 64}, {64, 256, 64});
  ExpectShape({36, 144, 36}, {64, 192, 64});
  ExpectShape({72, 288, 72}, {96, 320, 96});
  ExpectShape({96, 384, 96}, {96, 384, 96});
  ExpectShape({144, 576, 144}, {192, 576, 192});
  ExpectShape({252, 1008, 252}, {256, 1024, 256});
  ExpectShape({256, 1024, 256}, {256, 1024, 256});
  ExpectShape({1, 1, 1}, {32, 64, 32});
}

TEST(MlpShapeTest, FewInputsDoNotNeedAsManyAsOutputs) {
  ExpectShape({3, 192, 192}, {32, 192, 192});
  ExpectShape({32, 128, 128}, {32, 128, 128});
  ExpectShape({2, 64, 250}, {256, 64, 256});
  ExpectShape({33, 192, 192}, {192, 192, 192});
}

TEST(MlpShapeTest, WideInputsPadTheOutput) { ExpectShape({200, 64, 10}, {256, 64, 256}); }

TEST(MlpShapeTest, OtherChannelsHaveNoKernel) {
  ExpectShape({257, 512, 256}, {});
  ExpectShape({256, 512, 257}, {});
  ExpectShape({256, 1025, 256}, {});
  ExpectShape({0, 64, 64}, {});
  ExpectShape({64, 0, 64}, {});
  ExpectShape({64, 64, 0}, {});
}

// Returns the value at (row, column) of a second factor, as warp_group_products.cuh says it is stored: rows of 128 or
// 64 bytes, whose vectors of 8 values are swizzled. Wider rows are slices, one after the other.
float ValueOf(const float* factor, int32_t num_rows, int32_t row_values, int32_t row, int32_t column) {
  const int32_t slice = column / row_values, in_slice = column % row_values;
  const int32_t vector = in_slice / 8, place = row_values == 64 ? vector ^ row % 8 : vector ^ row / 2 % 4;
  return factor[(slice * num_rows + row) * row_values + place * 8 + in_slice % 8];
}

// The channel that lane 4 g + t holds as its value `pair`, `in_pair` of step `step` of a factor, if the lane has loaded
// 8 neighbouring channels from 32 * (step / 2) + 8 t on, and gives the first four to the first step of two.
int32_t ChannelOfLane(int32_t step, int32_t t, int32_t pair, int32_t in_pair) {
  return step / 2 * 32 + 8 * t + step % 2 * 4 + 2 * pair + in_pair;
}

// A thread's columns of step s are 16 s + 2 t + {0, 1} and 16 s + 2 t + 8 + {0, 1}.
void ForEachColumn(int32_t padded, const auto& visit) {
  for (int32_t step = 0; step < padded / 16; ++step) {
    for (int32_t t = 0; t < 4; ++t) {
      for (int32_t pair = 0; pair < 2; ++pair) {
        for (int32_t in_pair = 0; in_pair < 2; ++in_pair) {
          visit(16 * step + 8 * pair + 2 * t + in_pair, ChannelOfLane(step, t, pair, in_pair));
        }
      }
    }
  }
}

TEST(MlpWeightsTest, AreWhereTheProductsReadThem) {
  for (const auto& [in, hidden, out] : std::vector<Channels>{
           {32, 128, 32}, {64, 256, 64}, {96, 384, 96}, {252, 1008, 252}, {3, 192, 192}, {36, 100, 33}}) {
    SCOPED_TRACE(in);
    std::vector<float> first(static_cast<size_t>(in * hidden)), second(static_cast<size_t>(hidden * out));
    for (size_t i = 0; i < first.size(); ++i) first[i] = static_cast<float>(i + 1);
    for (size_t i = 0; i < second.size(); ++i) second[i] = -static_cast<float>(i + 1);
    const MlpShape shape = MlpShapeOf(in, hidden, out);
    const std::vector<float> packed = PackMlpWeights(in, hidden, out, first.data(), second.data());
    const int32_t first_values = 64 * shape.padded_in, chunk_values = first_values + 64 * shape.padded_out;
    ASSERT_EQ(packed.size(), static_cast<size_t>(shape.padded_hidden / 64 * chunk_values));
    const int32_t row_values = shape.padded_in % 64 == 0 ? 64 : 32;
    for (int32_t h = 0; h < shape.padded_hidden; ++h) {
      const float* const chunk = packed.data() + h / 64 * chunk_values;
      ForEachColumn(shape.padded_in, [&](int32_t column, int32_t channel) {
        const bool exists = h < hidden && channel < in;
        const float expected = exists ? first[static_cast<size_t>(channel * hidden + h)] : 0.0f;
        ASSERT_EQ(ValueOf(chunk, 64, row_values, h % 64, column), expected) << h << " " << channel;
      });
      // The sums' columns are the rows of the second factor. A thread has the same columns of sums as of factors.
      ForEachColumn(shape.padded_out, [&](int32_t column, int32_t channel) {
        const bool exists = h < hidden && channel < out;
        const float expected = exists ? second[static_cast<size_t>(h * out + channel)] : 0.0f;
        ASSERT_EQ(ValueOf(chunk + first_values, shape.padded_out, 64, column, h % 64), expected) << h << " " << channel;
      });
    }
  }
}

}  // namespace
}  // namespace voxserve::kernels::mlp_test
