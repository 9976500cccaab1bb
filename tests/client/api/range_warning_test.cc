// Tests when RangeWarning warns that a scan lies outside of a model's range.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "client/cpp/api/answer.h"

namespace voxserve::client::range_warning_test {
namespace {

std::string WarningOf(uint64_t used, uint64_t out_of_range, uint64_t dropped = 0, uint64_t unsampled = 0) {
  Answer answer;
  answer.model = "net";
  answer.counts.set_used(used);
  answer.counts.set_out_of_range(out_of_range);
  answer.counts.set_dropped(dropped);
  answer.counts.set_unsampled(unsampled);
  return RangeWarning(answer);
}

TEST(RangeWarningTest, SaysHowManyPointsAreLeftOut) {
  EXPECT_EQ(WarningOf(10, 990),
            "990 of 1000 points lie outside of the range that net accepts, and are left out; coordinates are metres "
            "from the sensor");
}

TEST(RangeWarningTest, ComesFromNineTenthsOn) {
  EXPECT_EQ(WarningOf(1000, 8999), "");
  EXPECT_NE(WarningOf(1000, 9000), "");
  EXPECT_NE(WarningOf(400, 9000, 300, 300), "");
  EXPECT_EQ(WarningOf(400, 8999, 300, 301), "");
}

TEST(RangeWarningTest, NeedsAHundredPoints) {
  EXPECT_EQ(WarningOf(0, 0), "");
  EXPECT_EQ(WarningOf(0, 99), "");
  EXPECT_NE(WarningOf(0, 100), "");
}

}  // namespace
}  // namespace voxserve::client::range_warning_test
