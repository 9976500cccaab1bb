// Tests that a StreamSession keeps the clouds of earlier frames (sweeps) and runs them together with later frames.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/serving/streams/stream_session_fixture.h"

namespace voxserve::stream_session_sweeps_test {
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
  EXPECT_EQ(session_->SweepBytes(), (4 + 3 + 2) * 12);
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
  StreamFrame reset = SweepOf(3, 0.05);  // its stamp goes back, too
  reset.reset_sweeps = true;
  EXPECT_EQ(run(std::move(reset), 3), 1);
  EXPECT_EQ(run(SweepOf(4, 0.2), 4), 2);
  StreamFrame bad = SweepOf(5, 0.3);
  bad.reset_sweeps = true;
  bad.cloud = absl::InvalidArgumentError("no");
  session_->Push(std::move(bad));
  EXPECT_EQ(run(SweepOf(6, 0.4), 6), 1);
}

TEST_F(StreamSessionTest, AResetOfAFrameThatWasAddedIsBeforeTheNextFrame) {
  OpenSweeps(3);
  session_->Push(SweepOf(1, 0));
  StreamFrame failed = FrameOf(2);
  failed.cloud = WithReason(absl::InvalidArgumentError("half"), error_reason::kFrameIncomplete);
  failed.reset_sweeps = true;
  session_->Add(std::move(failed));
  session_->Push(SweepOf(3, 0.1));
  session_->Push(SweepOf(4, 0.2));
  engine_.End(4);
  EXPECT_EQ(num_sweeps_[4], 2) << "with frame 3, and without frame 1";
}

TEST_F(StreamSessionTest, ASilentStreamForgetsItsSweeps) {
  OpenSweeps(3);
  EXPECT_EQ(session_->NextExpiry(), absl::InfiniteFuture()) << "there is nothing to forget";
  std::weak_ptr<const void> first, second;
  const auto push = [this](uint64_t points, double seconds) {
    const auto reservation = std::make_shared<const int>(0);
    StreamFrame frame = SweepOf(points, seconds);
    frame.reservation = reservation;
    session_->Push(std::move(frame));
    return std::weak_ptr<const void>(reservation);
  };
  first = push(1, 0.1);
  engine_.End(1);
  now_ += absl::Milliseconds(100);
  second = push(2, 0.2);
  engine_.End(2);
  EXPECT_EQ(session_->NextExpiry(), now_ + absl::Seconds(3)) << "max_age, and jitter";
  now_ += absl::Seconds(3) - absl::Nanoseconds(1);
  session_->ExpireDue();
  EXPECT_EQ(session_->SweepBytes(), (1 + 2) * 12);
  EXPECT_FALSE(first.expired());
  now_ += absl::Nanoseconds(1);
  session_->ExpireDue();
  EXPECT_EQ(session_->SweepBytes(), 0);
  EXPECT_EQ(session_->NextExpiry(), absl::InfiniteFuture());
  EXPECT_TRUE(first.expired());
  EXPECT_TRUE(second.expired());
  EXPECT_EQ(num_sweeps_[2], 2);
  push(3, 0.3);
  engine_.End(3);
  EXPECT_EQ(num_sweeps_[3], 1);
}

// With the policy QUEUE, the server may not read the next frame while a frame runs. So the stream does not count as
// silent meanwhile.
TEST_F(StreamSessionTest, AStreamIsNotSilentWhileAFrameRuns) {
  OpenSweeps(3);
  session_->Push(SweepOf(1, 0.1));
  now_ += absl::Seconds(10);
  session_->ExpireDue();
  EXPECT_EQ(session_->SweepBytes(), 12);
  EXPECT_EQ(session_->NextExpiry(), now_ + absl::Seconds(3));
  now_ += absl::Seconds(2);
  engine_.End(1);
  EXPECT_EQ(session_->NextExpiry(), now_ + absl::Seconds(3)) << "silence begins with the answer";
  session_->Push(SweepOf(2, 0.2));
  engine_.End(2);
  EXPECT_EQ(num_sweeps_[2], 2);
  now_ += absl::Seconds(3);
  session_->ExpireDue();
  EXPECT_EQ(session_->SweepBytes(), 0);
}

TEST_F(StreamSessionTest, ASlowReplayHasTheSweepsThatItsStampsSay) {
  OpenSweeps(3);
  for (uint64_t frame = 1; frame <= 4; ++frame) {
    session_->Push(SweepOf(frame, 0.1 * static_cast<double>(frame)));
    engine_.End(frame);
    now_ += absl::Milliseconds(2900);  // as if a debugger stopped the client
    session_->ExpireDue();
  }
  EXPECT_EQ(num_sweeps_[4], 3);
}

TEST_F(StreamSessionTest, AFramesTimeIsUpBeforeItsSweeps) {
  session_ = Open({.frame_timeout = absl::Milliseconds(100), .sweeps = SweepHistory::Options{.num_sweeps = 3}});
  session_->Push(SweepOf(1, 0.1));
  engine_.Start(1);
  EXPECT_EQ(session_->NextExpiry(), kStart + absl::Seconds(3)) << "the engine has the frame";
  session_->Push(SweepOf(2, 0.2));
  EXPECT_EQ(session_->NextExpiry(), kStart + absl::Milliseconds(100));
  now_ += absl::Milliseconds(100);
  session_->ExpireDue();
  EXPECT_EQ(AnswerTo(2), "DEADLINE_EXPIRED");
  EXPECT_EQ(session_->SweepBytes(), (1 + 2) * 12) << "its sweep is kept";
  EXPECT_EQ(session_->NextExpiry(), now_ + absl::Seconds(3)) << "the engine has a frame: the stream is not silent";
}

TEST_F(StreamSessionTest, SweepsOfAFrameThatIsRefusedAsItIsAreForgotten) {
  OpenSweeps(3);
  session_->Push(SweepOf(1, 0.1));
  engine_.End(1);
  session_->Push(SweepOf(2, 0.2));
  engine_.End(2, WithReason(absl::InvalidArgumentError("no such field"), error_reason::kMissingField));
  EXPECT_EQ(session_->SweepBytes(), 0);
  session_->Push(SweepOf(3, 0.3));
  engine_.End(3, WithReason(absl::ResourceExhaustedError("full"), error_reason::kQueueFull));
  session_->Push(SweepOf(4, 0.4));
  engine_.End(4);
  EXPECT_EQ(num_sweeps_[4], 2) << "a frame that was merely unlucky is a sweep";
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
}  // namespace voxserve::stream_session_sweeps_test
