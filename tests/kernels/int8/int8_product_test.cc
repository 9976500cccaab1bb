// Compares products in 8 bits with loops over whole numbers, byte by byte, for every vector instruction set of this
// machine. The cases reach every path of the register tiles: whole and partial vectors, words and row tiles.

#include "kernels/int8/int8_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory_resource>
#include <new>
#include <tuple>
#include <vector>

#include "kernels/int8/int8_dispatch.h"
#include "tests/kernels/conv/rulebook_testing.h"
#include "tests/kernels/int8/int8_testing.h"

namespace voxserve::kernels::int8_product_test {
namespace {

// Adds the products of a convolution to the sums [rows, out_channels].
void AddConvolution(const RulebookView& view, const Int8Table& in, int32_t in_channels, const Int8Product& product,
                    int32_t out_channels, std::vector<int64_t>& sums) {
  for (int32_t k = 0; k < view.num_offsets; ++k) {
    for (int64_t p = view.offset_begin[k]; p < view.offset_begin[k + 1]; ++p) {
      for (int32_t i = 0; i < in_channels; ++i) {
        const auto value = static_cast<int64_t>(in.Get(view.in_rows[p], i));
        for (int32_t o = 0; o < out_channels; ++o) {
          sums[static_cast<size_t>(int64_t{view.out_rows[p]} * out_channels + o)] += value * product.Weights(k, i)[o];
        }
      }
    }
  }
}

// The parameters are rows, input channels, output channels, and rows of a block.
class Int8ConvTest : public testing::TestWithParam<std::tuple<int, int, int, int>> {};

TEST_P(Int8ConvTest, HasTheBytesOfItsDefinition) {
  const auto [rows, in_channels, out_channels, block_rows] = GetParam();
  Random random(static_cast<uint32_t>(rows * 1000003 + in_channels * 1009 + out_channels));
  ThreadPool pool(3);
  constexpr int kOffsets = 4;
  const int64_t num_in = rows + rows / 3;
  const Rulebook rulebook = RandomRulebook(kOffsets, num_in, rows, 0.6, random);
  const RulebookView view = rulebook.View();
  for (const Int8Case& c : Cases()) {
    Int8Table in(c.in, num_in, in_channels, 1, 2);
    in.Fill(random);
    Int8Product product(c, rows, in_channels, out_channels, kOffsets, random);
    std::vector<int64_t> sums(static_cast<size_t>(int64_t{rows} * out_channels));
    AddConvolution(view, in, in_channels, product, out_channels, sums);
    const Int8Table expected = product.Finish(sums);
    for (const cpu::Int8Isa* isa : cpu::SupportedInt8Isas()) {
      const std::vector<Int8Line> packed =
          cpu::PackInt8Weights(*isa, product.weights().data(), kOffsets, in_channels, out_channels);
      Int8Table out = product.Out();
      cpu::Int8Conv(*isa,
                    {.rulebook = view,
                     .in = in.View(),
                     .weights = packed.data(),
                     .out = out.View(),
                     .epilogue = product.Epilogue(),
                     .block_rows = block_rows},
                    pool, std::pmr::get_default_resource());
      ASSERT_EQ(out.bytes(), expected.bytes()) << isa->name << ", " << NameOf(c.in) << " to " << NameOf(c.out);
    }
  }
}

TEST(Int8ShortcutTest, ASumHasTheProductsOfBoth) {
  constexpr int kOffsets = 3, kRows = 210, kIn = 20, kShortcut = 33, kOut = 35;
  Random random(17);
  ThreadPool pool(3);
  const Rulebook rulebook = RandomRulebook(kOffsets, kRows + 9, kRows, 0.4, random);
  const RulebookView view = rulebook.View();
  for (const Int8Case& c : Cases()) {
    Int8Table in(c.in, kRows + 9, kIn, 1, 2), shortcut(c.in, kRows, kShortcut, 0, 3);
    in.Fill(random);
    shortcut.Fill(random);
    Int8Product product(c, kRows, kIn, kOut, kOffsets, random);
    const std::vector<int8_t> shortcut_weights = RandomWeights(random, kShortcut * kOut);
    std::vector<int64_t> sums(size_t{kRows} * kOut);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int32_t o = 0; o < kOut; ++o) {
        for (int32_t i = 0; i < kShortcut; ++i) {
          sums[static_cast<size_t>(row * kOut + o)] +=
              static_cast<int64_t>(shortcut.Get(row, i)) * shortcut_weights[static_cast<size_t>(i * kOut + o)];
        }
      }
    }
    AddConvolution(view, in, kIn, product, kOut, sums);
    const Int8Table expected = product.Finish(sums);
    for (const cpu::Int8Isa* isa : cpu::SupportedInt8Isas()) {
      const auto packed = cpu::PackInt8Weights(*isa, product.weights().data(), kOffsets, kIn, kOut);
      const auto packed_shortcut = cpu::PackInt8Weights(*isa, shortcut_weights.data(), 1, kShortcut, kOut);
      for (const int32_t block_rows : {0, 64}) {
        Int8Table out = product.Out();
        cpu::Int8Conv(*isa,
                      {.rulebook = view,
                       .in = in.View(),
                       .weights = packed.data(),
                       .out = out.View(),
                       .epilogue = product.Epilogue(),
                       .shortcut_in = shortcut.View(),
                       .shortcut_weights = packed_shortcut.data(),
                       .block_rows = block_rows},
                      pool, std::pmr::get_default_resource());
        ASSERT_EQ(out.bytes(), expected.bytes()) << isa->name << ", " << NameOf(c.in) << " to " << NameOf(c.out);
      }
    }
  }
}

// The parameters are rows, input channels and output channels.
class Int8LinearTest : public testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(Int8LinearTest, HasTheBytesOfItsDefinition) {
  const auto [rows, in_channels, out_channels] = GetParam();
  Random random(static_cast<uint32_t>(rows * 1000003 + in_channels * 1009 + out_channels + 1));
  ThreadPool pool(2);
  for (const Int8Case& c : Cases()) {
    Int8Table in(c.in, rows, in_channels, 2, 1);
    in.Fill(random);
    Int8Product product(c, rows, in_channels, out_channels, 1, random);
    std::vector<int64_t> sums;
    for (int64_t row = 0; row < rows; ++row) {
      for (int32_t o = 0; o < out_channels; ++o) {
        int64_t& sum = sums.emplace_back();
        for (int32_t i = 0; i < in_channels; ++i) {
          sum += static_cast<int64_t>(in.Get(row, i)) * product.Weights(0, i)[o];
        }
      }
    }
    const Int8Table expected = product.Finish(sums);
    for (const cpu::Int8Isa* isa : cpu::SupportedInt8Isas()) {
      const std::vector<Int8Line> packed =
          cpu::PackInt8Weights(*isa, product.weights().data(), 1, in_channels, out_channels);
      Int8Table out = product.Out();
      cpu::Int8Linear(*isa,
                      {.in = in.View(), .weights = packed.data(), .out = out.View(), .epilogue = product.Epilogue()},
                      pool, std::pmr::get_default_resource());
      ASSERT_EQ(out.bytes(), expected.bytes()) << isa->name << ", " << NameOf(c.in) << " to " << NameOf(c.out);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Channels, Int8ConvTest,
                         testing::Combine(testing::Values(0, 1, 65, 210), testing::Values(1, 4, 7, 32, 259),
                                          testing::Values(1, 8, 16, 19, 33, 48, 64, 80, 96, 112),
                                          testing::Values(0, 64)));
INSTANTIATE_TEST_SUITE_P(Channels, Int8LinearTest,
                         testing::Combine(testing::Values(0, 1, 65, 210), testing::Values(1, 4, 7, 32, 259, 1100),
                                          testing::Values(1, 8, 16, 19, 33, 48, 64, 80, 96, 112)));

// The largest numbers of all layers that FindInt8Candidates allows. Instructions that add in 16 bits would saturate.
TEST(Int8SumsTest, TheLargestSumsAreExact) {
  const auto in_channels = static_cast<int32_t>(kMaxInt8Products);
  ThreadPool pool(1);
  for (const DType dtype : {DType::kUint8, DType::kInt8}) {
    for (const int8_t weight : {int8_t{127}, int8_t{-127}}) {
      Int8Table in(dtype, 1, in_channels, 0, 0);
      const float largest = dtype == DType::kUint8 ? 255 : -127;
      for (int32_t i = 0; i < in_channels; ++i) in.Set(0, i, largest);
      const std::vector<int8_t> weights(static_cast<size_t>(in_channels), weight);
      const std::vector<float> one = Padded({1});
      for (const cpu::Int8Isa* isa : cpu::SupportedInt8Isas()) {
        const std::vector<Int8Line> packed = cpu::PackInt8Weights(*isa, weights.data(), 1, in_channels, 1);
        Int8Table out(DType::kFloat32, 1, 1, 0, 0);
        cpu::Int8Linear(
            *isa,
            {.in = in.View(), .weights = packed.data(), .out = out.View(), .epilogue = {.multiplier = one.data()}},
            pool, std::pmr::get_default_resource());
        EXPECT_EQ(out.Get(0, 0), static_cast<float>(int64_t{in_channels} * static_cast<int64_t>(largest) * weight))
            << isa->name;
      }
    }
  }
}

TEST(Int8SumsTest, RefusedMemoryIsAnException) {
  ThreadPool pool(2);
  Int8Table in(DType::kUint8, 10, 4, 0, 0), out(DType::kFloat32, 10, 4, 0, 0);
  const std::vector<int8_t> weights(16, 1);
  const std::vector<Int8Line> packed = cpu::PackInt8Weights(weights.data(), 1, 4, 4);
  const std::vector<float> one = Padded({1, 1, 1, 1});
  const Int8LinearParams params{
      .in = in.View(), .weights = packed.data(), .out = out.View(), .epilogue = {.multiplier = one.data()}};
  EXPECT_THROW(cpu::Int8Linear(params, pool, std::pmr::null_memory_resource()), std::bad_alloc);
}

TEST(Int8RowsTest, RoundsHalfToEvenSaturatesAndMakesNaNZero) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> values = {0.5f, 1.5f, -0.5f, -1.5f, 300, -300, kNaN, INFINITY, -INFINITY, 126.5f, 127.5f};
  const std::vector<float> unsigned_bytes = {0, 2, 0, 0, 255, 0, 0, 255, 0, 126, 128};
  const std::vector<float> signed_bytes = {0, 2, 0, -2, 127, -127, 0, 127, -127, 126, 127};
  const auto channels = static_cast<int32_t>(values.size());
  const std::vector<float> half = Padded(std::vector<float>(values.size(), 0.5f));
  const std::vector<float> two = Padded(std::vector<float>(values.size(), 2.0f));
  ThreadPool pool(2);
  for (const cpu::Int8Isa* isa : cpu::SupportedInt8Isas()) {
    SCOPED_TRACE(isa->name);
    for (const DType dtype : {DType::kUint8, DType::kInt8}) {
      const std::vector<float>& expected = dtype == DType::kUint8 ? unsigned_bytes : signed_bytes;
      constexpr int64_t kRows = 1500;  // two blocks
      Int8Table in(DType::kFloat32, kRows, channels, 1, 0), bytes(dtype, kRows, channels, 1, 1);
      Int8Table back(DType::kFloat32, kRows, channels, 0, 3), moved(dtype, kRows, channels, 0, 1);
      for (int64_t row = 0; row < kRows; ++row) {
        for (int32_t c = 0; c < channels; ++c) in.Set(row, c, values[static_cast<size_t>(c)] / 2);
      }
      cpu::ConvertInt8Rows(*isa, {.in = in.View(), .out = bytes.View(), .inverse_scale = two.data()}, pool);
      cpu::ConvertInt8Rows(*isa, {.in = bytes.View(), .in_scale = half.data(), .out = back.View()}, pool);
      cpu::ConvertInt8Rows(
          *isa, {.in = bytes.View(), .in_scale = half.data(), .out = moved.View(), .inverse_scale = two.data()}, pool);
      for (const int64_t row : {int64_t{0}, kRows - 1}) {
        for (int32_t c = 0; c < channels; ++c) {
          const float byte = expected[static_cast<size_t>(c)];
          EXPECT_EQ(bytes.Get(row, c), byte) << c;
          EXPECT_EQ(back.Get(row, c), byte / 2) << c;
          EXPECT_EQ(moved.Get(row, c), byte) << c;
        }
      }
    }
  }
}

TEST(QuantiseWeightsTest, WeightsOfOneMagnitudeAreExact) {
  const QuantisedWeights q = QuantiseWeights({1, 0, -0.25f, -1, 0, 0.25f, 1, 0, 0}, 3);
  EXPECT_EQ(q.values, (std::vector<int8_t>{127, 0, -127, -127, 0, 127, 127, 0, 0}));
  EXPECT_FLOAT_EQ(q.scale[0], 1 / 127.0f);
  EXPECT_EQ(q.scale[1], 0);
  EXPECT_FLOAT_EQ(q.scale[2], 0.25f / 127);
}

TEST(QuantiseWeightsTest, TheSquaredErrorIsTheLeastOfTheScalesThatAreTried) {
  Random random(5);
  std::vector<float> weights = random.Floats(80000);
  for (size_t i = 0; i < weights.size(); i += 2) weights[i] *= 0.01f;
  for (size_t i = 21; i < weights.size(); i += 2) weights[i] = 0;
  weights[0] = 0.012f;  // the largest of channel 0: its other 39,999 weights gain if it is clipped
  weights[1] = 1.5f;    // too few others would gain
  const QuantisedWeights q = QuantiseWeights(weights, 2);
  const auto error = [&](size_t channel, double scale) {
    double sum = 0;
    for (size_t i = channel; i < weights.size(); i += 2) {
      const double number = std::nearbyint(std::fmin(std::fmax(weights[i] / scale, -127), 127));
      sum += std::pow(weights[i] - number * scale, 2);
    }
    return sum;
  };
  for (size_t channel = 0; channel < 2; ++channel) {
    double largest = 0, least = std::numeric_limits<double>::infinity();
    for (size_t i = channel; i < weights.size(); i += 2) largest = std::fmax(largest, std::fabs(weights[i]));
    for (int percent = 750; percent <= 1000; percent += 25) {
      least = std::fmin(least, error(channel, largest / 127 * percent / 1000));
    }
    EXPECT_NEAR(error(channel, q.scale[channel]), least, 1e-4 * least);
    for (size_t i = channel; i < weights.size(); i += 2) {
      EXPECT_NEAR(q.values[i], std::fmin(std::fmax(weights[i] / q.scale[channel], -127), 127), 0.5001) << i;
    }
  }
  EXPECT_LT(q.scale[0], 0.012f / 127);
  EXPECT_FLOAT_EQ(q.scale[1], 1.5f / 127);
}

TEST(SupportedInt8IsasTest, TheFastestComesFirstAndTheBaselineIsAlwaysThere) {
  const std::vector<const cpu::Int8Isa*>& isas = cpu::SupportedInt8Isas();
  EXPECT_STREQ(isas.front()->name, cpu::Int8InstructionSet());
  EXPECT_STREQ(isas.back()->name, "baseline");
}

}  // namespace
}  // namespace voxserve::kernels::int8_product_test
