// Compares the CPU's sparse convolution with naive loops in double. The cases reach every path of the register tiles
// (whole and partial vectors, whole and partial row tiles), with pitches and epilogues.

#include <gtest/gtest.h>

#include <tuple>
#include <utility>
#include <vector>

#include "kernels/conv/fetch_on_demand_dispatch.h"
#include "tests/kernels/conv/rulebook_testing.h"
#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels::convolution_test {
namespace {

// The parameters are rows, input channels, output channels, and rows of a block.
class ConvolutionTest : public testing::TestWithParam<std::tuple<int, int, int, int>> {};

TEST_P(ConvolutionTest, EqualsTheNaiveLoop) {
  const auto [rows, in_channels, out_channels, block_rows] = GetParam();
  Random random(static_cast<uint32_t>(rows * 1000003 + in_channels * 1009 + out_channels));
  ThreadPool pool(3);
  constexpr int kOffsets = 5;
  const int64_t num_in = rows + rows / 3;
  const Rulebook rulebook = RandomRulebook(kOffsets, num_in, rows, 0.6, random);
  Matrix in(num_in, in_channels, {.before = 1, .after = 2}, &random);
  const std::vector<float> weights = random.Floats(int64_t{kOffsets} * in_channels * out_channels);
  const std::vector<float> bias = random.Floats(out_channels);
  Matrix residual(rows, out_channels, {.after = 1}, &random);
  for (const EpilogueCase& c : EpilogueCases()) {
    const Epilogue epilogue = c.With(bias.data(), residual.View());
    const Expected expected = NaiveConvolution(rulebook.View(), in, weights, out_channels, c.bias ? &bias : nullptr,
                                               c.residual ? &residual : nullptr, c.relu);
    for (const cpu::Isa* isa : cpu::SupportedIsas()) {
      SCOPED_TRACE(isa->name);
      const std::vector<float> packed = cpu::PackWeights(*isa, weights.data(), kOffsets, in_channels, out_channels);
      Matrix out(rows, out_channels, {.before = 2, .after = 3}, nullptr);
      cpu::FetchOnDemand(*isa,
                         {.rulebook = rulebook.View(),
                          .operands = {in.View(), out.View(), packed.data(), epilogue},
                          .block_rows = block_rows},
                         pool);
      ExpectNear(out, expected, DType::kFloat32);
    }
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Channels, ConvolutionTest,
                         testing::Combine(testing::Values(0, 1, 63, 64, 65, 300), testing::Values(1, 4, 5, 32),
                                          testing::Values(1, 3, 8, 12, 16, 17, 24, 31, 40, 48),
                                          testing::Values(0, 64)));

// These output channels are 3 to 9 vectors of AVX-512 and 7 to 18 of AVX2, so panels of three, of two, and of both.
INSTANTIATE_TEST_SUITE_P(WideChannels, ConvolutionTest,
                         testing::Combine(testing::Values(1, 65, 300), testing::Values(5, 33),
                                          testing::Values(56, 64, 80, 96, 112, 128, 144, 150), testing::Values(0)));

TEST(SupportedIsasTest, TheWidestComesFirstAndTheBaselineIsAlwaysThere) {
  const std::vector<const cpu::Isa*>& isas = cpu::SupportedIsas();
  EXPECT_STREQ(isas.front()->name, cpu::VectorInstructionSet());
  EXPECT_STREQ(isas.back()->name, "baseline");
  for (size_t i = 1; i < isas.size(); ++i) EXPECT_GE(isas[i - 1]->vector_floats, isas[i]->vector_floats);
}

// Returns the rulebook without the pairs of output rows that are not multiples of `step`.
Rulebook Thinned(const Rulebook& full, int32_t num_offsets, int32_t step) {
  Rulebook thin{.num_out_rows = full.num_out_rows, .num_in_rows = full.num_in_rows};
  const int64_t num_tiles = full.View().num_tiles();
  thin.tile_begin.resize(full.tile_begin.size());
  thin.offset_begin.push_back(0);
  for (int32_t k = 0; k < num_offsets; ++k) {
    for (int64_t tile = 0; tile <= num_tiles; ++tile) {
      const auto place = static_cast<size_t>(tile * num_offsets + k);
      thin.tile_begin[place] = static_cast<int64_t>(thin.out_rows.size());
      if (tile == num_tiles) break;
      const int64_t end = full.tile_begin[place + static_cast<size_t>(num_offsets)];
      for (int64_t p = full.tile_begin[place]; p < end; ++p) {
        const auto pair = static_cast<size_t>(p);
        if (full.out_rows[pair] % step != 0) continue;
        thin.in_rows.push_back(full.in_rows[pair]);
        thin.out_rows.push_back(full.out_rows[pair]);
      }
    }
    thin.offset_begin.push_back(static_cast<int64_t>(thin.out_rows.size()));
  }
  return thin;
}

// So an answer does not depend on the other clouds of its batch.
TEST(FetchOnDemandTest, ARowsBitsDoNotDependOnTheRowsThatShareItsTile) {
  constexpr int kOffsets = 4;
  constexpr int64_t kRows = 500;
  ThreadPool pool(2);
  for (const auto& [in_channels, out_channels] : {std::pair{7, 30}, {32, 32}, {33, 12}, {4, 20}, {16, 48}, {9, 80}}) {
    Random random(static_cast<uint32_t>(in_channels));
    const Rulebook full = RandomRulebook(kOffsets, kRows, kRows, 0.7, random);
    Matrix in(kRows, in_channels, {}, &random);
    const std::vector<float> weights = random.Floats(int64_t{kOffsets} * in_channels * out_channels);
    for (const cpu::Isa* isa : cpu::SupportedIsas()) {
      const std::vector<float> packed = cpu::PackWeights(*isa, weights.data(), kOffsets, in_channels, out_channels);
      const auto convolve = [&](const Rulebook& rulebook) {
        Matrix out(kRows, out_channels, {}, nullptr);
        cpu::FetchOnDemand(*isa, {.rulebook = rulebook.View(), .operands = {in.View(), out.View(), packed.data(), {}}},
                           pool);
        return out;
      };
      const Matrix together = convolve(full);
      for (const int32_t step : {2, 3, 64}) {
        const Matrix apart = convolve(Thinned(full, kOffsets, step));
        for (int64_t row = 0; row < kRows; row += step) {
          for (int64_t column = 0; column < out_channels; ++column) {
            ASSERT_EQ(together.at(row, column), apart.at(row, column))
                << isa->name << ", channels " << in_channels << " to " << out_channels << ", row " << row;
          }
        }
      }
    }
  }
}

#if defined(__aarch64__)
// NEON's loops read four channels at once and add them one after the other, as the baseline's do.
TEST(FetchOnDemandTest, NeonHasTheBaselinesBits) {
  constexpr int kOffsets = 3;
  Random random(11);
  ThreadPool pool(2);
  ASSERT_STREQ(cpu::SupportedIsas().front()->name, "neon");
  const Rulebook rulebook = RandomRulebook(kOffsets, 300, 300, 0.6, random);
  for (const int in_channels : {1, 4, 6, 32}) {
    Matrix in(300, in_channels, {.after = 1}, &random);
    for (const int out_channels : {3, 8, 20, 48}) {
      const std::vector<float> weights = random.Floats(int64_t{kOffsets} * in_channels * out_channels);
      std::vector<Matrix> results;
      for (const cpu::Isa* isa : cpu::SupportedIsas()) {
        const std::vector<float> packed = cpu::PackWeights(*isa, weights.data(), kOffsets, in_channels, out_channels);
        Matrix& out = results.emplace_back(300, out_channels, Margins{}, nullptr);
        cpu::FetchOnDemand(*isa, {.rulebook = rulebook.View(), .operands = {in.View(), out.View(), packed.data(), {}}},
                           pool);
      }
      EXPECT_EQ(results.front().values, results.back().values) << in_channels << " to " << out_channels;
    }
  }
}
#endif

TEST(PackWeightsTest, NoWeightsGiveNoWeights) { EXPECT_TRUE(cpu::PackWeights(nullptr, 0, 4, 16).empty()); }

TEST(FetchOnDemandTest, OutputMayBeItsOwnResidual) {
  Random random(7);
  ThreadPool pool(2);
  const Rulebook rulebook = RandomRulebook(3, 150, 150, 0.5, random);
  Matrix in(150, 8, {}, &random), out(150, 16, {}, &random);
  const std::vector<float> weights = random.Floats(3 * 8 * 16);
  const std::vector<float> packed = cpu::PackWeights(weights.data(), 3, 8, 16);
  const Matrix residual = out;
  const Expected expected = NaiveConvolution(rulebook.View(), in, weights, 16, nullptr, &residual, true);
  cpu::FetchOnDemand({.rulebook = rulebook.View(),
                      .operands = {in.View(),
                                   out.View(),
                                   packed.data(),
                                   {.residual = out.View(), .activation = ActivationFunction::kRelu}}},
                     pool);
  ExpectNear(out, expected, DType::kFloat32);
}

}  // namespace
}  // namespace voxserve::kernels::convolution_test
