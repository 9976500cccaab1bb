// Compares the CPU's radix sort with a stable sort, for several sizes, key widths and numbers of threads.

#include "kernels/core/radix_sort.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace voxserve::kernels::cpu::radix_sort_test {
namespace {

using Item = std::pair<uint64_t, int64_t>;  // key, original position

TEST(RadixSortTest, AgreesWithAStableSortForEverySizeAndWidth) {
  std::mt19937_64 random(5);
  for (const int num_threads : {1, 4}) {
    ThreadPool pool(num_threads);
    for (const int64_t count : {0, 1, 2, 1000, 1023, 1024, 5000, 100000}) {
      for (const int key_bits : {0, 1, 5, 11, 12, 33, 64}) {
        std::vector<Item> items;
        for (int64_t i = 0; i < count; ++i) {
          // Narrow widths give few different keys, so that stability is visible.
          items.emplace_back(key_bits == 0 ? 0 : random() >> (64 - key_bits), i);
        }
        std::vector<Item> expected = items;
        std::sort(expected.begin(), expected.end());
        std::vector<Item> scratch(items.size());
        const Item* sorted =
            RadixSort(items.data(), scratch.data(), count, key_bits, pool, [](const Item& item) { return item.first; });
        ASSERT_EQ(std::vector<Item>(sorted, sorted + count), expected) << count << " items of " << key_bits << " bits";
      }
    }
  }
}

}  // namespace
}  // namespace voxserve::kernels::cpu::radix_sort_test
