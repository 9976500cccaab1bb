// Compares the CPU's sparse convolution with naive loops in double. The cases reach every path of the register tiles
// (whole and partial vectors, whole and partial row tiles), with pitches and epilogues.

#include <gtest/gtest.h>

#include <tuple>
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

TEST(SupportedIsasTest, TheWidestComesFirstAndTheBaselineIsAlwaysThere) {
  const std::vector<const cpu::Isa*>& isas = cpu::SupportedIsas();
  EXPECT_STREQ(isas.front()->name, cpu::VectorInstructionSet());
  EXPECT_STREQ(isas.back()->name, "baseline");
  for (size_t i = 1; i < isas.size(); ++i) EXPECT_GT(isas[i - 1]->vector_floats, isas[i]->vector_floats);
}

TEST(PackWeightsTest, NoWeightsGiveNoWeights) { EXPECT_TRUE(cpu::PackWeights(nullptr, 0, 4, 16).empty()); }

TEST(FetchOnDemandTest, OutputMayBeItsOwnResidual) {
  Random random(7);
  ThreadPool pool(2);
  const Rulebook rulebook = RandomRulebook(3, 150, 150, 0.5, random);
  Matrix in(150, 8, {}, &random), out(150, 16, {}, &random);
  const std::vector<float> weights = random.Floats(3 * 8 * 16);
  const std::vector<float> packed = cpu::PackWeights(weights.data(), 3, 8, 16);
  const Matrix residual = out;
  const Expected expected = NaiveConvolution(rulebook.View(), in, weights, 16, nullptr, &residual, false);
  cpu::FetchOnDemand(
      {.rulebook = rulebook.View(), .operands = {in.View(), out.View(), packed.data(), {.residual = out.View()}}},
      pool);
  ExpectNear(out, expected, DType::kFloat32);
}

}  // namespace
}  // namespace voxserve::kernels::convolution_test
