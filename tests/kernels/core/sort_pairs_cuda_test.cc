// Tests the sort of pairs on the GPU.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/core/radix_sort.h"
#include "tests/support/test_device.h"

namespace voxserve::kernels::sort_pairs_cuda_test {
namespace {

using support::Device;
using support::DeviceArray;
using support::ExpectCudaSuccess;
using support::TestStream;

template <typename Key>
class SortPairsTest : public ::testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT(Device::kCuda); }

  // Sorts the keys, each with its place as value, by their low bits, and compares all of the result. current: the
  // buffer that has the keys.
  void ExpectSorted(const std::vector<Key>& keys, int num_bits, int current = 0) {
    ExpectSorted(keys, {{.num_pairs = static_cast<int64_t>(keys.size()), .num_bits = num_bits}}, current);
  }
  // Does the same with parts, which together have all keys. One part is sorted by SortPairs.
  void ExpectSorted(const std::vector<Key>& keys, const std::vector<cuda::SortPart>& parts, int current = 0) {
    SCOPED_TRACE(NameOf(parts));
    std::vector<int32_t> places(keys.size());
    std::iota(places.begin(), places.end(), 0);
    DeviceArray<Key> keys0(Device::kCuda, keys), keys1(Device::kCuda, std::vector<Key>(keys.size()));
    DeviceArray<int32_t> values0(Device::kCuda, places), values1(Device::kCuda, std::vector<int32_t>(keys.size()));
    // Scratch that is not clear beforehand, and a guard behind it.
    const size_t scratch_bytes = parts.size() == 1 ? cuda::SortPairsScratchBytes<Key>(parts[0].num_pairs)
                                                   : cuda::SortPartsScratchBytes<Key>(parts);
    DeviceArray<uint8_t> scratch(Device::kCuda, std::vector<uint8_t>(scratch_bytes + 64, 0xA5));
    cuda::PairBuffers<Key> buffers{.current = current};
    buffers.keys[current] = keys0.data();
    buffers.values[current] = values0.data();
    buffers.keys[current ^ 1] = keys1.data();
    buffers.values[current ^ 1] = values1.data();
    if (parts.size() == 1) {
      ASSERT_EQ(cuda::SortPairs(buffers, parts[0].num_pairs, parts[0].num_bits, scratch.data(), nullptr), cudaSuccess);
    } else {
      ASSERT_EQ(cuda::SortParts<Key>(buffers, parts, scratch.data(), nullptr), cudaSuccess);
    }

    constexpr size_t kKnown = size_t{1} << 24;  // pairs up to which this is known
    if (keys.size() <= kKnown) {
      EXPECT_EQ(buffers.current != current, cuda::SortPartsSwapsBuffers<Key>(parts));
    }

    const std::vector<Key> sorted = (buffers.current == current ? keys0 : keys1).ToHost();
    const std::vector<int32_t> order = (buffers.current == current ? values0 : values1).ToHost();
    size_t begin = 0;
    for (const cuda::SortPart& part : parts) {
      const size_t end = begin + static_cast<size_t>(part.num_pairs);
      const Key mask = part.num_bits == std::numeric_limits<Key>::digits ? ~Key{0} : (Key{1} << part.num_bits) - 1;
      // Pairs of a part that ascend by key and then by place are its pairs in the one stable order.
      for (size_t i = begin; i < end; ++i) {
        const auto place = static_cast<size_t>(order[i]);
        ASSERT_TRUE(place >= begin && place < end && sorted[i] == keys[place]) << i;
        if (i == begin) continue;
        const Key before = sorted[i - 1] & mask, here = sorted[i] & mask;
        ASSERT_TRUE(before < here || (before == here && order[i - 1] < order[i])) << i;
      }
      begin = end;
    }
    ASSERT_EQ(begin, keys.size());
    const std::vector<uint8_t> after = scratch.ToHost();
    EXPECT_TRUE(std::all_of(after.end() - 64, after.end(), [](uint8_t byte) { return byte == 0xA5; }));
  }

 private:
  static std::string NameOf(const std::vector<cuda::SortPart>& parts) {
    std::string name;
    for (const cuda::SortPart& part : parts) {
      name += std::to_string(part.num_pairs) + " pairs by " + std::to_string(part.num_bits) + " bits; ";
    }
    return name;
  }
};

using Keys = ::testing::Types<uint32_t, uint64_t>;
TYPED_TEST_SUITE(SortPairsTest, Keys);

TYPED_TEST(SortPairsTest, SizesAroundATile) {
  std::mt19937_64 random(1);
  for (const size_t size : {1, 2, 31, 512, 2047, 2048, 2049, 4095, 4096, 4097, 6145, 8193, 124'668, 300'001}) {
    std::vector<TypeParam> keys(size);
    for (TypeParam& key : keys) key = static_cast<TypeParam>(random());
    this->ExpectSorted(keys, std::numeric_limits<TypeParam>::digits);
  }
}

TYPED_TEST(SortPairsTest, AnyNumberOfBits) {
  std::mt19937_64 random(2);
  std::vector<TypeParam> keys(10'000);
  for (TypeParam& key : keys) key = static_cast<TypeParam>(random());
  for (int bits = 0; bits <= std::numeric_limits<TypeParam>::digits; ++bits)
    this->ExpectSorted(keys, bits, bits % 3 % 2);
}

TYPED_TEST(SortPairsTest, EqualKeysKeepTheirOrder) {
  std::mt19937_64 random(3);
  for (const uint64_t different : {1, 2, 300}) {
    std::vector<TypeParam> keys(50'000);
    for (TypeParam& key : keys) key = static_cast<TypeParam>(random() % different);
    this->ExpectSorted(keys, 16);
  }
}

// A sort starts while the kernel before it ends, which has made its keys, and it uses the scratch of the sort before.
// A graph launches the kernels of all sorts without gaps.
TYPED_TEST(SortPairsTest, OneBehindTheOther) {
  constexpr size_t kSorts = 24, kPairs = 60'000;
  constexpr int kBits[] = {9, 18, 27};  // each sort but the first begins with what the one before it has made
  std::mt19937_64 random(6);
  DeviceArray<uint8_t> scratch(
      Device::kCuda, std::vector<uint8_t>(cuda::SortPairsScratchBytes<TypeParam>(static_cast<int64_t>(kPairs)), 0xA5));
  std::vector<std::vector<TypeParam>> keys(kSorts);
  std::deque<DeviceArray<TypeParam>> key_arrays;
  std::deque<DeviceArray<int32_t>> value_arrays;
  std::vector<cuda::PairBuffers<TypeParam>> buffers(kSorts);
  for (size_t i = 0; i < kSorts; ++i) {
    keys[i].resize(kPairs - 2500 * i);
    const uint64_t num_different[] = {1, 3, 1 << 27};  // of 1, all tiles of every pass have one digit
    for (TypeParam& key : keys[i]) key = static_cast<TypeParam>(random() % num_different[i % 3]);
    std::vector<int32_t> places(keys[i].size());
    std::iota(places.begin(), places.end(), 0);
    for (int buffer = 0; buffer < 2; ++buffer) {
      key_arrays.emplace_back(Device::kCuda, keys[i]);
      value_arrays.emplace_back(Device::kCuda, places);
      buffers[i].keys[buffer] = key_arrays.back().data();
      buffers[i].values[buffer] = value_arrays.back().data();
    }
  }
  ExpectCudaSuccess(cudaStreamBeginCapture(TestStream(), cudaStreamCaptureModeThreadLocal));
  for (size_t i = 0; i < kSorts; ++i) {
    for (const int bits : kBits) {
      ExpectCudaSuccess(
          cuda::SortPairs(buffers[i], static_cast<int64_t>(keys[i].size()), bits, scratch.data(), TestStream()));
    }
  }
  cudaGraph_t graph = nullptr;
  ExpectCudaSuccess(cudaStreamEndCapture(TestStream(), &graph));
  cudaGraphExec_t sorts = nullptr;
  ExpectCudaSuccess(cudaGraphInstantiate(&sorts, graph, 0));
  ExpectCudaSuccess(cudaGraphLaunch(sorts, TestStream()));
  for (size_t i = 0; i < kSorts; ++i) {
    std::vector<int32_t> order(keys[i].size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return keys[i][static_cast<size_t>(a)] < keys[i][static_cast<size_t>(b)];
    });
    std::vector<TypeParam> sorted;
    for (const int32_t place : order) sorted.push_back(keys[i][static_cast<size_t>(place)]);
    const size_t array = 2 * i + static_cast<size_t>(buffers[i].current);
    EXPECT_EQ(key_arrays[array].ToHost(), sorted) << "sort " << i;
    EXPECT_EQ(value_arrays[array].ToHost(), order) << "sort " << i;
  }
  ExpectCudaSuccess(cudaGraphExecDestroy(sorts));
  ExpectCudaSuccess(cudaGraphDestroy(graph));
}

// Parts of many bits beside parts of few or none, also where their numbers of passes differ by one.
TYPED_TEST(SortPairsTest, PartsAreSortedByThemselves) {
  std::mt19937_64 random(5);
  const auto expect_sorted = [&](const std::vector<cuda::SortPart>& parts) {
    int64_t num_pairs = 0;
    for (const cuda::SortPart& part : parts) num_pairs += part.num_pairs;
    std::vector<TypeParam> keys(static_cast<size_t>(num_pairs));
    for (TypeParam& key : keys) key = static_cast<TypeParam>(random());
    for (const int current : {0, 1}) ASSERT_NO_FATAL_FAILURE(this->ExpectSorted(keys, parts, current));
  };
  expect_sorted({{92'001, 27}, {92'001, 8}, {61'000, 27}, {61'000, 8}, {30'001, 27}, {1, 27}, {7, 8}});
  for (const int most : {1, 9, 10, 18, 19, 27, 28, 32, 63, 64}) {
    if (most > std::numeric_limits<TypeParam>::digits) continue;
    for (const int fewer : {0, 1, 9, 10, 18, 19, 54, 63}) {
      if (fewer <= most) expect_sorted({{9000, fewer}, {5000, most}, {6144, fewer}});
    }
  }
  expect_sorted({{0, 27}, {4096, 27}, {0, 8}, {4097, 8}, {0, 0}});
  expect_sorted({{10, 0}, {20, 0}});
  std::vector<cuda::SortPart> most_parts;
  for (int i = 0; i < static_cast<int>(cuda::kMaxSortParts); ++i) most_parts.push_back({1000 * i, i});
  expect_sorted(most_parts);
}

constexpr size_t kMostByOurs = size_t{1} << 24;  // CUB sorts longer arrays

TYPED_TEST(SortPairsTest, CubSortsLongArrays) {
  std::mt19937_64 random(4);
  for (const size_t size : {kMostByOurs, kMostByOurs + 1}) {
    std::vector<TypeParam> keys(size);
    for (TypeParam& key : keys) key = static_cast<TypeParam>(random());
    this->ExpectSorted(keys, 16);
    this->ExpectSorted(keys, 21, /*current=*/1);
    const auto half = static_cast<int64_t>(size / 2), rest = static_cast<int64_t>(size) - half;
    this->ExpectSorted(keys, {{half, 27}, {0, 27}, {rest, 8}});
  }
}

TYPED_TEST(SortPairsTest, ScratchGrowsWithThePairs) {
  const auto most = static_cast<int64_t>(kMostByOurs);
  int64_t before = 0;
  for (const int64_t num_pairs : {int64_t{1}, int64_t{3073}, int64_t{4097}, most, most + 1, 2 * most}) {
    const auto bytes = static_cast<int64_t>(cuda::SortPairsScratchBytes<TypeParam>(num_pairs));
    EXPECT_GE(bytes, before) << num_pairs;
    before = bytes;
  }
}

TYPED_TEST(SortPairsTest, NothingToSort) {
  cuda::PairBuffers<TypeParam> buffers;
  EXPECT_EQ(cuda::SortPairs(buffers, 0, 8, nullptr, nullptr), cudaSuccess);
  EXPECT_EQ(cuda::SortPairs(buffers, 5, 0, nullptr, nullptr), cudaSuccess);
}

TYPED_TEST(SortPairsTest, RefusesNumbersOutOfRange) {
  cuda::PairBuffers<TypeParam> buffers;
  EXPECT_EQ(cuda::SortPairs(buffers, -1, 8, nullptr, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cuda::SortPairs(buffers, int64_t{1} << 31, 8, nullptr, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cuda::SortPairs(buffers, 1, -1, nullptr, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cuda::SortPairs(buffers, 1, std::numeric_limits<TypeParam>::digits + 1, nullptr, nullptr),
            cudaErrorInvalidValue);
  const auto sort = [&](const std::vector<cuda::SortPart>& parts) {
    return cuda::SortParts<TypeParam>(buffers, parts, nullptr, nullptr);
  };
  EXPECT_EQ(sort({}), cudaSuccess);
  EXPECT_EQ(sort({{5, 8}, {-1, 8}}), cudaErrorInvalidValue);
  EXPECT_EQ(sort({{5, 8}, {5, -1}}), cudaErrorInvalidValue);
  EXPECT_EQ(sort({{int64_t{1} << 30, 8}, {int64_t{1} << 30, 8}}), cudaErrorInvalidValue);
  EXPECT_EQ(sort(std::vector<cuda::SortPart>(cuda::kMaxSortParts + 1)), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace voxserve::kernels::sort_pairs_cuda_test
