// Compares the CPU's output coordinates with stored results (conv_cases.h), and tests their limits, shapes and
// capacities.

#include "kernels/coordinates/output_coordinates.h"

#include <algorithm>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/coordinates/conv_cases.h"
#include "tests/kernels/coordinates/geometry_testing.h"

namespace voxserve::kernels::output_coordinates_test {
namespace {

using fixtures::AllConvCases;
using fixtures::ConvCase;
using fixtures::RunOutputCoordinates;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<uint64_t> Sorted(std::vector<uint64_t> keys) {
  std::sort(keys.begin(), keys.end());
  return keys;
}

std::vector<ConvCase> StridedCases() {
  std::vector<ConvCase> cases;
  std::copy_if(AllConvCases().begin(), AllConvCases().end(), std::back_inserter(cases),
               [](const ConvCase& c) { return !c.is_submanifold; });
  return cases;
}

TEST(OutputCoordinatesTest, AgreeWithTheDefinition) {
  ThreadPool alone(1), several(3);
  for (const ConvCase& c : StridedCases()) {
    SCOPED_TRACE(c.name);
    const std::vector<uint64_t> in = Sorted(c.in_keys);
    OutputCoordinatesParams params = c.OutputParams();
    params.in_keys = in.data();
    params.num_in = static_cast<int64_t>(in.size());
    for (ThreadPool* pool : {&alone, &several}) {
      std::vector<int64_t> num_beyond_limits;
      const std::vector<uint64_t> out = RunOutputCoordinates(params, *pool, &num_beyond_limits);
      EXPECT_EQ(out, Sorted(c.out_keys));
      EXPECT_THAT(num_beyond_limits, Each(0));
    }
    if (c.rule == CoordinateRule::kPadded) {
      Axes expected = {0, 0, 0, 0};
      std::copy_n(c.out_shape.begin(), c.geometry.dimension, expected.begin());
      EXPECT_EQ(OutputShape(c.geometry, c.shape), expected);
    }
  }
}

// A sample's outputs do not depend on the batch's other samples.
TEST(OutputCoordinatesTest, AreThoseOfEverySampleAlone) {
  ThreadPool pool(1);
  for (const ConvCase& c : StridedCases()) {
    SCOPED_TRACE(c.name);
    const CoordinateKey layout(c.geometry.dimension);
    std::vector<uint64_t> together;
    for (int32_t sample = 0; sample < c.num_samples; ++sample) {
      std::vector<uint64_t> in;
      for (const uint64_t key : Sorted(c.in_keys)) {
        if (layout.Sample(key) == sample) in.push_back(layout.Pack(0, layout.Unpack(key)));
      }
      OutputCoordinatesParams params = c.OutputParams();
      params.num_samples = 1;
      params.in_keys = in.data();
      params.num_in = static_cast<int64_t>(in.size());
      for (const uint64_t key : RunOutputCoordinates(params, pool)) {
        together.push_back(layout.Pack(sample, layout.Unpack(key)));
      }
    }
    EXPECT_EQ(together, Sorted(c.out_keys));
  }
}

OutputCoordinatesParams Line(CoordinateRule rule, int32_t kernel_size, int32_t stride, int32_t padding) {
  OutputCoordinatesParams params;
  params.rule = rule;
  params.geometry.dimension = 1;
  params.geometry.kernel_size[0] = kernel_size;
  params.geometry.stride[0] = stride;
  params.geometry.padding[0] = padding;
  params.num_samples = 1;
  return params;
}

// Inputs fill their extent, or lie at one end of it.
TEST(OutputExtentTest, ContainsAllOutputsAndNoMore) {
  constexpr int32_t kExtent = 23;
  const CoordinateKey layout(1);
  ThreadPool pool(1);
  int num_tight = 0;
  for (const int32_t kernel_size : {1, 2, 3, 5}) {
    for (const int32_t stride : {1, 2, 3, 5}) {
      for (const int32_t dilation : {1, 2}) {
        for (const int32_t padding : {0, 1, kernel_size / 2}) {
          for (const CoordinateRule rule : {CoordinateRule::kFloor, CoordinateRule::kExpand}) {
            for (const int32_t upper : {-1, 4, 100}) {  // -1: no bound
              SCOPED_TRACE(::testing::Message() << static_cast<int>(rule) << ": " << kernel_size << " " << stride << " "
                                                << dilation << " " << padding << " " << upper);
              OutputCoordinatesParams params = Line(rule, kernel_size, stride, padding);
              params.geometry.dilation[0] = dilation;
              params.in_extent[0] = kExtent;
              params.has_upper = upper >= 0;
              params.upper[0] = upper;
              for (const auto& [first, last] : {std::pair{0, kExtent - 1}, {0, 0}, {kExtent - 1, kExtent - 1}}) {
                std::vector<uint64_t> in;
                for (int32_t c = first; c <= last; ++c) in.push_back(layout.Pack(0, {c}));
                params.in_keys = in.data();
                params.num_in = static_cast<int64_t>(in.size());
                const std::vector<uint64_t> out = RunOutputCoordinates(params, pool);
                if (out.empty()) continue;  // padding and the bound leave none
                EXPECT_GE(layout.Coordinate(out.front(), 0), 0);
                EXPECT_LT(layout.Coordinate(out.back(), 0), OutputExtent(params)[0]);
                // One input, or cells with gaps between them, need not reach the last site.
                if (first == last || padding >= kernel_size || dilation > 1) continue;
                EXPECT_EQ(layout.Coordinate(out.back(), 0), OutputExtent(params)[0] - 1);
                ++num_tight;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(num_tight, 200);
}

constexpr Axes kUnknown = {0, 0, 0, 0};

TEST(OutputExtentTest, FollowsFromTheBounds) {
  OutputCoordinatesParams params = Line(CoordinateRule::kExpand, 3, 2, 1);
  EXPECT_EQ(OutputExtent(params), kUnknown);
  params.has_upper = true;
  params.upper[0] = 9;
  EXPECT_EQ(OutputExtent(params), kUnknown) << "outputs may be below 0";
  params.has_lower = true;
  EXPECT_EQ(OutputExtent(params), (Axes{5, 0, 0, 0}));
  params.lower[0] = -1;
  EXPECT_EQ(OutputExtent(params), (Axes{5, 0, 0, 0})) << "2 * -1 is below -1";
  params.lower[0] = -2;
  EXPECT_EQ(OutputExtent(params), kUnknown);
  params.in_extent[0] = 7;
  EXPECT_EQ(OutputExtent(params), kUnknown) << "the rule lets outputs below 0 in";
  params.lower[0] = 2;
  EXPECT_EQ(OutputExtent(params), (Axes{4, 0, 0, 0})) << "the inputs end before the bound";
}

TEST(OutputExtentTest, IsWithinAnInt32) {
  OutputCoordinatesParams params = Line(CoordinateRule::kExpand, 3, 2, 1);
  params.in_extent[0] = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(OutputExtent(params), (Axes{int32_t{1} << 30, 0, 0, 0}));
  params.geometry.stride[0] = 1;
  EXPECT_EQ(OutputExtent(params), (Axes{std::numeric_limits<int32_t>::max(), 0, 0, 0})) << "quotients";
  params.geometry = {.dimension = 2, .kernel_size = {3, 3}, .stride = {1, 2}, .padding = {1, 1}};
  params.in_extent[1] = 7;
  EXPECT_EQ(OutputExtent(params), kUnknown);
  params.has_upper = true;
  params.upper = {9, 9};
  EXPECT_EQ(OutputExtent(params), (Axes{10, 4, 0, 0}));
  params.in_extent[0] = 0;
  EXPECT_EQ(OutputExtent(params), kUnknown) << "outputs may be below 0 on an axis";
}

TEST(OutputExtentTest, IsTheShapeOfARuleAndUnknownOfGenerativeSites) {
  OutputCoordinatesParams params = Line(CoordinateRule::kPadded, 3, 2, 1);
  params.in_extent[0] = 7;
  params.out_shape[0] = 12;
  EXPECT_EQ(OutputExtent(params), (Axes{12, 0, 0, 0}));
  params.rule = CoordinateRule::kTransposed;
  EXPECT_EQ(OutputExtent(params), (Axes{12, 0, 0, 0}));
  params.rule = CoordinateRule::kGenerative;
  EXPECT_EQ(OutputExtent(params), kUnknown);
}

TEST(OutputCoordinatesTest, FloorOfNegativesGoesDown) {
  const CoordinateKey layout(1);
  ThreadPool pool(1);
  const std::vector<uint64_t> in = {layout.Pack(0, {-3}), layout.Pack(0, {-2}), layout.Pack(0, {-1}),
                                    layout.Pack(0, {0}), layout.Pack(0, {1})};
  OutputCoordinatesParams params = Line(CoordinateRule::kFloor, 2, 2, 0);
  params.in_keys = in.data();
  params.num_in = 5;
  EXPECT_THAT(RunOutputCoordinates(params, pool),
              ElementsAre(layout.Pack(0, {-2}), layout.Pack(0, {-1}), layout.Pack(0, {0})));
}

TEST(OutputCoordinatesTest, SitesAtTheLimitsOfTheKeySurviveTheFloor) {
  const CoordinateKey layout(3);
  ThreadPool pool(1);
  const int32_t low = layout.min_coordinate(), high = layout.max_coordinate();
  const std::vector<uint64_t> in = {layout.Pack(0, {low, high, low, 0}), layout.Pack(1023, {high, low, high, 0})};
  OutputCoordinatesParams params;
  params.geometry.stride = {1, 2, 3, 1};
  params.num_samples = 1024;
  params.in_keys = in.data();
  params.num_in = 2;
  EXPECT_THAT(RunOutputCoordinates(params, pool), ElementsAre(layout.Pack(0, {low, high / 2, low / 3, 0}),
                                                              layout.Pack(1023, {high, low / 2, high / 3, 0})));
}

// Returns a kernel of 3 x 1 x 3 cells with stride 2 on the first axis. On the first axis, one output site reads an
// input at an even coordinate and two read an input at an odd one. On the last axis, three output sites read each
// input.
OutputCoordinatesParams HalvesTheFirstAxis() {
  OutputCoordinatesParams params;
  params.rule = CoordinateRule::kExpand;
  params.geometry.kernel_size = {3, 1, 3, 1};
  params.geometry.padding = {1, 0, 1, 0};
  params.geometry.stride = {2, 1, 1, 1};
  params.has_lower = true;
  params.lower = {-100, -100, -100, 0};
  return params;
}

TEST(OutputCoordinatesTest, WhatNoKeyCanHoldIsCountedForItsSampleAndNotMade) {
  const CoordinateKey layout(3);
  ThreadPool pool(1);
  const int32_t high = layout.max_coordinate();
  const std::vector<uint64_t> in = {layout.Pack(1, {0, 0, high, 0}), layout.Pack(2, {0, 0, 7, 0}),
                                    layout.Pack(3, {1, 0, high, 0}), layout.Pack(3, {2, 0, high - 1, 0})};
  OutputCoordinatesParams params = HalvesTheFirstAxis();
  params.num_samples = 4;
  params.in_keys = in.data();
  params.num_in = 4;
  std::vector<int64_t> num_beyond_limits;
  EXPECT_THAT(
      RunOutputCoordinates(params, pool, &num_beyond_limits),
      ElementsAre(layout.Pack(1, {0, 0, high - 1, 0}), layout.Pack(1, {0, 0, high, 0}), layout.Pack(2, {0, 0, 6, 0}),
                  layout.Pack(2, {0, 0, 7, 0}), layout.Pack(2, {0, 0, 8, 0}), layout.Pack(3, {0, 0, high - 1, 0}),
                  layout.Pack(3, {0, 0, high, 0}), layout.Pack(3, {1, 0, high - 2, 0}),
                  layout.Pack(3, {1, 0, high - 1, 0}), layout.Pack(3, {1, 0, high, 0})));
  EXPECT_THAT(num_beyond_limits, ElementsAre(0, 1, 0, 2));
}

// A candidate beyond the limits on one axis does not count yet: the rule may refuse it on a later axis.
TEST(OutputCoordinatesTest, WhatTheRuleRefusesIsNotCountedBeyondTheLimits) {
  const CoordinateKey layout(3);
  ThreadPool pool(1);
  const std::vector<uint64_t> in = {layout.Pack(0, {layout.max_coordinate(), 0, 5, 0})};
  OutputCoordinatesParams params = HalvesTheFirstAxis();
  params.geometry.stride = {1, 1, 2, 1};
  params.num_samples = 1;
  params.in_keys = in.data();
  params.num_in = 1;
  std::vector<int64_t> num_beyond_limits;
  EXPECT_EQ(RunOutputCoordinates(params, pool, &num_beyond_limits).size(), 4u);
  EXPECT_THAT(num_beyond_limits, ElementsAre(2));
  params.has_upper = true;
  params.upper = {INT32_MAX, INT32_MAX, 3, 0};  // candidates on the last axis are 4 and 6
  EXPECT_THAT(RunOutputCoordinates(params, pool, &num_beyond_limits), IsEmpty());
  EXPECT_THAT(num_beyond_limits, ElementsAre(0));
}

TEST(OutputCoordinatesTest, NothingFitsAShapeSmallerThanTheKernel) {
  const CoordinateKey layout(1);
  ThreadPool pool(1);
  const std::vector<uint64_t> in = {layout.Pack(0, {0}), layout.Pack(0, {1})};
  OutputCoordinatesParams params = Line(CoordinateRule::kPadded, 5, 1, 0);
  params.out_shape = OutputShape(params.geometry, {2, 0, 0, 0});
  EXPECT_EQ(params.out_shape[0], 0);
  params.in_keys = in.data();
  params.num_in = 2;
  EXPECT_EQ(OutputCoordinatesCapacity(params), 0);
  EXPECT_THAT(RunOutputCoordinates(params, pool), IsEmpty());
}

TEST(OutputCoordinatesTest, TransposedSitesStayWithinTheShape) {
  const CoordinateKey layout(1);
  ThreadPool pool(1);
  const std::vector<uint64_t> in = {layout.Pack(0, {0}), layout.Pack(0, {2}), layout.Pack(1, {1})};
  OutputCoordinatesParams params = Line(CoordinateRule::kTransposed, 3, 2, 1);
  params.num_samples = 2;
  params.in_keys = in.data();
  params.num_in = 3;
  const auto shape = TransposedShape(params.geometry, {3, 0, 0, 0}, {1, 0, 0, 0});
  EXPECT_EQ(shape[0], 6);  // (3 - 1) * 2 - 2 * 1 + (3 - 1) + 1, and 1 of output padding
  params.out_shape[0] = 6;
  EXPECT_EQ(OutputCoordinatesCapacity(params), 9);
  // Input x reaches the sites 2 * x + (-1..1). For x = 0 the site -1 is outside of the shape.
  EXPECT_THAT(RunOutputCoordinates(params, pool),
              ElementsAre(layout.Pack(0, {0}), layout.Pack(0, {1}), layout.Pack(0, {3}), layout.Pack(0, {4}),
                          layout.Pack(0, {5}), layout.Pack(1, {1}), layout.Pack(1, {2}), layout.Pack(1, {3})));
  params.out_shape[0] = 4;
  EXPECT_EQ(OutputCoordinatesCapacity(params), 8);  // two samples, four cells each
  EXPECT_EQ(RunOutputCoordinates(params, pool).size(), 6u);
}

TEST(OutputCoordinatesTest, GeneratedSitesAreThoseOfTheListedCells) {
  const CoordinateKey layout(2);
  ThreadPool pool(1);
  const std::vector<uint64_t> in = {layout.Pack(0, {-1, 4}), layout.Pack(0, {0, 4})};
  OutputCoordinatesParams params;
  params.rule = CoordinateRule::kGenerative;
  // A cross in 3 x 3: cells 1, 3, 4, 5 and 7 of its box; here without cell 3.
  params.geometry = {.dimension = 2, .kernel_size = {3, 3, 1, 1}, .padding = {1, 1, 0, 0}, .num_listed_cells = 4};
  params.geometry.listed_cells = {1, 4, 5, 7};
  params.num_samples = 1;
  params.in_keys = in.data();
  params.num_in = 2;
  EXPECT_THAT(RunOutputCoordinates(params, pool),
              ElementsAre(layout.Pack(0, {-2, 4}), layout.Pack(0, {-1, 4}), layout.Pack(0, {-1, 5}),
                          layout.Pack(0, {0, 4}), layout.Pack(0, {0, 5}), layout.Pack(0, {1, 4})));
}

TEST(OutputCoordinatesTest, GeneratedSitesThatNoKeyCanHoldAreCounted) {
  const CoordinateKey layout(1);
  ThreadPool pool(1);
  const std::vector<uint64_t> in = {layout.Pack(0, {5}), layout.Pack(1, {layout.max_coordinate()})};
  OutputCoordinatesParams params = Line(CoordinateRule::kGenerative, 3, 1, 1);
  params.num_samples = 2;
  params.in_keys = in.data();
  params.num_in = 2;
  std::vector<int64_t> num_beyond_limits;
  EXPECT_EQ(RunOutputCoordinates(params, pool, &num_beyond_limits).size(), 5u);
  EXPECT_THAT(num_beyond_limits, ElementsAre(0, 1));
  params.geometry.stride[0] = 128;
  EXPECT_EQ(RunOutputCoordinates(params, pool, &num_beyond_limits).size(), 3u);
  EXPECT_THAT(num_beyond_limits, ElementsAre(0, 3));
}

TEST(OutputCoordinatesTest, CapacityFollowsKernelStrideAndDilation) {
  OutputCoordinatesParams params = Line(CoordinateRule::kExpand, 5, 2, 2);
  params.num_in = 10;
  EXPECT_EQ(OutputCoordinatesCapacity(params), 30);  // at most 3 of an input's 5 cells reach a site
  params.geometry.dilation[0] = 2;
  EXPECT_EQ(OutputCoordinatesCapacity(params), 50);  // all 5 cells of an input at an even coordinate reach a site
  params.geometry.stride[0] = 3;
  EXPECT_EQ(OutputCoordinatesCapacity(params), 20);
  params.rule = CoordinateRule::kFloor;
  EXPECT_EQ(OutputCoordinatesCapacity(params), 10);
  params.rule = CoordinateRule::kPadded;
  params.out_shape[0] = 7;
  EXPECT_EQ(OutputCoordinatesCapacity(params), 7);
}

TEST(OutputCoordinatesTest, ReachOfAChainOfLevelsBoundsWhatComesOfOneSite) {
  ThreadPool pool(1);
  std::mt19937 random(11);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  int num_tight = 0;
  for (int trial = 0; trial < 300; ++trial) {
    OutputReach reach;
    // The shape is so large that it cuts off no output of the one site.
    const CoordinateKey layout(1);
    const int32_t site = 1000 + trial;
    std::vector<uint64_t> keys = {layout.Pack(0, {site, 0, 0, 0})};
    for (int level = draw(1, 4); level > 0; --level) {
      OutputCoordinatesParams params =
          Line(draw(0, 3) == 0 ? CoordinateRule::kFloor : CoordinateRule::kPadded, draw(1, 5), draw(1, 3), draw(0, 2));
      params.geometry.dilation[0] = draw(1, 2);
      params.out_shape[0] = 4000;
      params.num_samples = 1;
      params.in_keys = keys.data();
      params.num_in = static_cast<int64_t>(keys.size());
      reach = reach.Then(params);
      std::vector<int64_t> beyond;
      keys = RunOutputCoordinates(params, pool, &beyond);
      ASSERT_LE(static_cast<int64_t>(keys.size()), reach.OutputsAnInput()) << "trial " << trial;
      if (keys.empty()) break;
      num_tight += static_cast<int64_t>(keys.size()) == reach.OutputsAnInput() ? 1 : 0;
    }
  }
  EXPECT_GT(num_tight, 100);
  OutputReach far;
  OutputCoordinatesParams dilated = Line(CoordinateRule::kPadded, 5, 1, 0);
  dilated.geometry.dilation[0] = 2;
  for (int level = 0; level < 40; ++level) far = far.Then(dilated);
  EXPECT_EQ(far.OutputsAnInput(), 1 + 40 * 8);
  OutputCoordinatesParams wide = Line(CoordinateRule::kExpand, 3, 128, 0);
  wide.geometry.dilation[0] = 128;
  OutputReach beyond_all;  // if a step overflows, the bound is the largest int64
  for (int level = 0; level < 12; ++level) {
    beyond_all = beyond_all.Then(wide);
    EXPECT_GE(beyond_all.OutputsAnInput(), 2) << level;
  }
  EXPECT_EQ(beyond_all.OutputsAnInput(), std::numeric_limits<int64_t>::max());
  OutputCoordinatesParams params = Line(CoordinateRule::kExpand, 3, 2, 1);
  params.num_in = 10;
  params.most_outputs = 13;
  EXPECT_EQ(OutputCoordinatesCapacity(params), 13);
}

}  // namespace
}  // namespace voxserve::kernels::output_coordinates_test
