// Tests orders of sites by windows, and the groups that are spread over the windows, on both devices against a naive
// sort and the naive definition (tests/support/window_formulas.h).

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/curves/site_order.h"
#include "tests/kernels/coordinates/curves/site_order_testing.h"
#include "tests/support/window_formulas.h"

namespace voxserve::kernels::window_order_test {
namespace {

using support::DefinedWindows;
using support::Device;
using support::DeviceArray;

std::array<int32_t, 3> WithoutFourthAxis(const Axes& site) { return {site[0], site[1], site[2]}; }

SiteWindows KernelWindows(const DefinedWindows& of) {
  SiteWindows windows{.is_snake = of.is_snake};
  for (size_t axis = 0; axis < 3; ++axis) {
    windows.shape[axis] = of.shape[axis];
    windows.shift[axis] = of.shift[axis];
    windows.axes[axis] = static_cast<int32_t>(of.axes[axis]);
  }
  return windows;
}

// DSVT's windows of both kinds, both of FlatFormer's kind, and others.
const std::vector<DefinedWindows> kWindows = {
    {.shape = {12, 12, 1}, .shift = {0, 0, 0}, .axes = {1, 0, 2}},
    {.shape = {24, 24, 1}, .shift = {6, 6, 0}, .axes = {0, 1, 2}},
    {.shape = {13, 13, 1}, .shift = {6, 6, 0}, .axes = {0, 1, 2}, .is_snake = true},
    {.shape = {13, 13, 1}, .shift = {0, 0, 0}, .axes = {1, 0, 2}, .is_snake = true},
    {.shape = {3, 5, 7}, .shift = {2, 0, 6}, .axes = {2, 0, 1}, .is_snake = true},
    {.shape = {1, 1, 1}, .shift = {0, 0, 0}},
    {.shape = {4096, 4096, 4096}, .shift = {4095, 1, 2048}, .axes = {2, 1, 0}},
};

// An order in the memory of a device, and its list of groups. Bytes behind the list must stay as they are.
struct MadeOrder {
  MadeOrder(Device device, const DeviceLevel& level, const DefinedWindows& windows, int32_t size, int32_t num_samples)
      : order{.sites = level.view, .windows = KernelWindows(windows), .spread_size = size} {
    if (size == 0) return;
    const int64_t capacity = device == Device::kCpu ? level.view.num_sites : MaxSpreadGroups(order, num_samples);
    groups = std::make_unique<DeviceArray<SpreadGroup>>(
        device, std::vector<SpreadGroup>(static_cast<size_t>(capacity) + 1, kUnwritten));
    count = std::make_unique<DeviceArray<int32_t>>(device, std::vector<int32_t>{-7});
    order.spread_groups = groups->data();
    order.num_spread_groups = count->data();
  }

  // Returns the groups in the order of their places.
  std::vector<SpreadGroup> Groups() const {
    std::vector<SpreadGroup> all = groups->ToHost();
    EXPECT_EQ(all.back().begin, kUnwritten.begin);
    const int32_t number = count->ToHost()[0];
    EXPECT_GE(number, 0);
    EXPECT_LT(static_cast<size_t>(number), all.size());
    all.resize(static_cast<size_t>(std::clamp<int64_t>(number, 0, static_cast<int64_t>(all.size()))));
    std::sort(all.begin(), all.end(),
              [](const SpreadGroup& a, const SpreadGroup& b) { return a.own_begin < b.own_begin; });
    return all;
  }

  static constexpr SpreadGroup kUnwritten = {.begin = -5, .own_begin = -5, .end = -5};
  SiteOrder order;
  std::unique_ptr<DeviceArray<SpreadGroup>> groups;
  std::unique_ptr<DeviceArray<int32_t>> count;
};

class WindowOrderTest : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }

  // Makes all orders in one call, with lists of groups of these sizes (0: without), and compares them site by site.
  void ExpectOrders(const SampleSites& sites, const Axes& extent, const std::vector<DefinedWindows>& windows,
                    const std::vector<int32_t>& sizes) {
    const auto num_samples = static_cast<int32_t>(sites.size());
    const DeviceLevel level(GetParam(), sites, extent);
    std::vector<MadeOrder> made;
    std::vector<SiteOrder> orders;
    for (size_t i = 0; i < windows.size(); ++i) {
      made.emplace_back(GetParam(), level, windows[i], sizes[i % sizes.size()], num_samples);
      orders.push_back(made.back().order);
    }
    const std::vector<std::vector<int32_t>> places = RunSiteOrders(GetParam(), orders, num_samples);
    for (size_t i = 0; i < windows.size(); ++i) {
      SCOPED_TRACE("windows " + std::to_string(i));
      ExpectOrder(sites, level, windows[i], places[i]);
      if (orders[i].spread_size > 0) ExpectGroups(sites, windows[i], orders[i].spread_size, made[i].Groups());
    }
  }

  void ExpectOrder(const SampleSites& sites, const DeviceLevel& level, const DefinedWindows& windows,
                   const std::vector<int32_t>& places) {
    size_t place = 0;
    for (size_t sample = 0; sample < sites.size(); ++sample) {
      std::vector<Axes> ordered = sites[sample];
      std::sort(ordered.begin(), ordered.end(), [&](const Axes& a, const Axes& b) {
        return DefinedWindowPlace(windows, WithoutFourthAxis(a)) < DefinedWindowPlace(windows, WithoutFourthAxis(b));
      });
      for (const Axes& site : ordered) {
        const auto row = static_cast<size_t>(places[place]);
        ASSERT_LT(row, level.host.size()) << place;
        ASSERT_EQ(level.host[row], KeyOf(static_cast<int32_t>(sample), site)) << place;
        ++place;
      }
    }
    ASSERT_EQ(place, level.host.size());
  }

  static void ExpectGroups(const SampleSites& sites, const DefinedWindows& windows, int32_t size,
                           const std::vector<SpreadGroup>& groups) {
    size_t at = 0;
    int64_t window_begin = 0;
    for (const std::vector<Axes>& of_sample : sites) {
      std::vector<Axes> ordered = of_sample;
      std::sort(ordered.begin(), ordered.end(), [&](const Axes& a, const Axes& b) {
        return DefinedWindowPlace(windows, WithoutFourthAxis(a)) < DefinedWindowPlace(windows, WithoutFourthAxis(b));
      });
      for (size_t begin = 0, end = 0; begin < ordered.size(); begin = end) {
        const auto window = DefinedWindow(windows, WithoutFourthAxis(ordered[begin]));
        while (end < ordered.size() && DefinedWindow(windows, WithoutFourthAxis(ordered[end])) == window) ++end;
        for (const support::DefinedGroup& expected :
             support::DefinedSpreadGroups(static_cast<int64_t>(end - begin), size)) {
          ASSERT_LT(at, groups.size());
          const SpreadGroup& group = groups[at++];
          ASSERT_EQ(group.begin, window_begin + expected.keys.front());
          ASSERT_EQ(group.own_begin, window_begin + expected.own.front());
          ASSERT_EQ(group.end, window_begin + expected.keys.back() + 1);
          // Both are runs of places.
          ASSERT_EQ(static_cast<size_t>(group.end - group.begin), expected.keys.size());
          ASSERT_EQ(static_cast<size_t>(group.end - group.own_begin), expected.own.size());
        }
        window_begin += static_cast<int64_t>(end - begin);
      }
    }
    ASSERT_EQ(at, groups.size());
  }

  uint64_t KeyOf(int32_t sample, const Axes& site) const {
    return GetParam() == Device::kCpu ? CoordinateKey(3).Pack(sample, site) : MortonKey<3>::Pack(sample, site);
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, WindowOrderTest, support::AllDevices(), support::DeviceName);

TEST_P(WindowOrderTest, ThousandsOfSitesInSeveralSamples) {
  const SampleSites sites = RandomSites(
      {4000, 0, 1, 2999, 1000}, {{468, 468, 1, 1}, {1, 1, 1, 1}, {400, 400, 9, 1}, {70, 60, 1, 1}, {50, 30, 40, 1}}, 2);
  for (const Axes& extent : {Axes{468, 468, 40, 0}, Axes{0, 0, 0, 0}, Axes{0, 468, 40, 0}}) {
    ExpectOrders(sites, extent, kWindows, {36, 0, 5, 1, 90, 36, 4096});
  }
}

// One call makes more orders than one sort can, with and without lists.
TEST_P(WindowOrderTest, MoreOrdersThanOneSortMakes) {
  std::vector<DefinedWindows> windows;
  for (int i = 0; i < 5; ++i) windows.insert(windows.end(), kWindows.begin(), kWindows.end());
  ExpectOrders(RandomSites({300, 200}, {{60, 60, 3, 1}, {20, 90, 1, 1}}, 3), {60, 90, 3, 0}, windows, {7, 0, 36});
}

TEST_P(WindowOrderTest, WindowsBesideCurves) {
  const SampleSites sites = RandomSites({500, 300}, {{60, 60, 3, 1}, {20, 90, 1, 1}}, 4);
  const DeviceLevel level(GetParam(), sites, {60, 90, 3, 0});
  const MadeOrder windows(GetParam(), level, kWindows[1], 36, 2);
  const SiteOrder curve{.curve = Curve::kHilbert, .sites = level.view, .depth_sites = level.view};
  const std::vector<std::vector<int32_t>> alone = {RunSiteOrders(GetParam(), {curve}, 2)[0],
                                                   RunSiteOrders(GetParam(), {windows.order}, 2)[0]};
  const std::vector<std::vector<int32_t>> both = RunSiteOrders(GetParam(), {curve, windows.order}, 2);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(std::equal(both[i].begin(), both[i].begin() + 800, alone[i].begin()));
  }
  ExpectOrder(sites, level, kWindows[1], both[1]);
  ExpectGroups(sites, kWindows[1], 36, windows.Groups());
}

// Every number of sites of a window about which groups differ.
TEST_P(WindowOrderTest, GroupsOfEveryNumberOfSites) {
  for (const int32_t size : {1, 2, 7, 36}) {
    SampleSites sites;
    for (const int n :
         {0, 1, size - 1, size, size + 1, 2 * size - 1, 2 * size, 2 * size + 1, 3 * size - 1, 5 * size + 3}) {
      sites.emplace_back();
      // A second window, which the first must not reach into.
      for (int i = 0; i < n; ++i) {
        sites.back().push_back({i % 14, i / 14, 0, 0});
        sites.back().push_back({20 + i % 14, i / 14, 0, 0});
      }
    }
    ExpectOrders(sites, {40, 20, 1, 0}, {{.shape = {20, 20, 1}, .shift = {0, 0, 0}}}, {size});
  }
}

TEST_P(WindowOrderTest, EmptyLevels) {
  ExpectOrders({{}, {}}, {0, 0, 0, 0}, {kWindows[0], kWindows[2]}, {36});
  ExpectOrders({{}, {{0, 0, 0, 0}}}, {1, 1, 1, 0}, {kWindows[0], kWindows[4]}, {36});
}

TEST_P(WindowOrderTest, LargestCoordinatesAndSamples) {
  const int32_t most = CoordinateKey(3).max_coordinate();
  SampleSites sites(kMaxSamples);
  sites[0] = {{0, 0, 0, 0}, {most, most, most, 0}, {most, 0, 0, 0}, {0, most, 0, 0}, {0, 0, most, 0}};
  sites[500] = {{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}};
  sites[kMaxSamples - 1] = sites[0];
  ExpectOrders(sites, {0, 0, 0, 0}, kWindows, {2});
}

TEST_P(WindowOrderTest, ASampleIsInCompanyWhatItIsAlone) {
  const SampleSites sites = RandomSites({700, 1500, 40}, {{60, 60, 2, 1}, {300, 30, 1, 1}, {9, 9, 9, 1}}, 5);
  const DeviceLevel together(GetParam(), sites, {0, 0, 0, 0});
  for (const DefinedWindows& windows : kWindows) {
    const MadeOrder batch(GetParam(), together, windows, 36, 3);
    const std::vector<int32_t> places = RunSiteOrders(GetParam(), {batch.order}, 3)[0];
    const std::vector<SpreadGroup> groups = batch.Groups();
    int32_t begin = 0;
    size_t group = 0;
    for (const std::vector<Axes>& sample : sites) {
      const DeviceLevel level(GetParam(), {sample}, {0, 0, 0, 0});
      const MadeOrder alone(GetParam(), level, windows, 36, 1);
      const std::vector<int32_t> of_sample = RunSiteOrders(GetParam(), {alone.order}, 1)[0];
      for (size_t i = 0; i < sample.size(); ++i) {
        ASSERT_EQ(places[static_cast<size_t>(begin) + i], of_sample[i] + begin) << i;
      }
      for (const SpreadGroup& its : alone.Groups()) {
        ASSERT_LT(group, groups.size());
        EXPECT_EQ(groups[group].begin, its.begin + begin);
        EXPECT_EQ(groups[group].own_begin, its.own_begin + begin);
        EXPECT_EQ(groups[group].end, its.end + begin);
        ++group;
      }
      begin += static_cast<int32_t>(sample.size());
    }
    EXPECT_EQ(group, groups.size());
  }
}

// A snake's walk over a full grid of whole windows goes from site to neighbour.
TEST(WindowCodeTest, ASnakeStepsToANeighbour) {
  const SiteWindows windows{.shape = {5, 5, 1, 1}, .is_snake = true};
  std::map<uint64_t, Axes> site_of_code;
  for (int32_t x = 0; x < 15; ++x) {
    for (int32_t y = 0; y < 5; ++y) site_of_code[WindowCode(windows, {3, 1, 1, 1}, {x, y, 0, 0})] = {x, y, 0, 0};
  }
  ASSERT_EQ(site_of_code.size(), 75u);
  ASSERT_EQ(site_of_code.rbegin()->first, 74u);
  for (uint64_t code = 1; code < 75; ++code) {
    const Axes &before = site_of_code[code - 1], &here = site_of_code[code];
    const int32_t step = std::abs(here[0] - before[0]) + std::abs(here[1] - before[1]);
    // From window to window a walk of an odd number of lines may have to start from the other side.
    if (code % 25 != 0) {
      ASSERT_EQ(step, 1) << code;
    }
  }
}

// Every window is cut into groups that have sites of their own, also one with fewer sites than a group has places, and
// every site has one group.
TEST(SpreadGroupTest, IsThatOfTheDefinitionForEveryWindowAndSize) {
  for (int32_t size = 1; size <= 40; ++size) {
    for (int32_t n = 1; n <= 3 * size + 3; ++n) {
      const std::vector<support::DefinedGroup> expected = support::DefinedSpreadGroups(n, size);
      ASSERT_EQ(NumSpreadGroups(n, size), static_cast<int32_t>(expected.size())) << n << " sites, size " << size;
      int32_t next = 0;
      for (int32_t j = 0; j < NumSpreadGroups(n, size); ++j) {
        const SpreadGroup group = SpreadGroupAt(100, n, size, j);
        const support::DefinedGroup& defined = expected[static_cast<size_t>(j)];
        ASSERT_FALSE(defined.own.empty());
        ASSERT_EQ(group.begin, 100 + defined.keys.front()) << n << " sites, size " << size << ", group " << j;
        ASSERT_EQ(group.own_begin, 100 + defined.own.front()) << n << " sites, size " << size << ", group " << j;
        ASSERT_EQ(group.end, 100 + defined.keys.back() + 1) << n << " sites, size " << size << ", group " << j;
        ASSERT_EQ(group.own_begin, 100 + next);
        for (; next < group.end - 100; ++next) ASSERT_EQ(SpreadGroupOf(n, size, next), j) << n << ", size " << size;
      }
      ASSERT_EQ(next, n);
    }
  }
}

TEST(WindowCodeTest, SpreadGroupsNeedNoMoreThanTheirBound) {
  EXPECT_EQ(MaxSpreadGroups(
                {.sites = {.num_sites = 1000}, .windows = SiteWindows{.shape = {12, 12, 1, 1}}, .spread_size = 36}, 2),
            1000);
  EXPECT_EQ(MaxSpreadGroups({.sites = {.num_sites = 1000, .extent = {24, 25, 1, 1}},
                             .windows = SiteWindows{.shape = {12, 12, 1, 1}},
                             .spread_size = 36},
                            2),
            2 * 6 + 27);
  EXPECT_EQ(MaxSpreadGroups({.sites = {.num_sites = 10, .extent = {468, 468, 1, 1}},
                             .windows = SiteWindows{.shape = {12, 12, 1, 1}},
                             .spread_size = 1},
                            2),
            10);
}

}  // namespace
}  // namespace voxserve::kernels::window_order_test
