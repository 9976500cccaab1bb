// Tests the accuracy measures of label_accuracy.h, and the reader of PandaSet's labelled frames.

#include "tests/bench/label_accuracy.h"

#include <cmath>
#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "tests/engine/golden_scan.h"
#include "tests/support/model_folder.h"
#include "tests/support/paths.h"

namespace voxserve::bench::label_accuracy_test {
namespace {

TEST(ConfusionTest, CountsByClass) {
  Confusion confusion(4);
  confusion.Add({0, 0, 1, 1, 2, 0, 7}, {0, 1, 1, 1, 1, kNoClass, 0});
  EXPECT_DOUBLE_EQ(*confusion.IntersectionOverUnion(0), 1.0 / 3);  // 1 point is right; 2 have this label, 2 this truth
  EXPECT_DOUBLE_EQ(*confusion.IntersectionOverUnion(1), 2.0 / 4);
  EXPECT_FALSE(confusion.IntersectionOverUnion(2));  // one point has this label, but none has this truth
  EXPECT_FALSE(confusion.IntersectionOverUnion(3));
  EXPECT_DOUBLE_EQ(confusion.MeanIntersectionOverUnion(), (1.0 / 3 + 0.5) / 2);
  EXPECT_DOUBLE_EQ(confusion.Accuracy(), 3.0 / 6);
}

TEST(ConfusionTest, AddsFrames) {
  Confusion confusion(2);
  confusion.Add({0, 1}, {0, 1});
  confusion.Add({1}, {0});
  EXPECT_DOUBLE_EQ(*confusion.IntersectionOverUnion(0), 0.5);
  EXPECT_DOUBLE_EQ(*confusion.IntersectionOverUnion(1), 0.5);
}

TEST(ConfusionTest, NothingIsZero) {
  EXPECT_EQ(Confusion(3).MeanIntersectionOverUnion(), 0);
  EXPECT_EQ(Confusion(3).Accuracy(), 0);
}

TEST(ClassOfPandaSetTest, KnowsTheClassesOfTheNetwork) {
  EXPECT_EQ(ClassOfPandaSet(4), kNoClass);  // reflection
  EXPECT_EQ(ClassOfPandaSet(5), 2);         // vegetation
  EXPECT_EQ(ClassOfPandaSet(6), 1);         // ground
  EXPECT_EQ(ClassOfPandaSet(7), 0);         // road
  EXPECT_EQ(ClassOfPandaSet(13), 5);        // car
  EXPECT_EQ(ClassOfPandaSet(17), 6);        // towed object
  EXPECT_EQ(ClassOfPandaSet(18), 8);        // motorcycle
  EXPECT_EQ(ClassOfPandaSet(23), 7);        // bus
  EXPECT_EQ(ClassOfPandaSet(30), 9);        // pedestrian
  EXPECT_EQ(ClassOfPandaSet(35), 11);       // road barriers
  EXPECT_EQ(ClassOfPandaSet(36), 10);       // signs
  EXPECT_EQ(ClassOfPandaSet(41), 3);        // building
  EXPECT_EQ(ClassOfPandaSet(42), 4);        // other static object
  EXPECT_EQ(ClassOfPandaSet(43), kNoClass);
}

TEST(PandaSetFrameTest, IsTheGoldenScan) {
  const absl::StatusOr<LabelledFrame> frame = ReadPandaSetFrame("63");
  if (absl::IsNotFound(frame.status())) GTEST_SKIP() << frame.status();
  ASSERT_TRUE(frame.ok()) << frame.status();
  const absl::StatusOr<GoldenScan> golden = LoadGoldenScan("pandaset_063");
  ASSERT_TRUE(golden.ok()) << golden.status();
  ASSERT_EQ(frame->cloud.num_points(), golden->cloud.num_points());
  for (const char* name : {"x", "y", "z", "intensity"}) {
    std::vector<float> found(frame->truth.size()), wanted(frame->truth.size());
    frame->cloud.ReadField(*frame->cloud.FindField(name), 0, found.size(), found.data(), 1);
    golden->cloud.ReadField(*golden->cloud.FindField(name), 0, wanted.size(), wanted.data(), 1);
    float largest = 0;
    for (size_t i = 0; i < found.size(); ++i) largest = std::max(largest, std::abs(found[i] - wanted[i]));
    EXPECT_LT(largest, 3e-5f) << name;
  }
  Confusion confusion(golden->num_classes);
  confusion.Add(golden->labels, frame->truth);
  EXPECT_GT(confusion.Accuracy(), 0.9);  // if the order of the points differed, it would be far lower
}

class PandaSetFolderTest : public ::testing::Test {
 protected:
  PandaSetFolderTest() { setenv(kVariable, folder_.path().c_str(), /*overwrite=*/1); }
  ~PandaSetFolderTest() override { setenv(kVariable, before_.c_str(), /*overwrite=*/1); }

  static constexpr const char* kVariable = "VOXSERVE_SHARED_DATA";
  const std::string before_ = support::SharedData();
  support::TemporaryFolder folder_;
};

TEST_F(PandaSetFolderTest, NamesWhatIsMissing) {
  const absl::StatusOr<LabelledFrame> frame = ReadPandaSetFrame("63");
  EXPECT_EQ(frame.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(frame.status().message().find("pandaset-002/63.bin"), std::string::npos) << frame.status();
}

TEST_F(PandaSetFolderTest, RefusesOtherSizes) {
  support::WriteFile(folder_.path() / "pandaset-002" / "63.bin", std::string(20, '\0'));
  support::WriteFile(folder_.path() / "pandaset-002" / "63.label", std::string(8, '\0'));
  EXPECT_EQ(ReadPandaSetFrame("63").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace voxserve::bench::label_accuracy_test
