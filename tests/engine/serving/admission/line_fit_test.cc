#include "engine/serving/admission/line_fit.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace voxserve {
namespace {

constexpr BatchSize kSize = {.points = 100'000, .voxels = 50'000, .requests = 1};

double ExpectedMilliseconds(const LineFit& fit) { return absl::ToDoubleMilliseconds(fit.Expected(kSize)); }

class LineFitOutlierTest : public testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 20; ++i) EXPECT_FALSE(fit_.Observe(kSize, absl::Milliseconds(10)));
    ASSERT_NEAR(ExpectedMilliseconds(fit_), 10, 1e-6);
  }

  LineFit fit_;
};

// A batch that is 10 times as slow counts as one of 20 ms. Its weight is about a tenth, so the expected time rises
// to 11.
TEST_F(LineFitOutlierTest, ASlowBatchCountsAsTwiceTheExpectedTime) {
  EXPECT_FALSE(fit_.Observe(kSize, absl::Milliseconds(100)));
  EXPECT_GT(ExpectedMilliseconds(fit_), 10.5);
  EXPECT_LT(ExpectedMilliseconds(fit_), 12);
}

TEST_F(LineFitOutlierTest, AFastBatchCountsAsHalfTheExpectedTime) {
  EXPECT_FALSE(fit_.Observe(kSize, absl::Milliseconds(1)));
  EXPECT_LT(ExpectedMilliseconds(fit_), 9.75);
  EXPECT_GT(ExpectedMilliseconds(fit_), 9);
}

TEST_F(LineFitOutlierTest, TwoInTheSameDirectionForgetWhatWasBefore) {
  EXPECT_FALSE(fit_.Observe(kSize, absl::Milliseconds(100)));
  EXPECT_TRUE(fit_.Observe(kSize, absl::Milliseconds(100)));
  EXPECT_NEAR(ExpectedMilliseconds(fit_), 100, 1);
}

TEST_F(LineFitOutlierTest, TwoInOppositeDirectionsForgetNothing) {
  EXPECT_FALSE(fit_.Observe(kSize, absl::Milliseconds(100)));
  EXPECT_FALSE(fit_.Observe(kSize, absl::Milliseconds(1)));
  EXPECT_NEAR(ExpectedMilliseconds(fit_), 10, 1.5);
}

}  // namespace
}  // namespace voxserve
