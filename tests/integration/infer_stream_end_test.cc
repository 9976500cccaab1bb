// Tests how streams end: frames that the server has accepted are answered, and nothing of the stream stays in memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "tests/integration/infer_stream_fixture.h"
#include "tests/integration/raw_tcp.h"

namespace voxserve::infer_stream_end_test {
namespace {

using grpc::StatusCode;
using testing::ElementsAre;
using testing::IsEmpty;

TEST_F(InferStreamTest, GrpcItselfEndsAStreamWithATooLargeMessage) {
  Options options;
  options.max_message_bytes = 1 << 20;
  Start({}, options);
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  ASSERT_TRUE(vehicle.Send(1, 10));
  ASSERT_TRUE(vehicle.AwaitResults(1));
  vehicle.Send(2, 100'000);  // The frame has 1.6 MB, more than the server accepts.
  EXPECT_EQ(vehicle.End().error_code(), StatusCode::RESOURCE_EXHAUSTED) << vehicle.End().error_message();
  EXPECT_TRUE(AwaitNoStreams());
  ExpectServerLives();
}

TEST_F(InferStreamTest, ACancelledStreamLeavesTheQueue) {
  Start({.pause = FakeEngine::Pause::kBeforeStart});
  Vehicle vehicle(client_.get(), StreamConfigOf("fake", v1::STREAM_POLICY_QUEUE));
  for (uint64_t frame = 1; frame <= 3; ++frame) ASSERT_TRUE(vehicle.Send(frame, 10));
  ASSERT_TRUE(engine_->AwaitWaiting(3));
  vehicle.Cancel();
  EXPECT_EQ(vehicle.End().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(engine_->AwaitCancelled(3));
  EXPECT_TRUE(AwaitMetric(R"(voxserve_requests_total{code="CANCELLED",model="fake",version="_unknown"})", 3));
  EXPECT_EQ(MetricOf(R"(voxserve_frames_dropped_total{model="fake",reason="cancelled"})"), 3);
  EXPECT_TRUE(AwaitNoStreams());
  engine_->Resume();
  ExpectServerLives();
  EXPECT_EQ(engine_->num_started(), 1);
}

TEST_F(InferStreamTest, AStreamWhoseFrameRunsEndsWithIt) {
  Start({.pause = FakeEngine::Pause::kAfterStart});
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  ASSERT_TRUE(vehicle.Send(1, 10));
  ASSERT_TRUE(engine_->AwaitStarted(1));
  ASSERT_TRUE(vehicle.Send(2, 10));
  ASSERT_TRUE(engine_->AwaitCancelCalls(1)) << "it would supersede the first, and waits in the session";
  vehicle.Cancel();
  EXPECT_EQ(vehicle.End().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(AwaitMetric(R"(voxserve_frames_dropped_total{model="fake",reason="cancelled"})", 1));
  engine_->Resume();
  EXPECT_TRUE(AwaitNoStreams());
  EXPECT_EQ(MetricOf(R"(voxserve_frames_total{model="fake"})"), 0);
  EXPECT_EQ(engine_->num_started(), 1);
  ExpectServerLives();
}

TEST_F(InferStreamTest, ACutConnectionEndsTheStream) {
  Start({.pause = FakeEngine::Pause::kBeforeStart});
  TcpProxy proxy(server_->grpc_port());
  ServiceClient remote(proxy.port());
  Vehicle vehicle(&remote, StreamConfigOf("fake"));
  ASSERT_TRUE(vehicle.Send(1, 1000));
  ASSERT_TRUE(engine_->AwaitWaiting(1));
  proxy.Cut();
  EXPECT_EQ(vehicle.End().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_TRUE(engine_->AwaitCancelled(1));
  EXPECT_TRUE(AwaitNoStreams());
  engine_->Resume();
  ExpectServerLives();
}

TEST_F(InferStreamTest, AHalfClosedStreamGetsWhatIsUnderWay) {
  for (const v1::StreamPolicy policy : {v1::STREAM_POLICY_LATEST, v1::STREAM_POLICY_QUEUE}) {
    Start({.pause = FakeEngine::Pause::kAfterStart});
    Vehicle vehicle(client_.get(), StreamConfigOf("fake", policy));
    ASSERT_TRUE(vehicle.Send(1, 10));
    ASSERT_TRUE(engine_->AwaitStarted(1));
    ASSERT_TRUE(vehicle.Send(2, 20));
    vehicle.CloseSends();
    engine_->Resume();
    EXPECT_TRUE(vehicle.End().ok()) << vehicle.End().error_message();
    EXPECT_EQ(vehicle.outcomes(), (Outcomes{{1, "OK"}, {2, "OK"}}));
  }
}

TEST_F(InferStreamTest, TheRpcsDeadlineEndsTheStream) {
  Start({.pause = FakeEngine::Pause::kBeforeStart});
  Vehicle vehicle(client_.get(), absl::Milliseconds(200));
  vehicle.Send(StreamConfigOf("fake"));
  vehicle.Send(1, 10);
  EXPECT_EQ(vehicle.End().error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(AwaitNoStreams());
  EXPECT_EQ(engine_->num_started(), 0);
  engine_->Resume();
  ExpectServerLives();
}

TEST_F(InferStreamTest, AFrameThatWaitsBehindASlowOneExpires) {
  Start({.pause = FakeEngine::Pause::kAfterStart});
  v1::StreamConfig config = StreamConfigOf("fake");
  config.mutable_frame_timeout()->set_nanos(50'000'000);
  Vehicle vehicle(client_.get(), config);
  ASSERT_TRUE(vehicle.Send(1, 10));
  ASSERT_TRUE(engine_->AwaitStarted(1));
  ASSERT_TRUE(vehicle.Send(2, 10));
  ASSERT_TRUE(vehicle.AwaitResults(1)) << "while the slow one still runs";
  ASSERT_TRUE(vehicle.Send(3, 10));
  ASSERT_TRUE(vehicle.AwaitResults(2));
  engine_->Resume();
  ASSERT_TRUE(vehicle.AwaitResults(3));
  EXPECT_THAT(vehicle.order(), ElementsAre(2, 3, 1));
  for (const v1::FrameResult& result : vehicle.results()) {
    EXPECT_EQ(result.status().code(), static_cast<int>(StatusCode::DEADLINE_EXCEEDED));
    EXPECT_EQ(Vehicle::OutcomeOf(result), "DEADLINE_EXPIRED");
  }
  EXPECT_EQ(MetricOf(R"(voxserve_frames_dropped_total{model="fake",reason="expired"})"), 2);
}

TEST_F(InferStreamTest, ADrainAnswersWhatWasTakenAndSaysSoFirst) {
  Start({.pause = FakeEngine::Pause::kAfterStart});
  Vehicle vehicle(client_.get(), StreamConfigOf("fake", v1::STREAM_POLICY_QUEUE));
  Vehicle idle(client_.get(), StreamConfigOf("fake"));
  Vehicle fresh(client_.get());  // This stream has not sent its configuration.
  fresh.StartReading();
  ASSERT_TRUE(vehicle.Send(1, 10));
  ASSERT_TRUE(engine_->AwaitStarted(1));
  ASSERT_TRUE(vehicle.Send(2, 10));
  ASSERT_TRUE(engine_->AwaitWaiting(1));
  ASSERT_TRUE(AwaitMetric(R"(voxserve_streams{model="fake"})", 2));
  std::thread drain([this] { EXPECT_TRUE(server_->Drain(absl::Seconds(30)).ok()); });
  EXPECT_TRUE(vehicle.AwaitGoingAway());
  EXPECT_THAT(vehicle.order(), IsEmpty());
  EXPECT_TRUE(vehicle.Send(3, 10));
  EXPECT_TRUE(AwaitMetric(R"(voxserve_frames_dropped_total{model="fake",reason="draining"})", 1));

  for (Vehicle* other : {&idle, &fresh}) {
    EXPECT_TRUE(other->AwaitGoingAway());
    EXPECT_EQ(other->End().error_code(), StatusCode::UNAVAILABLE);
    EXPECT_EQ(ReasonOf(other->End()), "DRAINING");
  }
  Vehicle late(client_.get(), StreamConfigOf("fake"));
  EXPECT_EQ(ReasonOf(late.End()), "DRAINING");

  engine_->Resume();
  EXPECT_EQ(vehicle.End().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(vehicle.End()), "DRAINING");
  EXPECT_EQ(vehicle.num_going_away(), 1);
  EXPECT_EQ(vehicle.order(), UpTo(3));
  EXPECT_EQ(vehicle.outcomes(), (Outcomes{{1, "OK"}, {2, "OK"}, {3, "DRAINING"}}));
  drain.join();
}

TEST_F(InferStreamTest, AServerThatStopsAtOnceEndsItsStreams) {
  Start({.pause = FakeEngine::Pause::kBeforeStart});
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  ASSERT_TRUE(vehicle.Send(1, 10));
  ASSERT_TRUE(engine_->AwaitWaiting(1));
  server_.reset();
  EXPECT_FALSE(vehicle.End().ok());
}

TEST_F(InferStreamTest, AClientThatDoesNotReadIsHeldBack) {
  Options options;
  options.max_message_bytes = 1 << 20;
  // A stream reads no more frames while 8 of its answers are unsent (kMaxUnsentAnswers in stream_call.cc). The memory
  // for answers is far above that, so this limit alone holds the client back. All answers together exceed the memory,
  // so without the limit frames would be refused. With much less memory, gRPC would end streams to save it.
  options.grpc_memory_bytes = 64 << 20;
  Start({.max_queue_requests = 100, .scores_per_point = 10}, options);
  v1::StreamConfig config = StreamConfigOf("fake", v1::STREAM_POLICY_QUEUE);
  config.set_return_scores(true);
  Vehicle vehicle(client_.get());
  ASSERT_TRUE(vehicle.Send(config));
  constexpr uint64_t kNumFrames = 250;
  std::thread sender([&] {
    // Each answer has 400 kB.
    for (uint64_t frame = 1; frame <= kNumFrames; ++frame) EXPECT_TRUE(vehicle.Send(frame, 10'000));
    vehicle.CloseSends();
  });
  EXPECT_TRUE(AwaitMetric(R"(voxserve_streams{model="fake"})", 1));
  // Waits until the server starts no frame while it answers 100 calls: the stream waits, and not the machine.
  EXPECT_TRUE(engine_->AwaitStarted(8));
  int64_t num_frames = 0;
  for (int64_t num_calls = 1, num_still = 0; num_still < 100; ++num_calls) {
    ExpectServerLives();
    const int64_t num_others = engine_->num_started() - num_calls;
    num_still = num_others == num_frames ? num_still + 1 : 0;
    num_frames = num_others;
  }
  EXPECT_GE(num_frames, 8);
  EXPECT_LT(num_frames, static_cast<int64_t>(kNumFrames) / 2);
  EXPECT_TRUE(vehicle.End().ok()) << vehicle.End().error_message();
  sender.join();
  EXPECT_EQ(vehicle.order(), UpTo(kNumFrames));
  for (const auto& [frame, outcome] : vehicle.outcomes()) EXPECT_EQ(outcome, "OK") << frame;
}

TEST_F(InferStreamTest, WhatAGoneClientDidNotReadIsLetGo) {
  Options options;
  options.max_message_bytes = 1 << 20;
  options.grpc_memory_bytes = 16 << 20;
  Start({.max_queue_requests = 100, .scores_per_point = 40}, options);
  v1::StreamConfig config = StreamConfigOf("fake");
  config.set_return_scores(true);
  // The answer has 800 kB. The request has a tenth of that: with so little memory a client may leave only 5 MB of
  // frames behind that the server had not read (StrayGuard).
  constexpr int64_t kNumPoints = 5'000;
  v1::InferRequest request = RequestOf("fake", kNumPoints);
  request.set_return_scores(true);
  for (int round = 0; round < 10; ++round) {
    {
      Vehicle vehicle(client_.get());
      vehicle.Send(config);
      for (uint64_t frame = 1; frame <= 4; ++frame) {
        vehicle.Send(frame, kNumPoints);
        EXPECT_TRUE(engine_->AwaitStarted(1));
      }
      vehicle.Cancel();
    }
    ASSERT_TRUE(AwaitNoStreams());
    v1::InferResponse response;
    const grpc::Status status = client_->Infer(request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
}

TEST_F(InferStreamTest, FramesThatAStreamSentAheadAreNotStray) {
  Options options;
  options.max_message_bytes = 1 << 20;
  Start({.max_queue_requests = 100, .scores_per_point = 10}, options);
  v1::StreamConfig config = StreamConfigOf("fake", v1::STREAM_POLICY_QUEUE);
  config.set_return_scores(true);
  Vehicle vehicle(client_.get());
  ASSERT_TRUE(vehicle.Send(config));
  // The client does not read, so the server soon reads no more frames. gRPC takes some more, larger than a message
  // together, and the guard that looks every 50 ms must not take them for stray bytes.
  std::atomic<int64_t> num_sent = 0;
  std::thread sender([&] {
    for (uint64_t frame = 1; frame <= 1'000 && vehicle.Send(frame, 20'000); ++frame) ++num_sent;
  });
  for (int64_t num_before = -1; num_sent != num_before;) {
    num_before = num_sent;
    absl::SleepFor(absl::Seconds(1));
  }
  ExpectServerLives();
  vehicle.Cancel();
  sender.join();
  ASSERT_TRUE(AwaitNoStreams());
  absl::SleepFor(absl::Seconds(1));
  ExpectServerLives();
}

TEST_F(InferStreamTest, VehiclesThatVanishLeaveNothingBehind) {
  Start({.max_queue_requests = 1000});
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 20; ++i) {
        v1::StreamConfig config =
            StreamConfigOf("fake", i % 2 == 0 ? v1::STREAM_POLICY_QUEUE : v1::STREAM_POLICY_LATEST);
        if (i % 3 == 0) config.mutable_frame_timeout()->set_nanos(1'000'000);
        Vehicle vehicle(client_.get(), config);
        for (uint64_t frame = 0; frame < static_cast<uint64_t>(t + i) % 7; ++frame) vehicle.Send(frame, 2000);
        if ((t + i) % 4 == 0) vehicle.CloseSends();
        if ((t + i) % 5 == 0) vehicle.AwaitResults(1);
        vehicle.Cancel();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(AwaitNoStreams());
  ExpectServerLives();
  EXPECT_TRUE(server_->Drain(absl::Seconds(30)).ok()) << "a stream was not released";
}

}  // namespace
}  // namespace voxserve::infer_stream_end_test
