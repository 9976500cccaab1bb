// Tests that errors of a comparison name the scan.

#include "deploy/calibrate/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <string>

#include "deploy/offline/scan_files.h"
#include "engine/model/model_version.h"
#include "tests/support/model_folder.h"

namespace voxserve::calibrate::comparison_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class ComparisonTest : public ::testing::Test {
 protected:
  ComparisonTest() {
    support::SmallModel().WriteTo(folder_.path() / "small");
    loaded_ = *LoadModelVersion(folder_.path() / "small", 1);
    comparison_ = *Comparison::Create(loaded_, /*threads=*/1, [this] { return before_scan_; });
  }

  // Returns a scan of one point in these fields.
  Comparison::Scan ScanOf(const std::string& fields) {
    const std::string file = (folder_.path() / "a.bin").string();
    support::WriteFile(file, std::string(16, '\0'));
    std::ostringstream err;
    scans_ = *offline::ReadScans("test", {{.input = file}}, {.fields = fields, .max_points = 10}, {.err = &err});
    return {&scans_.tasks[0], "a.bin"};
  }

  support::TemporaryFolder folder_;
  LoadedModel loaded_;
  absl::Status before_scan_;
  offline::Scans scans_;
  std::unique_ptr<Comparison> comparison_;
};

TEST_F(ComparisonTest, AScanThatAVersionRefusesIsNamed) {
  const Comparison::Scan scan = ScanOf("x:f32,y:f32,nothing:f32,intensity:f32");
  comparison_->Keep(scan, InferResult());
  const absl::Status status = comparison_->Compare(loaded_, {}, 1).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), StartsWith("a.bin: "));
}

TEST_F(ComparisonTest, AnErrorAboutAValueNamesTheScan) {
  const absl::Status status =
      comparison_
          ->RunFloat(ScanOf("x:f32,y:f32,z:f32,intensity:f32"),
                     [](int, const kernels::ConstRows&) { return absl::InternalError("the value"); })
          .status();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(std::string(status.message()), StartsWith("a.bin: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the value"));
}

TEST_F(ComparisonTest, AStopIsNoErrorOfTheScan) {
  const Comparison::Scan scan = ScanOf("x:f32,y:f32,z:f32,intensity:f32");
  before_scan_ = absl::CancelledError("interrupted");
  EXPECT_EQ(comparison_->RunFloat(scan).status(), before_scan_);
}

}  // namespace
}  // namespace voxserve::calibrate::comparison_test
