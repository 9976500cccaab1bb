// Compares farthest point sampling, on every device and in every layout, with the serial algorithm: indices and
// distances must have the same bits.

#include "kernels/points/farthest/farthest_point_sample.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/kernels/points/farthest/farthest_point_testing.h"
#include "tests/support/paths.h"

namespace voxserve::kernels::farthest_point_sample_test {
namespace {

using cuda::FarthestPointLayout;
using fixtures::DeviceClouds;
using fixtures::Lattice;
using fixtures::PointClouds;
using fixtures::Selection;
using fixtures::SelectSerially;
using support::Device;
using support::ExpectCudaSuccess;
using ::testing::Each;
using ::testing::ElementsAre;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

struct Ground {
  const char* name;
  Device device;
  FarthestPointLayout layout = {};
};
void PrintTo(const Ground& ground, std::ostream* os) { *os << ground.name; }

constexpr Ground kGrounds[] = {
    {"Cpu", Device::kCpu},
    {"Cuda", Device::kCuda},
    {"CudaBlock", Device::kCuda, {.num_blocks = 1, .num_warps = 32}},
    {"CudaWarp", Device::kCuda, {.num_blocks = 1, .num_warps = 1}},
    {"CudaClusterOf2", Device::kCuda, {.num_blocks = 2, .num_warps = 3}},
    {"CudaClusterOf8", Device::kCuda, {.num_blocks = 8, .num_warps = 8}},
    {"CudaClusterOf16", Device::kCuda, {.num_blocks = 16, .num_warps = 16}},
};

class FarthestPointSampleTest : public ::testing::TestWithParam<Ground> {
 protected:
  void SetUp() override {
    const Ground& ground = GetParam();
    SKIP_WITHOUT(ground.device);
    if constexpr (kHasCuda) {
      if (ground.device == Device::kCpu) return;
      int32_t num_blocks = 0;
      ExpectCudaSuccess(cuda::MaxFarthestPointBlocks(&num_blocks));
      if (ground.layout.num_blocks > num_blocks) GTEST_SKIP() << "this device's clusters are of " << num_blocks;
    }
  }

  Selection Select(const PointClouds& clouds) {
    DeviceClouds on_device(GetParam().device, clouds);
    if (GetParam().device == Device::kCpu) {
      on_device.RunOnCpu(pool_);
    } else {
      ExpectCudaSuccess(on_device.Launch(GetParam().layout));
    }
    return on_device.ToHost();
  }

  Selection ExpectSerial(const PointClouds& clouds) {
    const Selection expected = SelectSerially(clouds);
    const Selection selection = Select(clouds);
    EXPECT_EQ(selection.num_valid, expected.num_valid);
    // EXPECT_EQ of the arrays would print all of them.
    const auto differs = std::mismatch(selection.selected.begin(), selection.selected.end(), expected.selected.begin());
    if (differs.first != selection.selected.end()) {
      ADD_FAILURE() << "place " << differs.first - selection.selected.begin() << " is " << *differs.first << " and not "
                    << *differs.second;
    }
    EXPECT_TRUE(selection.distances == expected.distances);
    return selection;
  }

  ThreadPool pool_{2};
};

std::vector<float> RandomPoints(int64_t count, std::mt19937& random, float reach = 50) {
  std::normal_distribution<float> place(0, reach);
  std::vector<float> values(static_cast<size_t>(3 * count));
  for (float& value : values) value = place(random);
  return values;
}

TEST_P(FarthestPointSampleTest, FourPointsInOrder) {
  PointClouds clouds;
  clouds.Add({0, 0, 0, 1, 0, 0, 10, 0, 0, 4, 0, 0}, 4);
  const Selection selection = Select(clouds);
  EXPECT_THAT(selection.num_valid, ElementsAre(4));
  EXPECT_THAT(selection.selected, ElementsAre(0, 2, 3, 1));
  EXPECT_THAT(selection.distances, ElementsAre(kInfinity, 100, 16, 1));
}

TEST_P(FarthestPointSampleTest, AllPointsOfCloudsOfAnySize) {
  std::mt19937 random(1);
  PointClouds clouds;
  for (const int64_t count : {1, 2, 31, 32, 33, 257, 1000, 2049}) clouds.Add(RandomPoints(count, random), count);
  const Selection selection = ExpectSerial(clouds);
  // Each sample's result is a permutation.
  for (int32_t sample = 0; sample < clouds.num_samples(); ++sample) {
    const auto first = selection.selected.begin() + clouds.selected_begin[static_cast<size_t>(sample)];
    const std::set<int32_t> different(first, first + clouds.NumSelected(sample));
    EXPECT_EQ(different.size(), static_cast<size_t>(clouds.NumPoints(sample)));
  }
}

TEST_P(FarthestPointSampleTest, TiesGoToTheLowestIndexOnALattice) {
  PointClouds clouds;
  clouds.Add(Lattice(12, 3), 800);
  std::mt19937 random(2);
  std::vector<float> shuffled;
  std::vector<int> order(12 * 12 * 12);
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  std::shuffle(order.begin(), order.end(), random);
  const std::vector<float> lattice = Lattice(12, 3);
  for (const int i : order) shuffled.insert(shuffled.end(), lattice.begin() + 3 * i, lattice.begin() + 3 * i + 3);
  clouds.Add(shuffled, 12 * 12 * 12);
  ExpectSerial(clouds);
}

TEST_P(FarthestPointSampleTest, DuplicatesAreSelectedAgainFromTheFirstValidPoint) {
  PointClouds clouds;
  clouds.Add({kNan, 0, 0, 5, 5, 5, 7, 7, 7, 5, 5, 5, 7, 7, 7, 5, 5, 5}, 5);
  std::vector<float> same;
  for (int i = 0; i < 700; ++i) same.insert(same.end(), {-3, 2, 1});
  clouds.Add(same, 700);
  std::mt19937 random(3);
  std::vector<float> rounded = RandomPoints(3000, random, 2);
  for (float& value : rounded) value = std::round(value);
  clouds.Add(rounded, 1500);
  const Selection selection = ExpectSerial(clouds);
  EXPECT_THAT(std::vector<int32_t>(selection.selected.begin(), selection.selected.begin() + 5),
              ElementsAre(1, 2, 1, 1, 1));
}

TEST_P(FarthestPointSampleTest, RaggedWithEmptySamples) {
  std::mt19937 random(4);
  PointClouds clouds;
  const int64_t sizes[] = {0, 100, 0, 0, 3000, 1, 77, 0};
  const int64_t selected[] = {0, 10, 0, 0, 512, 1, 0, 0};
  for (size_t i = 0; i < 8; ++i) clouds.Add(RandomPoints(sizes[i], random), selected[i]);
  ExpectSerial(clouds);
}

TEST_P(FarthestPointSampleTest, NothingAtAll) {
  PointClouds no_samples;
  ExpectSerial(no_samples);
  PointClouds no_points;
  no_points.Add({}, 0);
  no_points.Add({}, 0);
  ExpectSerial(no_points);
}

TEST_P(FarthestPointSampleTest, InvalidPointsAreNeverSelected) {
  std::mt19937 random(5);
  PointClouds clouds{.pitch = 5};
  for (const int64_t count : {int64_t{40}, int64_t{2500}}) {
    std::vector<float> values;
    const std::vector<float> points = RandomPoints(count, random);
    const float bad[] = {kNan, kInfinity, -kInfinity};
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t axis = 0; axis < 3; ++axis) values.push_back(points[static_cast<size_t>(3 * i + axis)]);
      values.insert(values.end(), {kNan, 9e9F});  // two columns that are no coordinates
      if (random() % 4 == 0) values[values.size() - 5 + random() % 3] = bad[random() % 3];
      clouds.is_valid.push_back(random() % 8 == 0 ? 0 : 1);
    }
    clouds.Add(values, count / 2);
  }
  // Makes the first point invalid, so that the first sample starts at its first valid point.
  for (size_t axis = 0; axis < 3; ++axis) clouds.rows[axis] = kNan;
  ExpectSerial(clouds);
}

TEST_P(FarthestPointSampleTest, TooFewValidPointsGiveNothingAndHarmNobody) {
  std::mt19937 random(6);
  PointClouds clouds;
  clouds.Add(RandomPoints(50, random), 51);
  clouds.Add({}, 3);
  clouds.Add(std::vector<float>(3 * 40, kNan), 1);
  clouds.Add(RandomPoints(300, random), 20);
  std::vector<float> one_is_bad = RandomPoints(64, random);
  one_is_bad[100] = kInfinity;
  clouds.Add(one_is_bad, 64);
  clouds.Add(std::vector<float>(3 * 70, kNan), 0);
  const Selection selection = ExpectSerial(clouds);
  EXPECT_THAT(selection.num_valid, ElementsAre(50, 0, 0, 300, 63, 0));
  EXPECT_THAT(std::vector<int32_t>(selection.selected.begin(), selection.selected.begin() + 55),
              Each(kNothingSelected));
}

TEST_P(FarthestPointSampleTest, StartsAnywhere) {
  std::mt19937 random(7);
  PointClouds clouds;
  std::vector<float> points = RandomPoints(200, random);
  for (const size_t bad : {0, 1, 2, 150, 199}) points[3 * bad] = kNan;
  // A start at an invalid point moves to the next valid one: from 150 to 151, and from the last point, 199, to 3. The
  // last three starts are outside of the cloud, so nothing is selected.
  const std::vector<int64_t> starts = {0, 3, 150, 198, 199, 200, -1, std::numeric_limits<int64_t>::min()};
  for (const int64_t start : starts) {
    clouds.Add(points, 30);
    clouds.starts.push_back(start);
  }
  const Selection selection = ExpectSerial(clouds);
  std::vector<int32_t> first;
  for (size_t sample = 0; sample < starts.size(); ++sample) first.push_back(selection.selected[30 * sample]);
  EXPECT_THAT(first, ElementsAre(3, 3, 151, 198, 3, kNothingSelected, kNothingSelected, kNothingSelected));
}

TEST_P(FarthestPointSampleTest, DistancesBeyondFloat) {
  std::mt19937 random(8);
  PointClouds clouds;
  std::vector<float> values = RandomPoints(500, random);
  for (const float far : {1e19F, -1e19F, 1e30F, -kLargest, kLargest}) values.insert(values.end(), {far, 0, far});
  clouds.Add(values, 505);
  // The squares of these distances underflow.
  clouds.Add(RandomPoints(500, random, 1e-22F), 500);
  clouds.Add({-kLargest, -kLargest, -kLargest, kLargest, kLargest, kLargest, 0, 0, 0}, 3);
  ExpectSerial(clouds);
}

TEST_P(FarthestPointSampleTest, OneFarPointDoesNotChangeOthers) {
  std::mt19937 random(9);
  PointClouds clouds;
  std::vector<float> values = RandomPoints(5000, random);
  values[3 * 1234] = 1e9F;  // all other points are in one cell of the sort
  clouds.Add(values, 600);
  ExpectSerial(clouds);
}

TEST_P(FarthestPointSampleTest, ASampleDoesNotDependOnItsBatchMates) {
  std::mt19937 random(10);
  const std::vector<float> points = RandomPoints(4000, random);
  PointClouds alone, among;
  alone.Add(points, 300);
  among.Add(RandomPoints(9000, random, 1e4F), 100);
  among.Add(points, 300);
  among.Add(std::vector<float>(3 * 33, kNan), 4);
  among.Add(RandomPoints(10, random), 10);
  const Selection of_alone = Select(alone), of_all = Select(among);
  EXPECT_EQ(of_alone.selected, std::vector<int32_t>(of_all.selected.begin() + 100, of_all.selected.begin() + 400));
}

TEST_P(FarthestPointSampleTest, AsManySamplesAsABatchHolds) {
  std::mt19937 random(11);
  PointClouds clouds;
  for (int sample = 0; sample < 1024; ++sample) clouds.Add(RandomPoints(sample % 50, random), sample % 50 / 2);
  ExpectSerial(clouds);
}

TEST_P(FarthestPointSampleTest, MorePointsThanARowABucket) {
  std::mt19937 random(12);
  PointClouds clouds;
  clouds.Add(RandomPoints(300'000, random), 200);
  ExpectSerial(clouds);
}

TEST_P(FarthestPointSampleTest, RealScanAndLargeLattice) {
  std::vector<float> scan = fixtures::ReadKittiScan(support::SharedData() + "/semantickitti-00/000000.bin");
  if (scan.empty()) scan = fixtures::ReadKittiScan(support::SourceDir() + "/deploy/scans/pandaset_070.bin");
  ASSERT_FALSE(scan.empty());
  PointClouds clouds{.pitch = 4};
  clouds.Add(scan, 1500);
  clouds.Add(fixtures::Thinned(scan, 10'000), 2000);
  clouds.Add(Lattice(30, 4), 1000);
  ExpectSerial(clouds);
}

// Runs without an output for distances and without max_sample_points.
TEST_P(FarthestPointSampleTest, WhatMayBeMissing) {
  std::mt19937 random(13);
  PointClouds clouds;
  clouds.Add(RandomPoints(700, random), 50);
  clouds.Add(RandomPoints(20, random), 21);
  DeviceClouds on_device(GetParam().device, clouds);
  on_device.params().distances = nullptr;
  on_device.params().max_sample_points = 0;
  if (GetParam().device == Device::kCpu) {
    on_device.RunOnCpu(pool_);
  } else {
    ExpectCudaSuccess(on_device.Launch(GetParam().layout));
  }
  EXPECT_EQ(on_device.ToHost().selected, SelectSerially(clouds).selected);
}

INSTANTIATE_TEST_SUITE_P(Grounds, FarthestPointSampleTest, ::testing::ValuesIn(kGrounds),
                         [](const auto& ground) { return std::string(ground.param.name); });

TEST(FarthestPointLayoutTest, CudaRefusesLayoutsThatThereAreNot) {
  SKIP_WITHOUT(Device::kCuda);
  PointClouds clouds;
  clouds.Add({0, 0, 0, 1, 1, 1}, 2);
  DeviceClouds on_device(Device::kCuda, clouds);
  for (const FarthestPointLayout& layout : {FarthestPointLayout{.num_blocks = 32}, FarthestPointLayout{.num_blocks = 3},
                                            FarthestPointLayout{.num_blocks = -1}, FarthestPointLayout{.num_warps = 33},
                                            FarthestPointLayout{.num_warps = -2}}) {
    EXPECT_NE(on_device.Launch(layout), cudaError_t{});
  }
  ExpectCudaSuccess(on_device.Launch({}));
  EXPECT_THAT(on_device.ToHost().selected, ElementsAre(0, 1));
}

TEST(FarthestPointStartTest, IsOfTheSeedAlone) {
  EXPECT_EQ(FarthestPointStart(0, 1), 0);
  // The first values of SplitMix64 for these states, as published by its authors.
  EXPECT_EQ(FarthestPointStart(0, int64_t{1} << 62),
            static_cast<int64_t>(0xE220A8397B1DCDAFu & ((uint64_t{1} << 62) - 1)));
  std::set<int64_t> starts;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const int64_t start = FarthestPointStart(seed, 1 << 20);
    EXPECT_GE(start, 0);
    EXPECT_LT(start, 1 << 20);
    starts.insert(start);
  }
  EXPECT_GT(starts.size(), 95u);
}

}  // namespace
}  // namespace voxserve::kernels::farthest_point_sample_test
