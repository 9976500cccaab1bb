#include "engine/ops/conv/dataflow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "engine/ops/conv/distinct_groupings.h"

namespace voxserve {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<ConvShape> Shapes() {
  std::vector<ConvShape> shapes;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBfloat16}) {
    for (const int32_t channels : {1, 4, 33, 96, 1000}) {
      shapes.push_back({.in_channels = channels,
                        .out_channels = 2 * channels,
                        .dtype = dtype,
                        .num_offsets = 27,
                        .is_symmetric = true});
      shapes.push_back({.in_channels = channels, .out_channels = channels, .dtype = dtype, .num_offsets = 8});
    }
  }
  return shapes;
}

TEST(DataflowTest, EveryEntryIsFoundByItsNumber) {
  std::set<std::string> names;
  for (const ConvDataflow* const dataflow : Dataflows()) {
    EXPECT_EQ(&DataflowOf(dataflow->id()), dataflow);
    EXPECT_TRUE(names.emplace(dataflow->name()).second) << dataflow->name();
  }
}

// What plans fall back to, and what reads the maps that the CPU makes for a GPU.
TEST(DataflowTest, ADeviceServesEveryConvolutionByItsFirst) {
  for (const bool on_cuda : {false, true}) {
    std::set<Dataflow> first;
    for (const ConvShape& shape : Shapes()) {
      const std::vector<ServedDataflow> served = ServedDataflows(shape, on_cuda);
      ASSERT_FALSE(served.empty());
      first.insert(served.front().dataflow);
      for (const ServedDataflow& of_device : served) EXPECT_TRUE(of_device.Serves({.dataflow = of_device.dataflow}));
    }
    EXPECT_EQ(first.size(), 1u);
    EXPECT_EQ(DataflowOf(*first.begin()).Forms(/*is_swapped=*/false).pairs, on_cuda);
  }
}

TEST(DataflowTest, EveryEntryReadsSomeFormOfARulebookEitherWayRound) {
  for (const ConvDataflow* const dataflow : Dataflows()) {
    for (const bool is_swapped : {false, true}) {
      EXPECT_NE(dataflow->Forms(is_swapped), RulebookForms()) << dataflow->name();
    }
  }
}

TEST(ServedDataflowTest, ServesItsOwnBlocks) {
  const ServedDataflow some{.dataflow = Dataflow::kFetchOnDemand, .blocks = {{{.rows = 64}, {.rows = 128}}}};
  EXPECT_TRUE(some.Serves({.dataflow = Dataflow::kFetchOnDemand}));
  EXPECT_TRUE(some.Serves({.dataflow = Dataflow::kFetchOnDemand, .block = {.rows = 128}}));
  EXPECT_FALSE(some.Serves({.dataflow = Dataflow::kFetchOnDemand, .block = {.rows = 96}}));
  EXPECT_FALSE(some.Serves({.dataflow = Dataflow::kGatherGemmScatter}));
  const ServedDataflow any{.dataflow = Dataflow::kGatherGemmScatter};
  EXPECT_TRUE(any.Serves({.dataflow = Dataflow::kGatherGemmScatter, .block = {.rows = 96}}));
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
  EXPECT_THAT(rows_of(dataflow.Candidates({dataflow.id(), {{32, 64}}}, {}, {})), ElementsAre(32, 64));
  EXPECT_THAT(rows_of(dataflow.Candidates({dataflow.id()}, {}, {})), ElementsAre(0, 64, 128, 256, 512, 1024, 2048));
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

}  // namespace
}  // namespace voxserve
