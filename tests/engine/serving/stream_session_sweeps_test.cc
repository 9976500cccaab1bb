// What a session keeps of earlier frames, and for whom.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/serving/stream_session_fixture.h"

namespace voxserve {
namespace {

using testing::ElementsAre;

TEST_F(StreamSessionTest, SweepsOfSupersededFramesAreKept) {
  OpenSweeps(3);
  session_->Push(SweepOf(1, 0.1));
  engine_.Start(1);
  session_->Push(SweepOf(2, 0.2));
  session_->Push(SweepOf(3, 0.3));
  session_->Push(SweepOf(4, 0.4));
  EXPECT_EQ(AnswerTo(3), "SUPERSEDED");
  EXPECT_EQ(num_sweeps_[3], 0) << "none ran";
  engine_.End(1);
  const InferTask& task = engine_.task(4);
  EXPECT_EQ(task.age_feature, "age");
  std::vector<uint64_t> points;
  for (const PlacedSweep& sweep : task.sweeps) points.push_back(sweep.sweep->cloud.num_points());
  EXPECT_THAT(points, ElementsAre(4, 3, 2));
  EXPECT_EQ(task.cloud.bytes().data(), task.sweeps[0].sweep->cloud.bytes().data()) << "not copied";
  EXPECT_NEAR(task.sweeps[2].age_seconds, 0.2f, 1e-6f);
  EXPECT_NEAR(task.sweeps[2].transform[3], -0.2f, 1e-6f);
  EXPECT_EQ(session_->sweep_bytes(), (4 + 3 + 2) * 12);
  engine_.End(4);
  EXPECT_EQ(num_sweeps_[1], 1);
  EXPECT_EQ(num_sweeps_[4], 3);
}

TEST_F(StreamSessionTest, SweepsNeedPoseAndStamp) {
  OpenSweeps(3);
  StreamFrame no_pose = SweepOf(1, 0.1);
  no_pose.pose.reset();
  session_->Push(std::move(no_pose));
  EXPECT_EQ(AnswerTo(1), "BAD_POSE");
  StreamFrame no_stamp = SweepOf(2, 0.1);
  no_stamp.stamp = absl::InfinitePast();
  session_->Push(std::move(no_stamp));
  EXPECT_EQ(AnswerTo(2), "MISSING_STAMP");
  StreamFrame no_rotation = SweepOf(3, 0.1);
  no_rotation.pose = Pose{.qw = 0};
  session_->Push(std::move(no_rotation));
  EXPECT_EQ(AnswerTo(3), "BAD_POSE");
  session_->Push(SweepOf(4, 0.4));
  session_->Push(SweepOf(5, 0.3));
  EXPECT_EQ(AnswerTo(5), "BAD_STAMP") << "before the one before";
  for (const uint64_t frame : {1, 2, 3, 5}) {
    EXPECT_EQ(answers_.at(frame).status().code(), absl::StatusCode::kInvalidArgument) << frame;
  }
  engine_.End(4);
  EXPECT_EQ(num_sweeps_[4], 1) << "bad frames are no sweeps";
}

TEST_F(StreamSessionTest, AResetForgetsSweepsEvenWhereItsFrameIsBad) {
  OpenSweeps(3);
  const auto run = [this](StreamFrame frame, uint64_t points) {
    session_->Push(std::move(frame));
    engine_.End(points);
    return num_sweeps_[points];
  };
  EXPECT_EQ(run(SweepOf(1, 0.1), 1), 1);
  EXPECT_EQ(run(SweepOf(2, 0.2), 2), 2);
  StreamFrame reset = SweepOf(3, 0.05);  // back in time, too
  reset.reset_sweeps = true;
  EXPECT_EQ(run(std::move(reset), 3), 1);
  EXPECT_EQ(run(SweepOf(4, 0.2), 4), 2);
  StreamFrame bad = SweepOf(5, 0.3);
  bad.reset_sweeps = true;
  bad.cloud = absl::InvalidArgumentError("no");
  session_->Push(std::move(bad));
  EXPECT_EQ(run(SweepOf(6, 0.4), 6), 1);
}

TEST_F(StreamSessionTest, SweepsNeverCrossStreams) {
  OpenSweeps(3);
  const std::shared_ptr<StreamSession> other =
      Open({.sweeps = SweepHistory::Options{.num_sweeps = 3}, .age_feature = ""});
  session_->Push(SweepOf(1, 0.1));
  other->Push(SweepOf(2, 0.2));
  session_->Push(SweepOf(3, 0.3));
  ASSERT_EQ(engine_.task(2).sweeps.size(), 1u);
  ASSERT_EQ(engine_.task(3).sweeps.size(), 2u);
  EXPECT_EQ(engine_.task(3).sweeps[1].sweep->cloud.num_points(), 1u);
}

}  // namespace
}  // namespace voxserve
