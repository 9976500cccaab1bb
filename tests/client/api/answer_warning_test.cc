// Tests when answers warn that a scan lies outside of a model's range, and that numbers are NaN or infinite.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "client/cpp/api/answer.h"

namespace voxserve::client::answer_warning_test {
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

TEST(NotFiniteWarningTest, TellsOfPointsAndOfBoxes) {
  Answer answer;
  answer.model = "net";
  answer.counts.set_used(10);
  EXPECT_EQ(NotFiniteWarning(answer), "");
  answer.counts.set_boxes_not_finite(7);
  EXPECT_EQ(NotFiniteWarning(answer),
            "net has NaN or infinite values in 7 candidates of boxes, which are left out; where float16 is too narrow "
            "for them, PRECISION_BFLOAT16 is not");
  answer.counts.set_not_finite(2);
  EXPECT_EQ(
      NotFiniteWarning(answer),
      "net has NaN or infinite values for 2 of 10 points, which get no label, and in 7 candidates of boxes, which "
      "are left out; where float16 is too narrow for them, PRECISION_BFLOAT16 is not");
}

}  // namespace
}  // namespace voxserve::client::answer_warning_test
