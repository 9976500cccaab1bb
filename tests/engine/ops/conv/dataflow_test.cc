// Tests the table of dataflows, the blocks and candidates that each dataflow offers, and DistinctGroupings.

#include "engine/ops/conv/dataflow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "engine/ops/conv/distinct_groupings.h"
#include "kernels/conv/fetch_on_demand.h"
#include "kernels/conv/implicit_gemm/implicit_gemm.h"

namespace voxserve::dataflow_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<ProgramConv> Convs() {
  std::vector<ProgramConv> convs;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBfloat16}) {
    for (const int32_t channels : {1, 4, 33, 96, 1000}) {
      convs.push_back({.in_channels = channels,
                       .out_channels = 2 * channels,
                       .dtype = dtype,
                       .num_offsets = 27,
                       .is_symmetric = true});
      convs.push_back({.in_channels = channels, .out_channels = channels, .dtype = dtype, .num_offsets = 8});
    }
  }
  return convs;
}

TEST(DataflowTest, EveryEntryIsFoundByItsNumber) {
  std::set<std::string> names;
  for (const ConvDataflow* const dataflow : Dataflows()) {
    EXPECT_EQ(&DataflowOf(dataflow->id()), dataflow);
    EXPECT_TRUE(names.emplace(dataflow->name()).second) << dataflow->name();
  }
}

// The first dataflow that a device lists must serve every convolution, since plans fall back to it. On a GPU it must
// read pairs, the form of the maps that the CPU makes for a GPU.
TEST(DataflowTest, ADeviceServesEveryConvolutionByItsFirst) {
  for (const bool on_cuda : {false, true}) {
    std::set<Dataflow> first;
    for (ProgramConv& conv : Convs()) {
      conv.is_on_cuda = on_cuda;
      const std::vector<ServedDataflow> served = ServedDataflows(conv);
      ASSERT_FALSE(served.empty());
      first.insert(served.front().dataflow);
      for (const ServedDataflow& of_device : served) EXPECT_TRUE(of_device.Serves({.dataflow = of_device.dataflow}));
    }
    EXPECT_EQ(first.size(), 1u);
    EXPECT_EQ(DataflowOf(*first.begin()).Forms(/*is_swapped=*/false).pairs, on_cuda);
  }
}

TEST(DataflowTest, In8BitsADeviceHasOneDataflow) {
  for (ProgramConv& conv : Convs()) {
    conv.dtype = DType::kInt8;
    for (const bool on_cuda : {false, true}) {
      conv.is_on_cuda = on_cuda;
      const std::vector<ServedDataflow> served = ServedDataflows(conv);
      ASSERT_EQ(served.size(), 1U);
      EXPECT_EQ(served.front().dataflow, on_cuda ? Dataflow::kImplicitGemm : Dataflow::kFetchOnDemand);
      EXPECT_TRUE(conv.is_on_cuda == served.front().blocks.has_value());
    }
  }
}

// A CPU's rulebook has only one form, so a dataflow of the CPU names none.
TEST(DataflowTest, EveryEntryOfAGpuReadsSomeFormOfARulebookEitherWayRound) {
  for (const ConvDataflow* const dataflow : Dataflows()) {
    const bool is_on_cpu = dataflow->Serves(Convs().front()).has_value();
    for (const bool is_swapped : {false, true}) {
      EXPECT_EQ(dataflow->Forms(is_swapped) == RulebookForms(), is_on_cpu) << dataflow->name();
    }
  }
}

// Serves() must accept a convolution's default and all its blocks, and no others.
TEST(ServedDataflowTest, ServesItsOwnBlocks) {
  using kernels::ConvBlock;
  const ServedDataflow some{.dataflow = Dataflow::kImplicitGemm,
                            .blocks = {{{.rows = 64, .columns = 32, .split_k = 1},
                                        {.rows = 64, .columns = 32, .split_k = 2},
                                        {.rows = 128, .columns = 96, .split_k = 1, .uses_mma_sync = true}}}};
  const auto serves = [](const ServedDataflow& served, const ConvBlock& block) {
    return served.Serves({.dataflow = served.dataflow, .block = block});
  };
  EXPECT_TRUE(serves(some, {}));
  for (const ConvBlock& block : *some.blocks) EXPECT_TRUE(serves(some, block)) << Describe(block);
  for (const ConvBlock& block : std::vector<ConvBlock>{{.rows = 64},
                                                       {.rows = 64, .columns = 32},
                                                       {.rows = 64, .columns = 96, .split_k = 1},
                                                       {.rows = 96, .columns = 32, .split_k = 1},
                                                       {.rows = 64, .columns = 32, .split_k = 3},
                                                       {.rows = 64, .columns = 32, .split_k = 1, .uses_mma_sync = true},
                                                       {.rows = 128, .columns = 96, .split_k = 1},
                                                       {.columns = 32},
                                                       {.uses_mma_sync = true}}) {
    EXPECT_FALSE(serves(some, block)) << Describe(block);
  }
  EXPECT_FALSE(some.Serves({.dataflow = Dataflow::kGatherGemmScatter}));

  const ServedDataflow any{.dataflow = Dataflow::kFetchOnDemand};
  EXPECT_TRUE(serves(any, {}));
  EXPECT_TRUE(serves(any, {.rows = 96}));
  EXPECT_FALSE(serves(any, {.rows = 96, .columns = 32}));
  EXPECT_FALSE(serves(any, {.rows = 96, .split_k = 2}));
  EXPECT_FALSE(serves(any, {.uses_mma_sync = true}));
}

TEST(ServedDataflowTest, BlocksAreDescribed) {
  EXPECT_EQ(Describe(kernels::ConvBlock{.rows = 64}), "64 rows");
  EXPECT_EQ(Describe(kernels::ConvBlock{.rows = 128, .columns = 96}), "128 x 96");
  EXPECT_EQ(Describe(kernels::ConvBlock{.rows = 128, .columns = 96, .split_k = 1}), "128 x 96");
  EXPECT_EQ(Describe(kernels::ConvBlock{.rows = 128, .columns = 96, .split_k = 2, .uses_mma_sync = true}),
            "128 x 96 by warps, split 2");
}

TEST(CandidatesTest, AreTheBaseWithOtherChoices) {
  const int64_t offset_begin[] = {0, 10, 30, 130, 150, 160};
  const kernels::MatmulGroupingParams maps{
      .num_offsets = 5, .offset_begin = offset_begin, .is_symmetric = true, .identity_offset = 2};
  for (const ConvDataflow* const dataflow : Dataflows()) {
    const ConvPlan base{.map_search = kernels::MapSearch::kGrid, .dataflow = dataflow->id()};
    const std::vector<ConvPlan> candidates =
        dataflow->Candidates({.dataflow = dataflow->id(), .blocks = {{{.rows = 32}, {.rows = 64}}}}, base, maps);
    EXPECT_FALSE(candidates.empty()) << dataflow->name();
    for (const ConvPlan& candidate : candidates) {
      EXPECT_EQ(candidate.dataflow, dataflow->id());
      EXPECT_EQ(candidate.map_search, base.map_search);
    }
  }
}

TEST(CandidatesTest, OfFetchOnDemandAreBlocks) {
  const ConvDataflow& dataflow = DataflowOf(Dataflow::kFetchOnDemand);
  const auto rows_of = [](const std::vector<ConvPlan>& candidates) {
    std::vector<int> rows;
    for (const ConvPlan& candidate : candidates) rows.push_back(candidate.block.rows);
    return rows;
  };
  EXPECT_THAT(rows_of(dataflow.Candidates({dataflow.id()}, {}, {})), ElementsAre(0, 64, 128, 256, 512, 1024, 2048));
}

TEST(CandidatesTest, OfImplicitGemmAreItsDefaultAndEveryBlock) {
  const ConvDataflow& dataflow = DataflowOf(Dataflow::kImplicitGemm);
  const kernels::ConvBlock first{.rows = 64, .columns = 32, .split_k = 1};
  const kernels::ConvBlock second{.rows = 64, .columns = 32, .split_k = 1, .uses_mma_sync = true};
  const ConvPlan base{.map_search = kernels::MapSearch::kGrid, .dataflow = dataflow.id(), .block = second};
  std::vector<ConvPlan> expected(3, base);
  expected[0].block = {};
  expected[1].block = first;
  EXPECT_EQ(dataflow.Candidates({dataflow.id(), {{first, second}}}, base, {}), expected);
}

TEST(DistinctGroupingsTest, MapsOfOneOffsetHaveOneGrouping) {
  const int64_t offset_begin[] = {0, 1000};
  EXPECT_THAT(DistinctGroupings({.num_offsets = 1, .offset_begin = offset_begin}, {}),
              ElementsAre(kernels::GroupingOptions()));
}

TEST(CandidatesTest, OfGatherGemmScatterNeedMaps) {
  const ConvDataflow& dataflow = DataflowOf(Dataflow::kGatherGemmScatter);
  EXPECT_THAT(dataflow.Candidates({dataflow.id()}, {.dataflow = dataflow.id()}, {}), IsEmpty());
}

// Leaves out the convolutions with more than 100 input channels, since their weights are large.
std::vector<ProgramConv> NarrowConvs() {
  std::vector<ProgramConv> convs = Convs();
  convs.erase(std::remove_if(convs.begin(), convs.end(), [](const auto& conv) { return conv.in_channels > 100; }),
              convs.end());
  return convs;
}

// Returns weights that are all different.
std::vector<float> WeightsOf(const ProgramConv& conv) {
  std::vector<float> weights(static_cast<size_t>(conv.num_offsets) * static_cast<size_t>(conv.in_channels) *
                             static_cast<size_t>(conv.out_channels));
  std::iota(weights.begin(), weights.end(), 1.0f);
  return weights;
}

TEST(PackWeightsTest, OfFetchOnDemandIsTheCpuKernels) {
  for (const ProgramConv& conv : NarrowConvs()) {
    const std::vector<float> weights = WeightsOf(conv);
    EXPECT_EQ(DataflowOf(Dataflow::kFetchOnDemand).PackWeights(conv, weights),
              kernels::cpu::PackWeights(weights.data(), conv.num_offsets, conv.in_channels, conv.out_channels));
  }
}

TEST(PackWeightsTest, OfGatherGemmScatterIsTheOrderOfTheWalk) {
  const ConvDataflow& dataflow = DataflowOf(Dataflow::kGatherGemmScatter);
  const ProgramConv strided{.in_channels = 1, .out_channels = 2, .num_offsets = 3};
  EXPECT_THAT(dataflow.PackWeights(strided, WeightsOf(strided)), ElementsAre(1, 2, 3, 4, 5, 6));
  const ProgramConv symmetric{.in_channels = 2, .out_channels = 1, .num_offsets = 5, .is_symmetric = true};
  EXPECT_THAT(dataflow.PackWeights(symmetric, WeightsOf(symmetric)),
              ElementsAre(1, 2, 9, 10, 3, 4, 7, 8, 5, 6));  // weights of the offsets 0, 4, 1, 3 and 2
}

TEST(PackWeightsTest, OfImplicitGemmIsItsKernels) {
  for (const ProgramConv& conv : NarrowConvs()) {
    const std::vector<float> weights = WeightsOf(conv);
    EXPECT_EQ(DataflowOf(Dataflow::kImplicitGemm).PackWeights(conv, weights),
              kernels::PackImplicitGemmWeights(conv.num_offsets, conv.in_channels, conv.out_channels, conv.dtype,
                                               weights.data()));
  }
}

}  // namespace
}  // namespace voxserve::dataflow_test
