// Tests the rule for the rows of a cloud, with the values that drivers send.

#include "engine/base/row_step.h"

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "engine/base/error_reason.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace voxserve::row_step_test {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kLargest = std::numeric_limits<uint64_t>::max();

// Points of 16 bytes in rows of 64, as drivers send them (velodyne#279, common_interfaces#320, realsense-ros#1664).
RowSizes Organised(uint64_t row_step, uint64_t num_bytes) {
  return {.num_points = 64 * 64, .height = 64, .point_step = 16, .row_step = row_step, .num_bytes = num_bytes};
}

TEST(RowStepTest, PackedBytesArePackedWhateverTheCloudSays) {
  for (const uint64_t row_step : {uint64_t{0}, uint64_t{1}, uint64_t{16}, uint64_t{64}, uint64_t{1023}, uint64_t{1024},
                                  uint64_t{1025}, uint64_t{65536}, kLargest}) {
    const absl::StatusOr<uint64_t> found = RowStepOf(Organised(row_step, 65536));
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(*found, 1024U) << row_step;
  }
}

TEST(RowStepTest, PaddedRowsMayLackTheLastPadding) {
  EXPECT_EQ(*RowStepOf(Organised(1040, 64 * 1040)), 1040U);
  EXPECT_EQ(*RowStepOf(Organised(1040, 63 * 1040 + 1024)), 1040U);
  EXPECT_EQ(*RowStepOf({.num_points = 3, .height = 0, .point_step = 4, .row_step = 15, .num_bytes = 15}), 15U);
}

TEST(RowStepTest, ASingleRowHasNoRoomForMorePoints) {
  EXPECT_FALSE(RowStepOf({.num_points = 3, .height = 1, .point_step = 4, .row_step = 16, .num_bytes = 16}).ok());
  EXPECT_EQ(*RowStepOf({.num_points = 6, .height = 2, .point_step = 4, .row_step = 16, .num_bytes = 32}), 16U);
}

TEST(RowStepTest, NoPointsHaveNoBytes) {
  EXPECT_EQ(*RowStepOf({}), 0U);
  EXPECT_EQ(*RowStepOf({.height = 64, .point_step = 16, .row_step = 1024}), 0U);
  EXPECT_FALSE(RowStepOf({.height = 1, .point_step = 16, .row_step = 65536, .num_bytes = 65536}).ok());
}

TEST(RowStepTest, OtherSizesAreRefused) {
  for (const uint64_t num_bytes : {uint64_t{0}, uint64_t{65535}, uint64_t{65537}, uint64_t{64 * 1040 - 1},
                                   uint64_t{64 * 1040 + 1}, kLargest}) {
    EXPECT_FALSE(RowStepOf(Organised(1040, num_bytes)).ok()) << num_bytes;
    EXPECT_FALSE(RowStepOf(Organised(1023, num_bytes)).ok()) << num_bytes;
  }
  const absl::Status status = RowStepOf(Organised(1040, 5)).status();
  EXPECT_EQ(ReasonOf(status), error_reason::kBadLayout);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("data has 5 bytes, but 4096 points of 16 bytes in 64 rows take 65536, or 66560 with row_step "
                        "1040"));
  EXPECT_FALSE(RowStepOf({.num_points = 7, .height = 2, .point_step = 4, .num_bytes = 28}).ok());
  EXPECT_FALSE(RowStepOf({.num_points = 7, .height = 1}).ok());
}

TEST(RowStepTest, ProductsDoNotOverflow) {
  // 2^32 points of 2^32 bytes have 2^64 bytes, which is 0 in 64 bits; so have 16 rows of 2^60 bytes.
  EXPECT_FALSE(RowStepOf({.num_points = uint64_t{1} << 32, .point_step = uint64_t{1} << 32}).ok());
  EXPECT_FALSE(RowStepOf({.num_points = 16, .height = 16, .point_step = 4, .row_step = uint64_t{1} << 60}).ok());
  const RowSizes largest = {.num_points = kLargest, .height = kLargest, .point_step = kLargest, .row_step = kLargest};
  EXPECT_FALSE(RowStepOf(largest).ok());
}

}  // namespace
}  // namespace voxserve::row_step_test
