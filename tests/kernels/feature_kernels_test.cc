// Feature kernels against naive loops in double: every path of the register tiles (whole and partial vectors, whole and
// partial row tiles), pitches, epilogues, and both dataflows.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/argmax.h"
#include "kernels/fetch_on_demand_dispatch.h"
#include "kernels/gather_scatter.h"
#include "kernels/linear.h"
#include "kernels/rulebook_search.h"
#include "kernels/scale_shift.h"
#include "kernels/voxel_to_point.h"

namespace voxserve::kernels {
namespace {

constexpr float kUntouched = -12345.0f;

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  std::vector<float> Floats(int64_t count) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = uniform(engine_);
    return values;
  }
  bool Chance(double probability) { return std::bernoulli_distribution(probability)(engine_); }
  std::mt19937& engine() { return engine_; }

 private:
  std::mt19937 engine_;
};

// Rows of `channels` values a pitch apart; what lies between is kUntouched.
struct Matrix {
  int64_t rows, channels, pitch;
  std::vector<float> values;
  Matrix(int64_t r, int64_t c, int64_t padding, Random* random)
      : rows(r), channels(c), pitch(c + padding), values(static_cast<size_t>(r * pitch), kUntouched) {
    if (random == nullptr) return;
    const std::vector<float> filled = random->Floats(r * c);
    for (int64_t i = 0; i < r * c; ++i) at(i / c, i % c) = filled[static_cast<size_t>(i)];
  }
  float& at(int64_t row, int64_t column) { return values[static_cast<size_t>(row * pitch + column)]; }
  bool PaddingIsUntouched() {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = channels; column < pitch; ++column) {
        if (at(row, column) != kUntouched) return false;
      }
    }
    return true;
  }
};

// Some increasing map from input to output rows for each offset, as translations of sorted coordinates give.
Rulebook RandomRulebook(int32_t num_offsets, int64_t num_in, int64_t num_out, double density, Random& random) {
  Rulebook rulebook{.num_out_rows = num_out, .num_in_rows = num_in};
  const int64_t num_tiles = (num_out + kRulebookTileRows - 1) / kRulebookTileRows;
  rulebook.tile_begin.resize(static_cast<size_t>((num_tiles + 1) * num_offsets));
  rulebook.offset_begin.push_back(0);
  for (int32_t k = 0; k < num_offsets; ++k) {
    int64_t in = 0;
    for (int64_t out = 0; out <= num_out; ++out) {
      if (out % kRulebookTileRows == 0 || out == num_out) {
        const int64_t tile = (out + kRulebookTileRows - 1) / kRulebookTileRows;
        rulebook.tile_begin[static_cast<size_t>(tile * num_offsets + k)] =
            static_cast<int64_t>(rulebook.out_rows.size());
      }
      if (out == num_out) break;
      while (in < num_in && random.Chance(0.3)) ++in;
      if (in < num_in && random.Chance(density)) {
        rulebook.in_rows.push_back(static_cast<int32_t>(in++));
        rulebook.out_rows.push_back(static_cast<int32_t>(out));
      }
    }
    rulebook.offset_begin.push_back(static_cast<int64_t>(rulebook.in_rows.size()));
  }
  return rulebook;
}

struct EpilogueCase {
  bool bias, residual, relu;
};

std::vector<double> NaiveConvolution(const Rulebook& rulebook, Matrix& in, const std::vector<float>& weights,
                                     int64_t out_channels, const float* bias, Matrix* residual, bool relu) {
  std::vector<double> out(static_cast<size_t>(rulebook.num_out_rows * out_channels));
  const RulebookView view = rulebook.View();
  for (int32_t k = 0; k < view.num_offsets; ++k) {
    for (int64_t p = view.offset_begin[k]; p < view.offset_begin[k + 1]; ++p) {
      for (int64_t o = 0; o < out_channels; ++o) {
        for (int64_t i = 0; i < in.channels; ++i) {
          out[static_cast<size_t>(view.out_rows[p] * out_channels + o)] +=
              double{in.at(view.in_rows[p], i)} *
              weights[static_cast<size_t>((k * in.channels + i) * out_channels + o)];
        }
      }
    }
  }
  for (int64_t row = 0; row < rulebook.num_out_rows; ++row) {
    for (int64_t o = 0; o < out_channels; ++o) {
      double& value = out[static_cast<size_t>(row * out_channels + o)];
      if (bias != nullptr) value += bias[o];
      if (residual != nullptr) value += residual->at(row, o);
      if (relu) value = std::max(value, 0.0);
    }
  }
  return out;
}

// rows, in channels, out channels, block rows
class ConvolutionTest : public testing::TestWithParam<std::tuple<int, int, int, int>> {};

TEST_P(ConvolutionTest, BothDataflowsEqualTheNaiveLoop) {
  const auto [rows, in_channels, out_channels, block_rows] = GetParam();
  Random random(static_cast<uint32_t>(rows * 1000003 + in_channels * 1009 + out_channels));
  ThreadPool pool(3);
  constexpr int kOffsets = 5;
  const int64_t num_in = rows + rows / 3;
  const Rulebook rulebook = RandomRulebook(kOffsets, num_in, rows, 0.6, random);
  Matrix in(num_in, in_channels, 3, &random);
  const std::vector<float> weights = random.Floats(int64_t{kOffsets} * in_channels * out_channels);
  const std::vector<float> bias = random.Floats(out_channels);
  Matrix residual(rows, out_channels, 1, &random);
  for (const EpilogueCase& c : {EpilogueCase{false, false, false},
                                {true, false, true},
                                {true, true, true},
                                {false, true, false},
                                {false, false, true}}) {
    const Epilogue epilogue{.bias = c.bias ? bias.data() : nullptr,
                            .residual = c.residual ? residual.values.data() : nullptr,
                            .residual_pitch = residual.pitch,
                            .activation = c.relu ? ActivationFunction::kRelu : ActivationFunction::kNone};
    const std::vector<double> expected =
        NaiveConvolution(rulebook, in, weights, out_channels, epilogue.bias, c.residual ? &residual : nullptr, c.relu);
    const auto check = [&](const std::string& dataflow, const auto& run) {
      SCOPED_TRACE(dataflow);
      Matrix out(rows, out_channels, 5, nullptr);
      run(out);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t o = 0; o < out_channels; ++o) {
          ASSERT_NEAR(out.at(row, o), expected[static_cast<size_t>(row * out_channels + o)], 2e-4)
              << "row " << row << " channel " << o;
        }
      }
      EXPECT_TRUE(out.PaddingIsUntouched());
    };
    for (const cpu::Isa* isa : cpu::SupportedIsas()) {
      const std::vector<float> packed = cpu::PackWeights(*isa, weights.data(), kOffsets, in_channels, out_channels);
      check(isa->name, [&](Matrix& out) {
        cpu::FetchOnDemand(*isa,
                           {.rulebook = rulebook.View(),
                            .in = in.values.data(),
                            .in_pitch = in.pitch,
                            .in_channels = in_channels,
                            .weights = packed.data(),
                            .out = out.values.data(),
                            .out_pitch = out.pitch,
                            .out_channels = out_channels,
                            .epilogue = epilogue,
                            .block_rows = block_rows},
                           pool);
      });
    }
    check("gather-GEMM-scatter", [&](Matrix& out) {
      cpu::GatherGemmScatter({.rulebook = rulebook.View(),
                              .in = in.values.data(),
                              .in_pitch = in.pitch,
                              .in_channels = in_channels,
                              .weights = weights.data(),
                              .out = out.values.data(),
                              .out_pitch = out.pitch,
                              .out_channels = out_channels,
                              .epilogue = epilogue,
                              .block_rows = block_rows},
                             pool);
    });
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
  Matrix in(150, 8, 0, &random), out(150, 16, 0, &random);
  const std::vector<float> weights = random.Floats(3 * 8 * 16);
  const std::vector<float> packed = cpu::PackWeights(weights.data(), 3, 8, 16);
  Matrix residual = out;
  const auto expected = NaiveConvolution(rulebook, in, weights, 16, nullptr, &residual, false);
  cpu::FetchOnDemand({.rulebook = rulebook.View(),
                      .in = in.values.data(),
                      .in_pitch = 8,
                      .in_channels = 8,
                      .weights = packed.data(),
                      .out = out.values.data(),
                      .out_pitch = 16,
                      .out_channels = 16,
                      .epilogue = {.residual = out.values.data(), .residual_pitch = 16}},
                     pool);
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(out.values[i], expected[i], 1e-5);
}

TEST(LinearTest, EqualsTheNaiveLoop) {
  ThreadPool pool(2);
  for (const int64_t rows : {0, 1, 1023, 1024, 2500}) {
    Random random(static_cast<uint32_t>(rows));
    Matrix in(rows, 7, 1, &random), out(rows, 12, 4, nullptr), residual(rows, 12, 0, &random);
    const std::vector<float> weights = random.Floats(7 * 12), bias = random.Floats(12);
    cpu::Linear({.num_rows = rows,
                 .in = in.values.data(),
                 .in_pitch = in.pitch,
                 .in_channels = 7,
                 .weights = weights.data(),
                 .out = out.values.data(),
                 .out_pitch = out.pitch,
                 .out_channels = 12,
                 .epilogue = {.bias = bias.data(),
                              .residual = residual.values.data(),
                              .residual_pitch = 12,
                              .activation = ActivationFunction::kRelu}},
                pool);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t o = 0; o < 12; ++o) {
        double sum = double{bias[static_cast<size_t>(o)]} + residual.at(row, o);
        for (int64_t i = 0; i < 7; ++i) sum += double{in.at(row, i)} * weights[static_cast<size_t>(i * 12 + o)];
        ASSERT_NEAR(out.at(row, o), std::max(sum, 0.0), 1e-5);
      }
    }
    EXPECT_TRUE(out.PaddingIsUntouched());
  }
}

TEST(ScaleShiftTest, ScalesAddsAndActivatesInPlace) {
  ThreadPool pool(2);
  Matrix in(2, 3, 2, nullptr);
  for (int64_t i = 0; i < 6; ++i) in.at(i / 3, i % 3) = static_cast<float>(i) - 2;  // -2 -1 0 / 1 2 3
  const float scale[] = {2, -1, 0.5f}, bias[] = {1, 0, -1}, residual[] = {0, 0, 0, 10, 20, 30};
  cpu::ScaleShift(
      {.num_rows = 2,
       .channels = 3,
       .in = in.values.data(),
       .in_pitch = in.pitch,
       .scale = scale,
       .out = in.values.data(),
       .out_pitch = in.pitch,
       .epilogue = {.bias = bias, .residual = residual, .residual_pitch = 3, .activation = ActivationFunction::kRelu}},
      pool);
  const float expected[] = {0, 1, 0, 13, 18, 30.5f};
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(in.at(i / 3, i % 3), expected[i]) << i;
  EXPECT_TRUE(in.PaddingIsUntouched());
}

TEST(ArgmaxTest, TiesGoToTheLowestAndNanNeverWins) {
  ThreadPool pool(1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> in = {1, 3, 3, 0, nan, 2, 1, nan, -inf, -inf, -inf, -inf, nan, nan, nan, nan, 0, 0, 0, inf};
  uint8_t bytes[5];
  cpu::Argmax({.num_rows = 5, .channels = 4, .in = in.data(), .in_pitch = 4, .label_bytes = 1, .labels = bytes}, pool);
  EXPECT_THAT(bytes, testing::ElementsAre(1, 1, 0, 0, 3));
  uint16_t words[5];
  cpu::Argmax({.num_rows = 5, .channels = 4, .in = in.data(), .in_pitch = 4, .label_bytes = 2, .labels = words}, pool);
  EXPECT_THAT(words, testing::ElementsAre(1, 1, 0, 0, 3));
}

TEST(ArgmaxTest, LabelsAbove255NeedTwoBytes) {
  ThreadPool pool(1);
  std::vector<float> in(1000, 0.0f);
  in[777] = 1;
  uint16_t label = 0;
  cpu::Argmax({.num_rows = 1, .channels = 1000, .in = in.data(), .in_pitch = 1000, .label_bytes = 2, .labels = &label},
              pool);
  EXPECT_EQ(label, 777);
}

TEST(VoxelToPointTest, PointsWithoutAVoxelGetTheFill) {
  ThreadPool pool(1);
  const float voxels[] = {1, 2, 9, 3, 4, 9};  // two rows of two, a pitch of three
  const float fill[] = {-1, -2};
  const int32_t rows[] = {1, -1, 0, 1, -3};
  float points[10];
  cpu::VoxelToPoint({.num_points = 5,
                     .point_to_voxel = rows,
                     .voxels = voxels,
                     .voxel_pitch_bytes = 12,
                     .row_bytes = 8,
                     .fill = fill,
                     .points = points},
                    pool);
  EXPECT_THAT(points, testing::ElementsAre(3, 4, -1, -2, 1, 2, 3, 4, -1, -2));
}

}  // namespace
}  // namespace voxserve::kernels
