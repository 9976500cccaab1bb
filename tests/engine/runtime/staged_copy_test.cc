// Tests StagedCopy: the bytes, the order of its reports, and nothing written beside the places.

#include "engine/runtime/streaming_copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace voxserve {
namespace {

using testing::IsEmpty;

class StagedCopyTest : public testing::TestWithParam<int> {};

TEST_P(StagedCopyTest, ReportsWhatIsCopiedInOrder) {
  kernels::ThreadPool pool(GetParam());
  const std::vector<size_t> sizes = {100'000, 0, 1, 65'536, 500'003};
  constexpr size_t kGap = 48;
  std::vector<std::string> sources;
  size_t total = 0;
  for (const size_t size : sizes) {
    std::string& source = sources.emplace_back(size, '\0');
    for (size_t i = 0; i < size; ++i) source[i] = static_cast<char>('a' + (i * 7 + total) % 23);
    total += size + kGap;
  }
  for (int round = 0; round < 20; ++round) {
    std::string staging(total, '-'), expected = staging;
    std::vector<StagedRange> ranges;
    size_t begin = 0;
    for (const std::string& source : sources) {
      ranges.push_back({.to = staging.data() + begin, .from = source});
      std::memcpy(expected.data() + begin, source.data(), source.size());
      begin += source.size() + kGap;
    }
    const auto caller = std::this_thread::get_id();
    const char* reported = staging.data();
    StagedCopy(pool, ranges, [&](const char* end) {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      EXPECT_GT(end, reported);
      const auto first = static_cast<size_t>(reported - staging.data());
      const auto num_bytes = static_cast<size_t>(end - reported);
      EXPECT_EQ(std::memcmp(reported, expected.data() + first, num_bytes), 0) << first << " + " << num_bytes;
      reported = end;
    });
    EXPECT_EQ(reported, staging.data() + total - kGap);
    EXPECT_EQ(staging, expected);
  }
}

TEST_P(StagedCopyTest, WithoutBytesNothingIsReported) {
  kernels::ThreadPool pool(GetParam());
  std::vector<const char*> ends;
  const auto report = [&](const char* end) { ends.push_back(end); };
  StagedCopy(pool, {}, report);
  std::string staging = "--";
  StagedCopy(pool, {{.to = staging.data(), .from = ""}, {.to = staging.data() + 1, .from = ""}}, report);
  EXPECT_THAT(ends, IsEmpty());
  EXPECT_EQ(staging, "--");
}

INSTANTIATE_TEST_SUITE_P(Threads, StagedCopyTest, testing::Values(1, 2, 5));

}  // namespace
}  // namespace voxserve
