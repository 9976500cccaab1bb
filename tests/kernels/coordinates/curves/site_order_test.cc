// Tests space-filling curves against published codes, and the orders of sites along them on both devices against a sort
// of codes that a plain loop makes bit by bit.

#include "kernels/coordinates/curves/site_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/coordinates/coordinate_key.h"
#include "tests/kernels/coordinates/curves/site_order_testing.h"
#include "tests/support/curve_formulas.h"

namespace voxserve::kernels::site_order_test {
namespace {

using support::Device;

constexpr Curve kCurves[] = {Curve::kZ, Curve::kZTransposed, Curve::kHilbert, Curve::kHilbertTransposed};

// ---- Codes -------------------------------------------------------------------------------------------------------

// Pointcept's serialization printed these codes.
TEST(CurveCodeTest, IsThePublishedOne) {
  struct Case {
    Axes site;
    uint64_t z, z_transposed, hilbert, hilbert_transposed, hilbert_deeper;
  };
  for (const Case& c :
       {Case{{1, 0, 0, 0}, 4, 2, 1, 7, 7}, Case{{0, 1, 0, 0}, 2, 4, 7, 1, 3}, Case{{0, 0, 1, 0}, 1, 1, 3, 3, 1},
        Case{{5, 3, 6, 0}, 350, 238, 400, 176, 304}, Case{{7, 0, 4, 0}, 356, 210, 447, 157, 285},
        Case{{100, 2047, 33, 0}, 2455479699, 4909156773, 1227526794, 3987323564, 8588090158},
        Case{{3107, 1500, 60, 0}, 40840640228, 23698987858, 66706042269, 30965769407, 28818285759}}) {
    SCOPED_TRACE(c.site[0]);
    EXPECT_EQ(CurveCode(Curve::kZ, c.site, 12), c.z);
    EXPECT_EQ(CurveCode(Curve::kZTransposed, c.site, 12), c.z_transposed);
    EXPECT_EQ(CurveCode(Curve::kHilbert, c.site, 12), c.hilbert);
    EXPECT_EQ(CurveCode(Curve::kHilbertTransposed, c.site, 12), c.hilbert_transposed);
    EXPECT_EQ(CurveCode(Curve::kHilbert, c.site, 13), c.hilbert_deeper);
  }
}

// The curve of 2 bits an axis visits all 64 sites of its cube, each beside the one before.
TEST(CurveCodeTest, HilbertStepsFromSiteToNeighbour) {
  for (const int depth : {1, 2, 3, 5}) {
    std::map<uint64_t, Axes> site_of_code;
    const int32_t size = 1 << depth;
    for (int32_t x = 0; x < size; ++x) {
      for (int32_t y = 0; y < size; ++y) {
        for (int32_t z = 0; z < size; ++z) site_of_code[HilbertCode(x, y, z, depth)] = {x, y, z, 0};
      }
    }
    ASSERT_EQ(site_of_code.size(), static_cast<size_t>(size) * size * size);
    ASSERT_EQ(site_of_code.rbegin()->first, site_of_code.size() - 1);
    for (uint64_t code = 1; code < site_of_code.size(); ++code) {
      const Axes &before = site_of_code[code - 1], &here = site_of_code[code];
      ASSERT_EQ(std::abs(here[0] - before[0]) + std::abs(here[1] - before[1]) + std::abs(here[2] - before[2]), 1);
    }
  }
}

TEST(CurveCodeTest, HalvedSitesHaveTheCodesOfTheirParents) {
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) {
    const int depth = 4 + i % 14;
    const auto draw = [&] { return static_cast<int32_t>(random() % (1u << depth)); };
    const Axes site = {draw(), draw(), draw(), 0}, half = {site[0] / 2, site[1] / 2, site[2] / 2, 0};
    for (const Curve curve : kCurves) {
      ASSERT_EQ(CurveCode(curve, site, depth) >> 3, CurveCode(curve, half, depth - 1));
    }
  }
}

TEST(CurveCodeTest, SitesBeyondTheDepthStillHaveCodesOfTheirOwn) {
  std::set<uint64_t> codes;
  for (int32_t x = 0; x < 16; ++x) {
    for (int32_t y = 0; y < 16; ++y) {
      for (int32_t z = 0; z < 16; ++z) codes.insert(HilbertCode(x, y, z, 2));
    }
  }
  EXPECT_EQ(codes.size(), 16u * 16 * 16);
}

TEST(CurveCodeTest, DepthIsTheBitsOfOneMoreThanTheLargest) {
  EXPECT_EQ(CurveDepth(0, 0), 1);
  EXPECT_EQ(CurveDepth(1, 0), 2);
  EXPECT_EQ(CurveDepth(2, 0), 2);
  EXPECT_EQ(CurveDepth(3, 0), 3);
  EXPECT_EQ(CurveDepth(3, 1), 2);
  EXPECT_EQ(CurveDepth(3, 2), 1);
  EXPECT_EQ(CurveDepth(3, 9), 1);
  EXPECT_EQ(CurveDepth(4094, 0), 12);
  EXPECT_EQ(CurveDepth(4095, 0), 13);
}

// ---- Orders ------------------------------------------------------------------------------------------------------

support::CurveSite WithoutFourthAxis(const Axes& site) { return {site[0], site[1], site[2]}; }

// Returns each sample's sites in the order of the curve.
SampleSites Ordered(Curve curve, SampleSites sites, const SampleSites& depth_sites, int halvings) {
  const bool is_transposed = curve == Curve::kZTransposed || curve == Curve::kHilbertTransposed;
  for (size_t sample = 0; sample < sites.size(); ++sample) {
    std::vector<support::CurveSite> deciding;
    for (const Axes& site : depth_sites[sample]) deciding.push_back(WithoutFourthAxis(site));
    const int depth = support::DefinedCurveDepth(deciding, halvings);
    const auto code = [&](const Axes& site) {
      return support::DefinedCurveCode(IsHilbert(curve), is_transposed, WithoutFourthAxis(site), depth);
    };
    std::sort(sites[sample].begin(), sites[sample].end(),
              [&](const Axes& a, const Axes& b) { return code(a) < code(b); });
  }
  return sites;
}

// Returns the sites of the level with half the coordinates.
SampleSites Halved(const SampleSites& sites) {
  SampleSites halved;
  for (const std::vector<Axes>& of_sample : sites) {
    std::set<Axes> unique;
    for (const Axes& site : of_sample) unique.insert({site[0] / 2, site[1] / 2, site[2] / 2, 0});
    halved.emplace_back(unique.begin(), unique.end());
  }
  return halved;
}

// One order, and what it must be.
struct ExpectedOrder {
  SiteOrder order;
  const DeviceLevel* level;
  SampleSites sites;  // in the order
};

class SiteOrderTest : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }

  std::vector<std::vector<int32_t>> Run(const std::vector<SiteOrder>& orders, int32_t num_samples) {
    return RunSiteOrders(GetParam(), orders, num_samples);
  }

  // Makes all orders in one call, and compares them site by site.
  void ExpectOrders(const std::vector<ExpectedOrder>& expected, int32_t num_samples) {
    std::vector<SiteOrder> orders;
    for (const ExpectedOrder& one : expected) orders.push_back(one.order);
    const std::vector<std::vector<int32_t>> made = Run(orders, num_samples);
    for (size_t i = 0; i < expected.size(); ++i) {
      SCOPED_TRACE("order " + std::to_string(i));
      const std::vector<uint64_t>& keys = expected[i].level->host;
      size_t place = 0;
      for (size_t sample = 0; sample < expected[i].sites.size(); ++sample) {
        for (const Axes& site : expected[i].sites[sample]) {
          const auto row = static_cast<size_t>(made[i][place]);
          ASSERT_LT(row, keys.size()) << place;
          ASSERT_EQ(keys[row], KeyOf(static_cast<int32_t>(sample), site)) << place;
          ++place;
        }
      }
      ASSERT_EQ(place, keys.size());
    }
  }

  uint64_t KeyOf(int32_t sample, const Axes& site) const {
    return GetParam() == Device::kCpu ? CoordinateKey(3).Pack(sample, site) : MortonKey<3>::Pack(sample, site);
  }

  // Returns an order whose depth is that of the level itself.
  static ExpectedOrder OwnDepth(Curve curve, const DeviceLevel& level, const SampleSites& sites) {
    return {{.curve = curve, .sites = level.view, .depth_sites = level.view}, &level, Ordered(curve, sites, sites, 0)};
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, SiteOrderTest, support::AllDevices(), support::DeviceName);

TEST_P(SiteOrderTest, TenThousandSitesInSeveralSamples) {
  const SampleSites sites =
      RandomSites({6000, 0, 1, 2999, 1000},
                  {{1000, 900, 60, 1}, {1, 1, 1, 1}, {4000, 4000, 4000, 1}, {37, 29, 31, 1}, {5, 2000, 7, 1}}, 2);
  for (const bool knows_extent : {false, true}) {
    const DeviceLevel level(GetParam(), sites, knows_extent ? Axes{4000, 4000, 4000, 0} : Axes{0, 0, 0, 0});
    for (const Curve curve : kCurves) ExpectOrders({OwnDepth(curve, level, sites)}, 5);
  }
}

// One call makes the orders of three levels and of all curves, by both rules of depth: 28 of them, and 56, which are
// more than one sort can make.
TEST_P(SiteOrderTest, CoarserOrdersAreTheFinerOneWithoutRepeats) {
  const SampleSites fine = RandomSites({3000, 500, 2500}, {{255, 200, 30, 1}, {90, 90, 90, 1}, {1022, 17, 17, 1}}, 3);
  const SampleSites middle = Halved(fine), coarse = Halved(middle);
  const DeviceLevel levels[] = {{GetParam(), fine, {1023, 255, 127, 0}},
                                {GetParam(), middle, {512, 128, 64, 0}},
                                {GetParam(), coarse, {0, 0, 0, 0}}};
  std::vector<ExpectedOrder> expected;
  for (const Curve curve : kCurves) {
    SampleSites finest = Ordered(curve, fine, fine, 0);
    for (int halvings = 0; halvings < 3; ++halvings) {
      const SiteOrder order{
          .curve = curve, .sites = levels[halvings].view, .depth_sites = levels[0].view, .halvings = halvings};
      SampleSites kept;
      for (const std::vector<Axes>& of_sample : finest) {
        kept.emplace_back();
        for (const Axes& site : of_sample) {
          const Axes parent = {site[0] >> halvings, site[1] >> halvings, site[2] >> halvings, 0};
          if (kept.back().empty() || kept.back().back() != parent) kept.back().push_back(parent);
        }
      }
      expected.push_back({order, &levels[halvings], kept});
    }
    expected.push_back(OwnDepth(curve, levels[0], fine));
    expected.push_back(OwnDepth(curve, levels[1], middle));
    expected.push_back(OwnDepth(curve, levels[2], coarse));
    expected.push_back(OwnDepth(curve, levels[2], coarse));
  }
  ASSERT_EQ(expected.size(), 28u);
  ExpectOrders(expected, 3);
  const std::vector<ExpectedOrder> again = expected;
  expected.insert(expected.end(), again.begin(), again.end());
  ExpectOrders(expected, 3);
}

// Where the voxels' largest coordinate is 2^d - 2, half of their depth and the level's own differ.
TEST_P(SiteOrderTest, DepthOfTheVoxelsIsNotTheLevelsOwn) {
  const SampleSites fine = {{{0, 0, 0, 0}, {2, 0, 0, 0}, {0, 2, 0, 0}, {0, 0, 2, 0}, {2, 2, 4, 0}, {14, 2, 6, 0}}};
  const SampleSites coarse = Halved(fine);
  const DeviceLevel fine_level(GetParam(), fine, {15, 15, 15, 0}), level(GetParam(), coarse, {8, 8, 8, 0});
  const SampleSites by_voxels = Ordered(Curve::kHilbert, coarse, fine, 1);
  const SampleSites by_itself = Ordered(Curve::kHilbert, coarse, coarse, 0);
  ASSERT_NE(by_voxels, by_itself);
  ExpectOrders({{{.curve = Curve::kHilbert, .sites = level.view, .depth_sites = fine_level.view, .halvings = 1},
                 &level,
                 by_voxels},
                OwnDepth(Curve::kHilbert, level, coarse)},
               1);
}

TEST_P(SiteOrderTest, EmptyLevelsAndSingleSites) {
  const SampleSites none = {{}, {}}, one = {{}, {{0, 0, 0, 0}}};
  const DeviceLevel empty(GetParam(), none, {0, 0, 0, 0}), single(GetParam(), one, {1, 1, 1, 0});
  for (const Curve curve : kCurves) {
    ExpectOrders({OwnDepth(curve, empty, none)}, 2);
    ExpectOrders({OwnDepth(curve, empty, none), OwnDepth(curve, single, one), OwnDepth(curve, empty, none)}, 2);
  }
  EXPECT_TRUE(Run({}, 2).empty());
}

TEST_P(SiteOrderTest, LargestCoordinatesAndSamples) {
  const int32_t most = CoordinateKey(3).max_coordinate();
  SampleSites sites(kMaxSamples);
  sites[0] = {{0, 0, 0, 0}, {most, most, most, 0}, {most, 0, 0, 0}, {0, most, 0, 0}, {0, 0, most, 0}};
  sites[500] = {{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}};
  sites[kMaxSamples - 1] = sites[0];
  const DeviceLevel level(GetParam(), sites, {0, 0, 0, 0});
  for (const Curve curve : kCurves) ExpectOrders({OwnDepth(curve, level, sites)}, kMaxSamples);
}

TEST_P(SiteOrderTest, ASampleIsInCompanyWhatItIsAlone) {
  const SampleSites sites = RandomSites({700, 1500, 40}, {{60, 60, 60, 1}, {2000, 30, 30, 1}, {9, 9, 9, 1}}, 4);
  const DeviceLevel together(GetParam(), sites, {0, 0, 0, 0});
  for (const Curve curve : kCurves) {
    const SiteOrder order{.curve = curve, .sites = together.view, .depth_sites = together.view};
    const std::vector<int32_t> made = Run({order}, 3)[0];
    size_t begin = 0;
    for (const std::vector<Axes>& sample : sites) {
      const DeviceLevel alone(GetParam(), {sample}, {0, 0, 0, 0});
      const SiteOrder its{.curve = curve, .sites = alone.view, .depth_sites = alone.view};
      const std::vector<int32_t> of_sample = Run({its}, 1)[0];
      for (size_t i = 0; i < sample.size(); ++i) {
        ASSERT_EQ(made[begin + i], of_sample[i] + static_cast<int32_t>(begin)) << i;
      }
      begin += sample.size();
    }
  }
}

}  // namespace
}  // namespace voxserve::kernels::site_order_test
