// Tests unions and subsets of levels on both devices against sets.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/site_filter.h"
#include "kernels/coordinates/site_union.h"
#include "tests/kernels/coordinates/device_sites.h"
#include "tests/support/float16.h"

namespace voxserve::kernels::site_sets_test {
namespace {

using fixtures::kSlack;
using fixtures::RandomSites;
using fixtures::Sorted;
using fixtures::ToMorton;
using support::Device;
using support::DeviceArray;
using support::ExpectCudaSuccess;
using support::TestStream;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Keys in the form of a level on the device. On the GPU there is room for more keys, filled with keys of another site.
struct Sites {
  Sites(Device d, std::vector<uint64_t> keys)
      : device(d),
        size(static_cast<int64_t>(keys.size())),
        capacity(d == Device::kCpu ? size : size + kSlack),
        count(d, std::vector<int64_t>{size}),
        data(d, [&] {
          keys.resize(static_cast<size_t>(capacity), 77);
          return keys;
        }()) {}

  const int64_t* device_count() const { return device == Device::kCpu ? nullptr : count.data(); }

  Device device;
  int64_t size;
  int64_t capacity;
  DeviceArray<int64_t> count;
  DeviceArray<uint64_t> data;
};

// One score per site, in the middle column of three.
struct Scores {
  Scores(Device device, DType dtype, const std::vector<float>& values) : bytes(device, Encoded(dtype, values)) {
    params.scores = ConstRows::Packed(bytes.data(), dtype, static_cast<int64_t>(values.size()), 3).Columns(1, 1);
  }

  static std::vector<uint8_t> Encoded(DType dtype, const std::vector<float>& values) {
    const auto size = static_cast<size_t>(SizeOf(dtype));
    std::vector<uint8_t> bytes(3 * size * values.size(),
                               0x7B);  // the neighbouring columns are above any threshold here
    for (size_t i = 0; i < values.size(); ++i) {
      const auto wide = std::bit_cast<uint32_t>(values[i]);
      const auto half = std::bit_cast<uint16_t>(static_cast<Float16>(values[i]));
      const auto brain = static_cast<uint16_t>(wide >> 16);
      const void* const from = dtype == DType::kFloat32   ? static_cast<const void*>(&wide)
                               : dtype == DType::kFloat16 ? &half
                                                          : &brain;
      std::memcpy(&bytes[(3 * i + 1) * size], from, size);
    }
    return bytes;
  }

  DeviceArray<uint8_t> bytes;
  SiteFilterParams params;  // with these scores
};

std::vector<uint64_t> FirstOf(const DeviceArray<uint64_t>& keys, int64_t count) {
  std::vector<uint64_t> values = keys.ToHost();
  EXPECT_LE(static_cast<size_t>(count), values.size());
  values.resize(std::min(values.size(), static_cast<size_t>(count)));
  return values;
}

class SiteSetsTest : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }

  std::vector<uint64_t> Union(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
    const Sites first(GetParam(), a), second(GetParam(), b);
    const DeviceArray<uint64_t> out(GetParam(), static_cast<size_t>(first.capacity + second.capacity));
    const DeviceArray<int64_t> num_out(GetParam(), 1);
    SiteUnionParams params{.a_keys = first.data.data(),
                           .num_a = first.capacity,
                           .device_num_a = first.device_count(),
                           .b_keys = second.data.data(),
                           .num_b = second.capacity,
                           .device_num_b = second.device_count(),
                           .out_keys = out.data(),
                           .num_out = num_out.data()};
    if (GetParam() == Device::kCpu) {
      cpu::SiteUnion(params);
    } else if constexpr (kHasCuda) {
      const DeviceArray<char> workspace(GetParam(), cuda::SiteUnionWorkspaceBytes(params));
      params.workspace = workspace.data();
      ExpectCudaSuccess(cuda::SiteUnion(params, TestStream()));
      support::Synchronize();
    }
    return FirstOf(out, num_out.ToHost()[0]);
  }

  // keys: ascending, of the device's kind.
  std::vector<uint64_t> Filter(SiteFilterParams params, const std::vector<uint64_t>& keys) {
    const Sites in(GetParam(), keys);
    const DeviceArray<uint64_t> out(GetParam(), static_cast<size_t>(in.capacity));
    const DeviceArray<int64_t> num_out(GetParam(), 1);
    params.in_keys = in.data.data();
    params.num_in = in.capacity;
    params.device_num_in = in.device_count();
    params.out_keys = out.data();
    params.num_out = num_out.data();
    if (GetParam() == Device::kCpu) {
      cpu::SiteFilter(params);
    } else if constexpr (kHasCuda) {
      const DeviceArray<char> workspace(GetParam(), cuda::SiteFilterWorkspaceBytes(params));
      params.workspace = workspace.data();
      ExpectCudaSuccess(cuda::SiteFilter(params, TestStream()));
      support::Synchronize();
    }
    return FirstOf(out, num_out.ToHost()[0]);
  }

  // Converts CoordinateKeys to the device's kind.
  std::vector<uint64_t> OnDevice(const std::vector<uint64_t>& keys, int32_t dimension) const {
    return GetParam() == Device::kCpu ? Sorted(keys) : ToMorton(keys, dimension);
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, SiteSetsTest, support::AllDevices(), support::DeviceName);

TEST_P(SiteSetsTest, UnionOfEmptyAndEqualAndDisjointOnes) {
  EXPECT_THAT(Union({}, {}), IsEmpty());
  EXPECT_THAT(Union({3, 5}, {}), ElementsAre(3, 5));
  EXPECT_THAT(Union({}, {3, 5}), ElementsAre(3, 5));
  EXPECT_THAT(Union({3, 5}, {3, 5}), ElementsAre(3, 5));
  EXPECT_THAT(Union({1, 2}, {3, 5}), ElementsAre(1, 2, 3, 5));
  EXPECT_THAT(Union({3, 5}, {1, 2}), ElementsAre(1, 2, 3, 5));
  EXPECT_THAT(Union({1, 4, 9}, {0, 4, 7, 9, 11}), ElementsAre(0, 1, 4, 7, 9, 11));
}

TEST_P(SiteSetsTest, UnionOfRandomOnes) {
  std::mt19937_64 random(1);
  for (const size_t size : {1, 40, 255, 256, 257, 3000, 70000}) {
    for (const size_t other : {size / 3, size, 2 * size + 1}) {
      const auto draw = [&](size_t count) {
        std::vector<uint64_t> keys(count);
        for (uint64_t& key : keys) key = random() % (3 * size) << 40;
        std::sort(keys.begin(), keys.end());
        keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
        return keys;
      };
      const std::vector<uint64_t> a = draw(size), b = draw(other);
      std::vector<uint64_t> expected;
      std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(expected));
      ASSERT_EQ(Union(a, b), expected) << size << " " << other;
    }
  }
}

TEST_P(SiteSetsTest, CropKeepsWhatIsWithinOnEveryAxis) {
  for (int32_t dimension = 1; dimension <= kMaxDimension; ++dimension) {
    const CoordinateKey layout(dimension);
    const size_t count = dimension == 1 ? 60 : 400;
    const std::vector<uint64_t> keys = RandomSites(dimension, 3, count, dimension == 1 ? 90 : 24);
    SiteFilterParams params{.dimension = dimension};
    params.lower = {-5, -9, -20, -4};
    params.upper = {7, 8, 20, 9};
    std::vector<uint64_t> expected;
    for (const uint64_t key : keys) {
      const Axes site = layout.Unpack(key);
      bool stays = true;
      for (int axis = 0; axis < dimension; ++axis)
        stays &= site[axis] >= params.lower[axis] && site[axis] < params.upper[axis];
      if (stays) expected.push_back(key);
    }
    ASSERT_GT(expected.size(), 0u);
    ASSERT_LT(expected.size(), keys.size());
    EXPECT_EQ(Filter(params, OnDevice(keys, dimension)), OnDevice(expected, dimension));
    EXPECT_EQ(Filter({.dimension = dimension}, OnDevice(keys, dimension)), OnDevice(keys, dimension));
    params.upper[0] = params.lower[0] + 1;
    params.lower[dimension - 1] = 1000;
    params.upper[dimension - 1] = 1001;
    EXPECT_THAT(Filter(params, OnDevice(keys, dimension)), IsEmpty());
    EXPECT_THAT(Filter(params, {}), IsEmpty());
  }
}

TEST_P(SiteSetsTest, CropAtTheLimitsOfACoordinate) {
  for (int32_t dimension = 1; dimension <= kMaxDimension; ++dimension) {
    const CoordinateKey layout(dimension);
    Axes low, high;
    low.fill(layout.min_coordinate());
    high.fill(layout.max_coordinate());
    const std::vector<uint64_t> keys = {layout.Pack(0, low), layout.Pack(0, high), layout.Pack(kMaxSamples - 1, high)};
    EXPECT_EQ(Filter({.dimension = dimension}, OnDevice(keys, dimension)), OnDevice(keys, dimension));
    SiteFilterParams params{.dimension = dimension};
    params.upper = high;
    EXPECT_EQ(Filter(params, OnDevice(keys, dimension)), OnDevice({keys[0]}, dimension));
  }
}

TEST_P(SiteSetsTest, ScoresDecideAndNanGoes) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const CoordinateKey layout(2);
  std::vector<uint64_t> keys;
  for (int32_t x = 0; x < 8; ++x) keys.push_back(layout.Pack(0, {0, x, 0, 0}));
  keys = OnDevice(keys, 2);
  for (const DType dtype : GetParam() == Device::kCpu
                               ? std::vector{DType::kFloat32}
                               : std::vector{DType::kFloat32, DType::kFloat16, DType::kBfloat16}) {
    const Scores scores(GetParam(), dtype, {0.5f, 1, nan, -inf, inf, 0.75f, -1, 0.5f});
    SiteFilterParams params = scores.params;
    params.dimension = 2;
    params.threshold = 0.5f;
    // 0.5 is not above the threshold.
    EXPECT_THAT(Filter(params, keys), ElementsAre(keys[1], keys[4], keys[5]));
    params.upper = {9, 5, 9, 9};
    EXPECT_THAT(Filter(params, keys), ElementsAre(keys[1], keys[4]));
    params.upper = kBeyondSites;
    params.threshold = std::numeric_limits<float>::max();
    EXPECT_THAT(Filter(params, keys), ElementsAre(keys[4]));
  }
}

TEST_P(SiteSetsTest, ManySitesByScore) {
  for (const size_t count : {1u, 255u, 256u, 257u, 5000u, 60000u}) {
    std::mt19937 random(7);
    std::vector<uint64_t> keys, expected;
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) {
      keys.push_back(CoordinateKey(3).Pack(static_cast<int32_t>(i % 5), {0, static_cast<int32_t>(i), 0, 0}));
    }
    keys = OnDevice(keys, 3);
    for (size_t i = 0; i < count; ++i) {
      values[i] = std::uniform_real_distribution<float>(-1, 1)(random);
      if (values[i] > 0.25f) expected.push_back(keys[i]);
    }
    const Scores scores(GetParam(), DType::kFloat32, values);
    SiteFilterParams params = scores.params;
    params.threshold = 0.25f;
    EXPECT_EQ(Filter(params, keys), expected) << count;
  }
}

}  // namespace
}  // namespace voxserve::kernels::site_sets_test
