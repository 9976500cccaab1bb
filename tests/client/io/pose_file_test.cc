#include "client/cpp/io/pose_file.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/client/temporary_folder.h"

namespace voxserve::client::pose_file_test {
namespace {

using ::testing::HasSubstr;

class PoseFileTest : public testing::Test {
 protected:
  absl::StatusOr<std::vector<FramePose>> Read(const std::string& text) {
    return ReadPoses(folder_.Write("poses.txt", text));
  }

  TemporaryFolder folder_;
};

TEST_F(PoseFileTest, ReadsMatricesWithAndWithoutFrames) {
  const auto named = Read("60 1 0 0 4 0 1 0 5 0 0 1 6\r\n\n 61 0 -1 0 1 1 0 0 2 0 0 1 3\n");
  ASSERT_TRUE(named.ok()) << named.status();
  ASSERT_EQ(named->size(), 2u);
  EXPECT_EQ((*named)[0].frame, "60");
  EXPECT_EQ((*named)[0].pose.x, 4);
  EXPECT_EQ((*named)[0].pose.y, 5);
  EXPECT_EQ((*named)[0].pose.z, 6);
  EXPECT_EQ((*named)[0].pose.qw, 1);
  EXPECT_EQ((*named)[1].frame, "61");
  EXPECT_NEAR((*named)[1].pose.qw, std::sqrt(0.5), 1e-12);  // a quarter turn about z
  EXPECT_NEAR((*named)[1].pose.qz, std::sqrt(0.5), 1e-12);
  const auto plain = Read("1 0 0 0 0 1 0 0 0 0 1 0");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->front().frame, "");
}

// Writes the matrices of known quaternions to a file and expects the quaternions back. In the rotations, each of w, x,
// y and z is the largest component once, since the conversion has a branch for each.
TEST_F(PoseFileTest, QuaternionsAreTheirMatrices) {
  for (const auto& [w, x, y, z] : std::vector<std::array<double, 4>>{
           {0.8, 0.2, -0.4, 0.4}, {0.2, 0.8, 0.4, -0.4}, {-0.4, 0.2, 0.8, 0.4}, {0.4, -0.4, 0.2, 0.8}, {0, 1, 0, 0}}) {
    const auto poses =
        Read(absl::StrCat(1 - 2 * (y * y + z * z), " ", 2 * (x * y - w * z), " ", 2 * (x * z + w * y), " 0 ",
                          2 * (x * y + w * z), " ", 1 - 2 * (x * x + z * z), " ", 2 * (y * z - w * x), " 0 ",
                          2 * (x * z - w * y), " ", 2 * (y * z + w * x), " ", 1 - 2 * (x * x + y * y), " 0"));
    ASSERT_TRUE(poses.ok()) << poses.status();
    const Pose& pose = poses->front().pose;
    const double same = pose.qw * w + pose.qx * x + pose.qy * y + pose.qz * z;  // q and -q are the same rotation
    EXPECT_NEAR(std::abs(same), 1, 1e-5) << w << " " << x << " " << y << " " << z;
  }
}

TEST_F(PoseFileTest, RefusesWhatIsNoPose) {
  EXPECT_EQ(ReadPoses(folder_.path() + "/none.txt").status().code(), absl::StatusCode::kNotFound);
  for (const auto& [text, complaint] :
       std::vector<std::pair<std::string, std::string>>{{"", "no poses"},
                                                        {"\n\n", "no poses"},
                                                        {"1 0 0 0 0 1 0 0 0 0 1 0\n1 2 3", "line 2: 3 values"},
                                                        {"1 0 0 0 0 1 0 0 0 0 one 0", "'one' is no finite number"},
                                                        {"1 0 0 nan 0 1 0 0 0 0 1 0", "'nan' is no finite number"},
                                                        {"2 0 0 0 0 1 0 0 0 0 1 0", "no rotation"},
                                                        {"-1 0 0 0 0 1 0 0 0 0 1 0", "no rotation"},  // a mirror
                                                        {"0 0 0 0 0 0 0 0 0 0 0 0", "no rotation"}}) {
    const auto poses = Read(text);
    EXPECT_EQ(poses.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(poses.status().message()), HasSubstr(complaint)) << text;
  }
}

}  // namespace
}  // namespace voxserve::client::pose_file_test
