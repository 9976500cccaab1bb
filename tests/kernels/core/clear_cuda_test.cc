// Tests that Clear clears all that it is given and nothing behind it.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/core/clear.h"
#include "tests/kernels/core/feature_testing.h"

namespace voxserve::kernels::clear_cuda_test {
namespace {

using support::ExpectCudaSuccess;
using support::TestStream;

constexpr uint64_t kBefore = 0x5a5a5a5a5a5a5a5a;

TEST(ClearTest, ClearsItsWordsAlone) {
  SKIP_WITHOUT(Device::kCuda);
  for (const size_t num_words : {0, 1, 3, 255, 256, 257, 1'000'003}) {
    const DeviceArray<uint64_t> words(Device::kCuda, std::vector<uint64_t>(num_words + 2, kBefore));
    ExpectCudaSuccess(cuda::Clear(words.data() + 1, num_words * sizeof(uint64_t), TestStream()));
    std::vector<uint64_t> expected(num_words + 2, 0);
    expected.front() = expected.back() = kBefore;
    EXPECT_EQ(words.ToHost(), expected) << num_words;
  }
}

TEST(ClearTest, RefusesPartsOfWords) {
  SKIP_WITHOUT(Device::kCuda);
  const DeviceArray<uint64_t> words(Device::kCuda, std::vector<uint64_t>(4, kBefore));
  auto* const bytes = reinterpret_cast<char*>(words.data());
  for (const size_t odd : {1, 2, 4, 7}) {
    EXPECT_EQ(cuda::Clear(bytes, 8 + odd, TestStream()), cudaErrorInvalidValue);
    EXPECT_EQ(cuda::Clear(bytes + odd, 8, TestStream()), cudaErrorInvalidValue);
  }
  EXPECT_EQ(words.ToHost(), std::vector<uint64_t>(4, kBefore));
}

}  // namespace
}  // namespace voxserve::kernels::clear_cuda_test
