// Compares the rulebooks that the CPU's three searches find with stored results (conv_cases.h) and, for a large cloud,
// with a loop over all sites. Swapped rulebooks are compared with swapped pairs.

#include "kernels/conv/rulebook_search.h"

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/conv/rulebook_sites.h"
#include "tests/kernels/coordinates/conv_cases.h"
#include "tests/kernels/coordinates/geometry_testing.h"

namespace voxserve::kernels::rulebook_search_test {
namespace {

using fixtures::AllConvCases;
using fixtures::ConvCase;
using fixtures::PairSites;
using fixtures::RulebookFlaw;
using fixtures::RunOutputCoordinates;
using fixtures::SitesOf;

std::vector<uint64_t> Sorted(std::vector<uint64_t> keys) {
  std::sort(keys.begin(), keys.end());
  return keys;
}

std::vector<PairSites> Sorted(std::vector<PairSites> pairs) {
  std::sort(pairs.begin(), pairs.end());
  return pairs;
}

Rulebook Search(const ConvGeometry& geometry, const std::vector<uint64_t>& in, const std::vector<uint64_t>& out,
                MapSearch search, ThreadPool& pool) {
  cpu::CoordinateTable table;
  RulebookSearchParams params{.geometry = geometry,
                              .in_keys = in.data(),
                              .num_in = static_cast<int64_t>(in.size()),
                              .out_keys = out.data(),
                              .num_out = static_cast<int64_t>(out.size())};
  if (search != MapSearch::kMerge) {
    const MapSearch built = table.Build(
        {.dimension = geometry.dimension, .search = search, .keys = out.data(), .num_keys = params.num_out}, pool);
    EXPECT_EQ(built, search);
    params.table = &table;
  }
  Rulebook rulebook;
  cpu::SearchRulebook(params, pool, rulebook);
  return rulebook;
}

TEST(RulebookSearchTest, AgreesWithTheDefinition) {
  ThreadPool alone(1), several(3);
  for (const ConvCase& c : AllConvCases()) {
    SCOPED_TRACE(c.name);
    const std::vector<uint64_t> in = Sorted(c.in_keys);
    const std::vector<uint64_t> strided_out = Sorted(c.out_keys);
    // A submanifold convolution passes the same vector as inputs and outputs. The search then finds half of the pairs
    // and mirrors them.
    const std::vector<uint64_t>& out = c.is_submanifold ? in : strided_out;
    for (ThreadPool* pool : {&alone, &several}) {
      for (const MapSearch search : {MapSearch::kMerge, MapSearch::kGrid, MapSearch::kHash}) {
        const Rulebook rulebook = Search(c.geometry, in, out, search, *pool);
        const RulebookView view = rulebook.View();
        EXPECT_EQ(view.num_offsets, c.geometry.NumOffsets());
        EXPECT_EQ(view.num_in_rows, static_cast<int64_t>(in.size()));
        EXPECT_EQ(view.num_out_rows, static_cast<int64_t>(out.size()));
        EXPECT_EQ(Sorted(SitesOf(view, in, out, c.geometry.dimension)), Sorted(c.pairs));
        EXPECT_EQ(RulebookFlaw(view), "");
      }
    }
  }
}

TEST(RulebookSearchTest, TheInverseSwapsEveryPair) {
  ThreadPool pool(2);
  for (const ConvCase& c : AllConvCases()) {
    SCOPED_TRACE(c.name);
    const std::vector<uint64_t> in = Sorted(c.in_keys);
    const std::vector<uint64_t> out = Sorted(c.out_keys);
    const Rulebook forward = Search(c.geometry, in, out, MapSearch::kMerge, pool);
    Rulebook inverse;
    cpu::SwapRulebook(forward.View(), pool, inverse);
    std::vector<PairSites> expected;
    for (const auto& [k, sample, from, to] : c.pairs) expected.emplace_back(k, sample, to, from);
    EXPECT_EQ(Sorted(SitesOf(inverse.View(), out, in, c.geometry.dimension)), Sorted(expected));
    EXPECT_EQ(RulebookFlaw(inverse.View()), "");
    EXPECT_EQ(inverse.num_out_rows, static_cast<int64_t>(in.size()));
    EXPECT_EQ(inverse.num_in_rows, static_cast<int64_t>(out.size()));

    Rulebook again;
    cpu::SwapRulebook(inverse.View(), pool, again);
    EXPECT_EQ(again.in_rows, forward.in_rows);
    EXPECT_EQ(again.out_rows, forward.out_rows);
    EXPECT_EQ(again.offset_begin, forward.offset_begin);
    EXPECT_EQ(again.tile_begin, forward.tile_begin);
  }
}

// The cloud is large enough to be split among threads. The rulebook is compared with a loop over all sites and kernel
// cells.
class LargeCloudTest : public ::testing::TestWithParam<ConvGeometry> {};

TEST_P(LargeCloudTest, AgreesWithALoopOverAllSites) {
  constexpr int32_t kNumSamples = 3;
  const ConvGeometry& geometry = GetParam();
  const CoordinateKey layout(3);
  std::mt19937 random(11);
  std::set<std::pair<int32_t, Axes>> sites;
  while (sites.size() < 20000) {
    sites.insert({static_cast<int32_t>(random() % kNumSamples),
                  {static_cast<int32_t>(random() % 60) - 30, static_cast<int32_t>(random() % 50) - 10,
                   static_cast<int32_t>(random() % 15) - 14, 0}});
  }
  std::vector<uint64_t> in;
  for (const auto& [sample, site] : sites) in.push_back(layout.Pack(sample, site));

  ThreadPool pool(3);
  OutputCoordinatesParams params;
  params.geometry = geometry;
  params.num_samples = kNumSamples;
  params.in_keys = in.data();
  params.num_in = static_cast<int64_t>(in.size());
  const bool is_submanifold = geometry.IsSymmetric();
  std::vector<uint64_t> strided_out;
  if (!is_submanifold) {
    params.rule = CoordinateRule::kExpand;
    strided_out = RunOutputCoordinates(params, pool);
  }
  const std::vector<uint64_t>& out = is_submanifold ? in : strided_out;

  std::vector<PairSites> expected;
  for (const uint64_t key : out) {
    const Axes site = layout.Unpack(key);
    for (int32_t k = 0; k < geometry.NumOffsets(); ++k) {
      const Axes delta = geometry.Delta(k);
      Axes from = {0, 0, 0, 0};
      for (int axis = 0; axis < 3; ++axis) from[axis] = geometry.stride[axis] * site[axis] + delta[axis];
      if (sites.contains({layout.Sample(key), from})) expected.emplace_back(k, layout.Sample(key), from, site);
    }
  }
  std::sort(expected.begin(), expected.end());

  const Rulebook rulebook = Search(geometry, in, out, MapSearch::kMerge, pool);
  EXPECT_EQ(RulebookFlaw(rulebook.View()), "");
  EXPECT_EQ(Sorted(SitesOf(rulebook.View(), in, out, 3)), expected);

  // One thread and the other searches must give the same bytes.
  ThreadPool alone(1);
  for (const MapSearch search : {MapSearch::kMerge, MapSearch::kGrid, MapSearch::kHash}) {
    const Rulebook other = Search(geometry, in, out, search, alone);
    EXPECT_EQ(other.offset_begin, rulebook.offset_begin);
    EXPECT_EQ(other.in_rows, rulebook.in_rows);
    EXPECT_EQ(other.out_rows, rulebook.out_rows);
    EXPECT_EQ(other.tile_begin, rulebook.tile_begin);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Geometries, LargeCloudTest,
    ::testing::Values(ConvGeometry{.kernel_size = {3, 3, 3, 1}, .padding = {1, 1, 1, 0}},
                      ConvGeometry{.kernel_size = {3, 3, 3, 1}, .stride = {2, 2, 2, 1}, .padding = {1, 1, 1, 0}},
                      ConvGeometry{.kernel_size = {2, 2, 2, 1}, .stride = {2, 2, 2, 1}},
                      ConvGeometry{.kernel_size = {3, 1, 5, 1},
                                   .stride = {1, 1, 2, 1},
                                   .dilation = {2, 1, 2, 1},
                                   .padding = {2, 0, 4, 0}}));

TEST(RulebookSearchTest, ARefilledRulebookHoldsOnlyTheNewPairs) {
  const CoordinateKey layout(3);
  ThreadPool pool(1);
  std::vector<uint64_t> keys;
  for (int32_t i = 0; i < 500; ++i) keys.push_back(layout.Pack(0, {i, 0, 0, 0}));
  const ConvGeometry geometry{.kernel_size = {3, 3, 3, 1}, .padding = {1, 1, 1, 0}};
  RulebookSearchParams params{
      .geometry = geometry, .in_keys = keys.data(), .num_in = 500, .out_keys = keys.data(), .num_out = 500};
  Rulebook rulebook;
  cpu::SearchRulebook(params, pool, rulebook);
  EXPECT_EQ(rulebook.View().num_pairs(), 500 + 2 * 499);
  params.num_in = params.num_out = 2;
  cpu::SearchRulebook(params, pool, rulebook);
  EXPECT_EQ(rulebook.View().num_pairs(), 4);
  EXPECT_EQ(rulebook.in_rows.size(), 4u);
  EXPECT_EQ(RulebookFlaw(rulebook.View()), "");
  params.num_in = params.num_out = 0;
  cpu::SearchRulebook(params, pool, rulebook);
  EXPECT_EQ(rulebook.View().num_pairs(), 0);
  EXPECT_EQ(rulebook.View().num_offsets, 27);
  EXPECT_EQ(RulebookFlaw(rulebook.View()), "");
}

TEST(RulebookSearchTest, NeighboursAcrossAFieldsEdgeAreNotMistaken) {
  // In the key order, the last coordinate of one column and the first of the next are neighbours. Without the margin of
  // the key's fields they would count as neighbours in space.
  const CoordinateKey layout(3);
  ThreadPool pool(1);
  const int32_t low = layout.min_coordinate(), high = layout.max_coordinate();
  const std::vector<uint64_t> keys = {layout.Pack(0, {0, 0, high, 0}), layout.Pack(0, {0, 1, low, 0}),
                                      layout.Pack(0, {high, high, high, 0}), layout.Pack(1, {low, low, low, 0})};
  const ConvGeometry geometry{
      .kernel_size = {1, 3, 3, 1}, .dilation = {1, 1, kCoordinateMargin, 1}, .padding = {0, 1, kCoordinateMargin, 0}};
  const Rulebook rulebook = Search(geometry, keys, keys, MapSearch::kMerge, pool);
  EXPECT_EQ(rulebook.View().num_pairs(), 4) << "each site sees itself alone";
}

TEST(RulebookSearchTest, EqualSitesInTwoArraysNeedNoMirror) {
  const CoordinateKey layout(3);
  ThreadPool pool(1);
  const std::vector<uint64_t> in = {layout.Pack(0, {0, 0, 0, 0}), layout.Pack(0, {0, 0, 1, 0})};
  const std::vector<uint64_t> out = in;
  const ConvGeometry geometry{.kernel_size = {3, 3, 3, 1}, .padding = {1, 1, 1, 0}};
  EXPECT_EQ(Search(geometry, in, out, MapSearch::kMerge, pool).in_rows,
            Search(geometry, in, in, MapSearch::kMerge, pool).in_rows);
}

}  // namespace
}  // namespace voxserve::kernels::rulebook_search_test
