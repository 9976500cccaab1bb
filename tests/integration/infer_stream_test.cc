// Tests what vehicles get from InferStream of a real gRPC server with a fake engine, whose work the test starts and
// ends.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/infer_stream_fixture.h"
#include "tests/support/fake_pinned_memory.h"

namespace voxserve::infer_stream_test {
namespace {

using grpc::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(InferStreamTest, AnswersEachFrameByItsId) {
  Start();
  v1::StreamConfig config = StreamConfigOf("fake");
  config.set_version(1);
  config.set_return_scores(true);
  Vehicle vehicle(client_.get(), config);
  const std::vector<uint64_t> ids = {7, 0, UINT64_MAX, 7};  // A client may choose any ids, even equal ones.
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_TRUE(vehicle.Send(ids[i], static_cast<int64_t>(i) + 1));
    ASSERT_TRUE(vehicle.AwaitResults(i + 1));
  }
  vehicle.CloseSends();
  EXPECT_TRUE(vehicle.End().ok()) << vehicle.End().error_message();
  EXPECT_EQ(vehicle.order(), ids);
  for (size_t i = 0; i < ids.size(); ++i) {
    const v1::FrameResult result = vehicle.results()[i];
    EXPECT_FALSE(result.has_status());
    EXPECT_EQ(result.num_sweeps(), 0u);
    EXPECT_EQ(result.response().version(), 1);
    EXPECT_EQ(result.response().segmentation().labels().size(), i + 1);
    EXPECT_EQ(result.response().segmentation().scores().size(), (i + 1) * 3 * sizeof(float));
    std::vector<std::string> stages;
    for (const auto& stage : result.response().stages()) stages.push_back(stage.name());
    EXPECT_THAT(stages, ElementsAre("decode", "queue", "features", "encode"));
  }
  EXPECT_EQ(vehicle.num_going_away(), 0);
  EXPECT_TRUE(AwaitNoStreams());
}

TEST_F(InferStreamTest, CountsFramesAsItCountsRequests) {
  Start();
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  v1::StreamFrame frame = StreamFrameOf(1, 10);
  frame.mutable_cloud()->mutable_stamp()->set_seconds(absl::ToUnixSeconds(absl::Now()) - 1);
  ASSERT_TRUE(vehicle.Send(frame));
  ASSERT_TRUE(vehicle.AwaitResults(1));
  EXPECT_EQ(MetricOf(R"(voxserve_streams{model="fake"})"), 1);
  frame.clear_cloud();
  ASSERT_TRUE(vehicle.Send(frame));
  ASSERT_TRUE(vehicle.AwaitResults(2));
  EXPECT_EQ(MetricOf(R"(voxserve_requests_total{code="OK",model="fake",version="2"})"), 1);
  EXPECT_EQ(MetricOf(R"(voxserve_requests_total{code="INVALID_ARGUMENT",model="fake",version="_unknown"})"), 1);
  EXPECT_EQ(MetricOf(R"(voxserve_frames_total{model="fake"})"), 1);
  EXPECT_EQ(MetricOf(R"(voxserve_frame_age_seconds_count{model="fake"})"), 1);
  for (const char* stage : {"decode", "features", "encode"}) {
    EXPECT_EQ(MetricOf(absl::StrCat(R"(voxserve_stage_duration_seconds_count{model="fake",stage=")", stage, "\"}")), 1)
        << stage;
  }
}

TEST_F(InferStreamTest, LatestRunsTheNewestFrame) {
  Start({.pause = FakeEngine::Pause::kAfterStart});
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  ASSERT_TRUE(vehicle.Send(1, 1));
  ASSERT_TRUE(engine_->AwaitStarted(1));
  for (uint64_t frame = 2; frame <= 10; ++frame) ASSERT_TRUE(vehicle.Send(frame, static_cast<int64_t>(frame)));
  ASSERT_TRUE(vehicle.AwaitResults(8));
  EXPECT_THAT(vehicle.order(), ElementsAre(2, 3, 4, 5, 6, 7, 8, 9));
  for (const v1::FrameResult& result : vehicle.results()) {
    EXPECT_EQ(result.status().code(), static_cast<int>(StatusCode::ABORTED));
    EXPECT_EQ(Vehicle::OutcomeOf(result), "SUPERSEDED");
    EXPECT_FALSE(result.has_response());
  }
  engine_->Resume();
  ASSERT_TRUE(vehicle.AwaitResults(10));
  EXPECT_EQ(vehicle.outcomes()[1], "OK");
  EXPECT_EQ(vehicle.outcomes()[10], "OK");
  EXPECT_EQ(vehicle.results()[9].response().segmentation().labels().size(), 10u);
  EXPECT_EQ(engine_->num_started(), 2);
  EXPECT_EQ(MetricOf(R"(voxserve_frames_dropped_total{model="fake",reason="superseded"})"), 8);
  EXPECT_EQ(MetricOf(R"(voxserve_requests_total{code="ABORTED",model="fake",version="_unknown"})"), 8);
}

// Three frames arrive while the engine runs one.
TEST_F(InferStreamTest, ASlowEngineRunsTheNewestFrameEveryTime) {
  Start({.pause = FakeEngine::Pause::kAfterStart});
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  constexpr uint64_t kNumRuns = 12;
  uint64_t newest = 0;
  size_t num_answers = 0;
  Outcomes expected;
  const auto send = [&] { return vehicle.Send(newest + 1, static_cast<int64_t>(newest + 1)) && ++newest > 0; };
  ASSERT_TRUE(send());
  for (uint64_t run = 1; run <= kNumRuns; ++run) {
    ASSERT_TRUE(engine_->AwaitStarted(static_cast<int64_t>(run)));
    ASSERT_EQ(engine_->last_started_points(), newest) << "the newest that had come";
    expected[newest] = "OK";
    if (run < kNumRuns) {
      for (int i = 0; i < 3; ++i) ASSERT_TRUE(send());
      expected[newest - 2] = expected[newest - 1] = "SUPERSEDED";
      num_answers += 2;
      // Two results mean that the third frame has arrived: it superseded the second.
      ASSERT_TRUE(vehicle.AwaitResults(num_answers));
    }
    engine_->EndOne();
    ASSERT_TRUE(vehicle.AwaitResults(++num_answers));
    EXPECT_EQ(vehicle.results().back().frame_id(), run == kNumRuns ? newest : newest - 3);
  }
  vehicle.CloseSends();
  EXPECT_TRUE(vehicle.End().ok());
  EXPECT_EQ(vehicle.outcomes(), expected);
  for (const v1::FrameResult& result : vehicle.results()) {
    if (!result.has_response()) continue;
    EXPECT_EQ(result.response().segmentation().labels().size(), result.frame_id()) << "another frame's answer";
  }
}

TEST_F(InferStreamTest, LatestSupersedesWhatTheEngineHasNotStarted) {
  Start({.pause = FakeEngine::Pause::kBeforeStart});
  Vehicle vehicle(client_.get(), StreamConfigOf("fake", v1::STREAM_POLICY_LATEST));
  for (uint64_t frame = 1; frame <= 3; ++frame) {
    ASSERT_TRUE(vehicle.Send(frame, 5));
    ASSERT_TRUE(vehicle.AwaitResults(frame - 1));
    ASSERT_TRUE(engine_->AwaitWaiting(1));
  }
  engine_->Resume();
  ASSERT_TRUE(vehicle.AwaitResults(3));
  EXPECT_EQ(vehicle.outcomes(), (Outcomes{{1, "SUPERSEDED"}, {2, "SUPERSEDED"}, {3, "OK"}}));
  EXPECT_EQ(engine_->num_started(), 1);
}

TEST_F(InferStreamTest, QueueAnswersInOrderAndHoldsTheClientBack) {
  // The engine's queue holds two frames. If the server read a third, the engine would refuse it.
  Start({.max_queue_requests = 2, .pause = FakeEngine::Pause::kBeforeStart});
  v1::StreamConfig config = StreamConfigOf("fake", v1::STREAM_POLICY_QUEUE);
  config.set_max_queued_frames(2);
  Vehicle vehicle(client_.get(), config);
  constexpr uint64_t kNumFrames = 40;
  std::thread sender([&] {
    // Each frame has 480 kB.
    for (uint64_t frame = 1; frame <= kNumFrames; ++frame) EXPECT_TRUE(vehicle.Send(frame, 30'000));
    vehicle.CloseSends();
  });
  EXPECT_TRUE(engine_->AwaitWaiting(2));
  v1::InferResponse response;
  EXPECT_EQ(ReasonOf(client_->Infer(RequestOf("fake", 1), &response)), "QUEUE_FULL") << "others can ask";
  engine_->Resume();
  EXPECT_TRUE(vehicle.End().ok());
  sender.join();
  EXPECT_EQ(vehicle.order(), UpTo(kNumFrames));
  for (const auto& [frame, outcome] : vehicle.outcomes()) EXPECT_EQ(outcome, "OK") << frame;
  EXPECT_TRUE(AwaitNoStreams());
}

TEST_F(InferStreamTest, TheFirstMessageMustBeAConfig) {
  Start();
  Vehicle frame_first(client_.get());
  frame_first.Send(1, 10);
  EXPECT_EQ(frame_first.End().error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReasonOf(frame_first.End()), "BAD_STREAM");
  EXPECT_THAT(frame_first.order(), IsEmpty());

  Vehicle empty_first(client_.get());
  empty_first.Send(v1::InferStreamRequest());
  EXPECT_EQ(ReasonOf(empty_first.End()), "BAD_STREAM");

  Vehicle silent(client_.get());
  silent.CloseSends();
  EXPECT_TRUE(silent.End().ok()) << "it asked for nothing";
  EXPECT_EQ(engine_->num_started(), 0);
  ExpectServerLives();
}

TEST_F(InferStreamTest, ASecondConfigEndsTheStreamWhenItsFramesAreAnswered) {
  Start({.pause = FakeEngine::Pause::kAfterStart});
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  ASSERT_TRUE(vehicle.Send(1, 10));
  ASSERT_TRUE(engine_->AwaitStarted(1));
  ASSERT_TRUE(vehicle.Send(StreamConfigOf("fake")));
  // The server counts the second configuration when it reads it.
  EXPECT_TRUE(AwaitMetric(R"(voxserve_requests_total{code="INVALID_ARGUMENT",model="fake",version="_unknown"})", 1));
  engine_->Resume();
  EXPECT_EQ(vehicle.End().error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReasonOf(vehicle.End()), "BAD_STREAM");
  EXPECT_EQ(vehicle.outcomes(), (Outcomes{{1, "OK"}}));
}

TEST_F(InferStreamTest, ConfigsThatCannotBeServedEndTheStream) {
  Start();
  ExpectRefused(StreamConfigOf("nobody"), StatusCode::NOT_FOUND, "MODEL_NOT_FOUND", "fake");
  ExpectRefused(StreamConfigOf("broken"), StatusCode::NOT_FOUND, "MODEL_NOT_FOUND", "broken/1");
  v1::StreamConfig config = StreamConfigOf("broken");
  config.set_version(1);
  ExpectRefused(config, StatusCode::UNAVAILABLE, "MODEL_FAILED", "bad <node>");
  config = StreamConfigOf("fake");
  config.set_max_queued_frames(65);
  ExpectRefused(config, StatusCode::INVALID_ARGUMENT, "BAD_STREAM", "max_queued_frames is 65");
  config = StreamConfigOf("fake");
  config.mutable_sweeps()->set_num_sweeps(3);
  config.mutable_sweeps()->set_age_feature("age");
  ExpectRefused(config, StatusCode::INVALID_ARGUMENT, "BAD_STREAM", "version 2 has the features intensity");
  config = StreamConfigOf("fake");
  config.set_priority(2);
  ExpectRefused(config, StatusCode::INVALID_ARGUMENT, "BAD_PRIORITY", "priority is 2");
  EXPECT_EQ(MetricOf(R"(voxserve_requests_total{code="NOT_FOUND",model="_unknown",version="_unknown"})"), 1);
  EXPECT_EQ(engine_->num_started(), 0);
  ExpectServerLives();
}

TEST_F(InferStreamTest, AModelWithoutScoresGivesNone) {
  Start({.scores_per_point = 0});
  v1::StreamConfig config = StreamConfigOf("fake");
  config.set_return_scores(true);
  ExpectRefused(config, StatusCode::INVALID_ARGUMENT, "UNSUPPORTED_OUTPUT", "no scores");
}

TEST_F(InferStreamTest, AModelThatLoadsIsUnavailable) {
  Start({.loading = true});
  ExpectRefused(StreamConfigOf("fake"), StatusCode::UNAVAILABLE, "MODEL_LOADING", "still loading");
}

TEST_F(InferStreamTest, ABadFrameEndsNothingButItself) {
  Options options;
  options.max_message_bytes = 1 << 20;
  Start({.scores_per_point = 100}, options);
  v1::StreamConfig config = StreamConfigOf("fake", v1::STREAM_POLICY_QUEUE);
  config.set_return_scores(true);
  Vehicle vehicle(client_.get(), config);
  ASSERT_TRUE(vehicle.Send(1, 10));
  v1::StreamFrame no_cloud = StreamFrameOf(2, 10);
  no_cloud.clear_cloud();
  ASSERT_TRUE(vehicle.Send(no_cloud));
  v1::StreamFrame cut_short = StreamFrameOf(3, 10);
  cut_short.mutable_cloud()->mutable_data()->pop_back();
  ASSERT_TRUE(vehicle.Send(cut_short));
  ASSERT_TRUE(vehicle.Send(4, 10'000));  // The request has 160 kB. The response would have 4 MB, which is too large.
  ASSERT_TRUE(vehicle.Send(5, 0));
  ASSERT_TRUE(vehicle.AwaitResults(5));
  engine_->FailNext(absl::InternalError("a bug"));
  ASSERT_TRUE(vehicle.Send(6, 10));
  ASSERT_TRUE(vehicle.AwaitResults(6));
  ASSERT_TRUE(vehicle.Send(7, 10));
  vehicle.CloseSends();
  EXPECT_TRUE(vehicle.End().ok());
  EXPECT_EQ(vehicle.order(), UpTo(7));
  EXPECT_EQ(vehicle.outcomes(), (Outcomes{{1, "OK"},
                                          {2, "MISSING_CLOUD"},
                                          {3, "BAD_LAYOUT"},
                                          {4, "RESPONSE_TOO_LARGE"},
                                          {5, "OK"},
                                          {6, "INTERNAL"},
                                          {7, "OK"}}));
  EXPECT_THAT(vehicle.results()[2].status().message(), HasSubstr("159"));
  EXPECT_FALSE(vehicle.results()[3].has_response());
}

TEST_F(InferStreamTest, ARefusedFrameSaysWhenToTryAgain) {
  Start({.max_queue_requests = 1, .pause = FakeEngine::Pause::kBeforeStart});
  AsyncInfer other(client_.get(), RequestOf("fake", 3));
  ASSERT_TRUE(engine_->AwaitWaiting(1));
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  ASSERT_TRUE(vehicle.Send(1, 10));
  ASSERT_TRUE(vehicle.AwaitResults(1));
  const grpc::Status status = Vehicle::StatusOf(vehicle.results()[0]);
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReasonOf(status), "QUEUE_FULL");
  EXPECT_EQ(RetryDelayOf(status), absl::Milliseconds(250));
  engine_->Resume();
  EXPECT_TRUE(other.Wait().ok());
}

TEST_F(InferStreamTest, TheNewestFrameTakesTheRoomOfTheOlderOne) {
  Options options;
  // One client may hold half of these bytes. That is enough for two frames, each with 1,600 bytes of points and its
  // other fields, but not for a third.
  options.max_queue_bytes = 10'000;
  Start({.pause = FakeEngine::Pause::kAfterStart}, options);
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  ASSERT_TRUE(vehicle.Send(1, 100));
  ASSERT_TRUE(engine_->AwaitStarted(1));
  ASSERT_TRUE(vehicle.Send(2, 100));
  ASSERT_TRUE(engine_->AwaitCancelCalls(1)) << "it would supersede the first, and waits in the session";
  Vehicle other(client_.get(), StreamConfigOf("fake"));
  ASSERT_TRUE(other.Send(1, 100));
  ASSERT_TRUE(other.AwaitResults(1));
  EXPECT_EQ(other.outcomes(), (Outcomes{{1, "CLIENT_LIMIT"}}));
  ASSERT_TRUE(vehicle.Send(3, 100));
  ASSERT_TRUE(vehicle.AwaitResults(1));
  EXPECT_EQ(vehicle.outcomes(), (Outcomes{{2, "SUPERSEDED"}})) << "not the third";
  engine_->Resume();
  ASSERT_TRUE(vehicle.AwaitResults(3));
  EXPECT_EQ(vehicle.outcomes(), (Outcomes{{1, "OK"}, {2, "SUPERSEDED"}, {3, "OK"}}));
  ASSERT_TRUE(other.Send(2, 200));
  ASSERT_TRUE(other.AwaitResults(2));
  EXPECT_EQ(other.outcomes()[2], "OK") << "all was given back";
  // Each frame is counted once, by its outcome.
  EXPECT_EQ(MetricOf(R"(voxserve_requests_total{code="OK",model="fake",version="2"})"), 3);
  EXPECT_EQ(MetricOf(R"(voxserve_requests_total{code="ABORTED",model="fake",version="_unknown"})"), 1);
  EXPECT_EQ(MetricOf(R"(voxserve_requests_total{code="RESOURCE_EXHAUSTED",model="fake",version="_unknown"})"), 1);
  EXPECT_EQ(MetricOf(R"(voxserve_frames_dropped_total{model="fake",reason="superseded"})"), 1);
}

TEST_F(InferStreamTest, StreamsNeverMix) {
  Start({.max_queue_requests = 1000});
  static constexpr uint64_t kNumFrames = 50;
  std::vector<std::thread> threads;
  for (uint64_t v = 0; v < 6; ++v) {
    threads.emplace_back([this, v] {
      const bool is_queue = v % 2 == 0;
      v1::StreamConfig config = StreamConfigOf("fake", is_queue ? v1::STREAM_POLICY_QUEUE : v1::STREAM_POLICY_LATEST);
      config.set_version(1 + static_cast<int64_t>(v % 2));
      Vehicle vehicle(client_.get(), config);
      for (uint64_t frame = 1; frame <= kNumFrames; ++frame) {
        ASSERT_TRUE(vehicle.Send(frame, static_cast<int64_t>(v * 1000 + frame)));
      }
      vehicle.CloseSends();
      ASSERT_TRUE(vehicle.End().ok());
      ASSERT_EQ(vehicle.results().size(), kNumFrames);
      EXPECT_EQ(vehicle.outcomes().size(), kNumFrames) << "one result a frame";
      EXPECT_EQ(vehicle.outcomes()[kNumFrames], "OK") << "nothing supersedes the last";
      if (is_queue) {
        EXPECT_EQ(vehicle.order(), UpTo(kNumFrames));
      }
      for (const v1::FrameResult& result : vehicle.results()) {
        if (result.has_status()) {
          EXPECT_EQ(Vehicle::OutcomeOf(result), "SUPERSEDED");
          EXPECT_FALSE(is_queue);
          continue;
        }
        EXPECT_EQ(result.response().segmentation().labels().size(), v * 1000 + result.frame_id());
        EXPECT_EQ(result.response().version(), static_cast<int64_t>(1 + v % 2));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(AwaitNoStreams());
}

TEST_F(InferStreamTest, SweepsAccumulateInAStreamAlone) {
  Start();
  v1::StreamConfig config = StreamConfigOf("fake", v1::STREAM_POLICY_QUEUE);
  config.mutable_sweeps()->set_num_sweeps(3);
  const auto frame_of = [](uint64_t id, int64_t seconds) {
    v1::StreamFrame frame = StreamFrameOf(id, 10);
    frame.mutable_cloud()->mutable_stamp()->set_seconds(1'700'000'000 + seconds);
    frame.mutable_pose()->set_qw(1);
    return frame;
  };
  Vehicle vehicle(client_.get(), config);
  Vehicle other(client_.get(), config);
  ASSERT_TRUE(vehicle.Send(frame_of(1, 0)));
  ASSERT_TRUE(vehicle.Send(frame_of(2, 1)));
  v1::StreamFrame frame = frame_of(3, 1);
  frame.clear_pose();
  ASSERT_TRUE(vehicle.Send(frame));
  frame = frame_of(4, 1);
  frame.mutable_cloud()->clear_stamp();
  ASSERT_TRUE(vehicle.Send(frame));
  frame = frame_of(5, 1);
  frame.mutable_pose()->set_qw(0);
  ASSERT_TRUE(vehicle.Send(frame));
  ASSERT_TRUE(vehicle.Send(frame_of(6, 0)));
  ASSERT_TRUE(vehicle.Send(frame_of(7, 2)));
  ASSERT_TRUE(vehicle.Send(frame_of(8, 2)));
  frame = frame_of(9, 2);
  frame.set_reset_sweeps(true);
  ASSERT_TRUE(vehicle.Send(frame));
  ASSERT_TRUE(other.Send(frame_of(1, 2)));
  ASSERT_TRUE(vehicle.AwaitResults(9));
  ASSERT_TRUE(other.AwaitResults(1));
  EXPECT_EQ(vehicle.outcomes(), (Outcomes{{1, "OK"},
                                          {2, "OK"},
                                          {3, "BAD_POSE"},
                                          {4, "MISSING_STAMP"},
                                          {5, "BAD_POSE"},
                                          {6, "BAD_STAMP"},
                                          {7, "OK"},
                                          {8, "OK"},
                                          {9, "OK"}}));
  std::vector<uint32_t> num_sweeps;
  for (const v1::FrameResult& result : vehicle.results()) num_sweeps.push_back(result.num_sweeps());
  EXPECT_THAT(num_sweeps, ElementsAre(1, 2, 0, 0, 0, 0, 3, 3, 1));
  EXPECT_EQ(other.results()[0].num_sweeps(), 1u);
}

TEST_F(InferStreamTest, ASweepOfNoTimeOrPlaceIsLeftOut) {
  Start();
  v1::StreamConfig config = StreamConfigOf("fake", v1::STREAM_POLICY_QUEUE);
  config.mutable_sweeps()->set_num_sweeps(3);
  Vehicle vehicle(client_.get(), config);
  for (uint64_t id = 1; id <= 6; ++id) {
    v1::StreamFrame frame = StreamFrameOf(id, 10);
    frame.mutable_cloud()->mutable_stamp()->set_seconds(1'700'000'000);
    frame.mutable_pose()->set_qw(1);
    if (id == 2) frame.mutable_cloud()->mutable_stamp()->set_seconds(std::numeric_limits<int64_t>::max());
    if (id == 3) frame.mutable_cloud()->mutable_stamp()->set_nanos(1'000'000'000);
    if (id == 4) frame.mutable_pose()->set_x(std::numeric_limits<double>::infinity());
    if (id == 5) frame.mutable_pose()->set_z(1e300);
    ASSERT_TRUE(vehicle.Send(frame));
  }
  ASSERT_TRUE(vehicle.AwaitResults(6));
  EXPECT_EQ(vehicle.outcomes(),
            (Outcomes{{1, "OK"}, {2, "BAD_STAMP"}, {3, "BAD_STAMP"}, {4, "BAD_POSE"}, {5, "BAD_POSE"}, {6, "OK"}}));
  EXPECT_EQ(vehicle.results()[5].num_sweeps(), 2u);
}

TEST_F(InferStreamTest, ASilentStreamLetsGoOfItsSweeps) {
  Start();
  v1::StreamConfig config = StreamConfigOf("fake");
  config.mutable_sweeps()->set_num_sweeps(3);
  config.mutable_sweeps()->mutable_max_age()->set_nanos(1'000'000);
  const auto frame_of = [](uint64_t id) {
    v1::StreamFrame frame = StreamFrameOf(id, 10);
    frame.mutable_cloud()->mutable_stamp()->set_seconds(1'700'000'000);
    frame.mutable_pose()->set_qw(1);
    return frame;
  };
  Vehicle vehicle(client_.get(), config);
  ASSERT_TRUE(vehicle.Send(frame_of(1)));
  ASSERT_TRUE(vehicle.AwaitResults(1));
  EXPECT_TRUE(engine_->AwaitLastSweepGone()) << "without another frame";
  ASSERT_TRUE(vehicle.Send(frame_of(2)));
  ASSERT_TRUE(vehicle.AwaitResults(2));
  EXPECT_EQ(vehicle.results()[1].num_sweeps(), 1u) << "though the sensor's clock stood still";
}

// Two pinned buffers are free. A stream may keep one of the buffers for its sweeps; the other is left to requests.
TEST_F(InferStreamTest, SweepsLeavePinnedMemoryToRequests) {
  support::FakePinnedMemory memory;
  constexpr int64_t kMostBytes = int64_t{1} << 20;
  const auto pool = PinnedPool::Create({.source = memory.Source(), .max_bytes = kMostBytes});
  Start({.pinned_pool = pool});
  const v1::InferRequest request = RequestOf("fake", 20'000);
  const auto num_bytes = static_cast<int64_t>(request.cloud().data().size());
  ASSERT_GT(num_bytes, kMostBytes / 4);
  ASSERT_LE(num_bytes, kMostBytes / 2);
  support::MakeReady(*pool, num_bytes, 2);
  v1::StreamConfig config = StreamConfigOf("fake");
  config.set_policy(v1::STREAM_POLICY_QUEUE);
  config.mutable_sweeps()->set_num_sweeps(3);
  Vehicle vehicle(client_.get(), config);
  for (const uint64_t id : UpTo(3)) {
    v1::StreamFrame frame = StreamFrameOf(id, 20'000);
    frame.mutable_cloud()->mutable_stamp()->set_seconds(1'700'000'000);
    frame.mutable_pose()->set_qw(1);
    ASSERT_TRUE(vehicle.Send(frame));
    ASSERT_TRUE(vehicle.AwaitResults(id));
    EXPECT_EQ(vehicle.results().back().num_sweeps(), id);
    EXPECT_EQ(engine_->last_started_was_pinned(), id == 1) << "the first one is kept";
  }
  v1::InferResponse response;
  ASSERT_TRUE(client_->Infer(request, &response).ok());
  EXPECT_TRUE(engine_->last_started_was_pinned());
}

}  // namespace
}  // namespace voxserve::infer_stream_test
