// Tests how a server drains before its end: it answers the requests that it has accepted, and refuses later ones so
// that their clients try another server.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/integration/fake_server.h"
#include "tests/support/await_true.h"

namespace voxserve::drain_test {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;

class DrainTest : public FakeServerTest {
 protected:
  // Returns a thread that drains the server and expects that all accepted requests are answered in time. Waits until
  // the server says that it drains.
  std::thread BeginDrain(absl::Duration timeout) {
    std::thread drain([this, timeout] { EXPECT_TRUE(server_->Drain(timeout).ok()); });
    EXPECT_TRUE(support::AwaitTrue([this] { return Get("/readyz").second == "draining\n"; }));
    return drain;
  }
};

TEST_F(DrainTest, AnswersWhatItAcceptedAndNothingElse) {
  Start({.pause = FakeEngine::Pause::kBeforeStart});
  AsyncInfer accepted(client_.get(), RequestOf("fake", 3));
  ASSERT_TRUE(engine_->AwaitWaiting(1));
  std::thread drain = BeginDrain(absl::Seconds(30));
  EXPECT_EQ(client_->Health(), grpc::health::v1::HealthCheckResponse::NOT_SERVING);

  AsyncInfer late(client_.get(), RequestOf("fake", 3));
  const grpc::Status& refused = late.Wait();
  EXPECT_EQ(refused.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(refused), "DRAINING");
  EXPECT_EQ(MetricOf(R"(voxserve_frames_dropped_total{model="_unknown",reason="draining"})"), 1);

  engine_->Resume();
  EXPECT_TRUE(accepted.Wait().ok());
  EXPECT_EQ(accepted.response().segmentation().labels().size(), 3u);
  drain.join();
  EXPECT_EQ(Get("/healthz").first, 200) << "operators see it to the end";
  v1::InferResponse response;
  EXPECT_EQ(client_->Infer(RequestOf("fake", 3), &response).error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(DrainTest, WhoTriesAgainAndAgainStillGetsItsAnswer) {
  Start({.pause = FakeEngine::Pause::kAfterStart});
  AsyncInfer accepted(client_.get(), RequestOf("fake", 3));
  ASSERT_TRUE(engine_->AwaitStarted(1));
  std::thread drain = BeginDrain(absl::Seconds(100));
  // All calls use one connection. They are far more than the server allows one client if it refuses calls for another
  // reason than DRAINING.
  for (int i = 0; i < 3000; ++i) {
    v1::InferResponse response;
    const grpc::Status refused = client_->Infer(RequestOf("fake", 3), &response);
    EXPECT_EQ(ReasonOf(refused), "DRAINING") << i << ": " << refused.error_message();
    if (ReasonOf(refused) != "DRAINING") break;
  }
  engine_->Resume();
  EXPECT_TRUE(accepted.Wait().ok()) << accepted.Wait().error_message();
  drain.join();
}

// The client floods the server with new calls while it waits for an answer. Its connection is closed, so that gRPC has
// time for the calls of others.
TEST_F(DrainTest, WhoFloodsItIsCutOff) {
  Start({.pause = FakeEngine::Pause::kAfterStart});
  AsyncInfer accepted(client_.get(), RequestOf("fake", 3));
  ASSERT_TRUE(engine_->AwaitStarted(1));
  std::thread drain = BeginDrain(absl::Seconds(100));
  const absl::Time limit = absl::Now() + absl::Seconds(60);
  std::atomic<bool> is_cut{false};
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([&] {
      while (!is_cut && absl::Now() < limit) {
        v1::InferResponse response;
        if (ReasonOf(client_->Infer(RequestOf("fake", 3), &response)) != "DRAINING") is_cut = true;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_TRUE(is_cut);
  EXPECT_EQ(accepted.Wait().error_code(), StatusCode::UNAVAILABLE) << "it was on this connection";
  engine_->Resume();
  drain.join();
}

// Calls that arrive while the server ends must get UNAVAILABLE. With CANCELLED, a client would believe that it had
// cancelled the call itself, and would not try again.
TEST_F(DrainTest, CallsThatComeAtTheEndMayTryElsewhere) {
  constexpr int kNumRounds = 20;
  constexpr int kNumCallers = 8;
  for (int round = 0; round < kNumRounds; ++round) {
    Start();
    std::vector<std::thread> callers;
    std::atomic<int> num_answered = 0;
    const int port = server_->grpc_port();  // server_ may be null when a caller begins.
    for (int i = 0; i < kNumCallers; ++i) {
      callers.emplace_back([port, &num_answered] {
        ServiceClient client(port);
        grpc::Status status;
        do {
          v1::InferResponse response;
          status = client.Infer(RequestOf("fake", 3), &response);
          if (status.ok()) ++num_answered;
        } while (status.ok() || ReasonOf(status) == "QUEUE_FULL" || ReasonOf(status) == "DRAINING");
        EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE) << status.error_message();
      });
    }
    EXPECT_TRUE(support::AwaitTrue([&] { return num_answered >= kNumCallers; }));
    EXPECT_TRUE(server_->Drain(absl::Seconds(30)).ok());
    server_.reset();
    for (std::thread& caller : callers) caller.join();
  }
}

TEST_F(DrainTest, AnIdleServerIsDoneAtOnce) {
  Start();
  EXPECT_TRUE(server_->Drain(absl::ZeroDuration()).ok());
}

TEST_F(DrainTest, AServerThatStillLoadsCanGo) {
  Start({.loading = true});
  EXPECT_TRUE(server_->Drain(absl::Seconds(10)).ok());
  server_.reset();
}

TEST_F(DrainTest, SaysHowManyItCouldNotAnswer) {
  Start({.pause = FakeEngine::Pause::kAfterStart});
  AsyncInfer call(client_.get(), RequestOf("fake", 3));
  ASSERT_TRUE(engine_->AwaitStarted(1));
  const absl::Status status = server_->Drain(absl::Milliseconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1 accepted requests"));
  engine_->Resume();
  EXPECT_TRUE(call.Wait().ok());
}

TEST_F(DrainTest, WhatStillWaitsAfterAFifthOfTheTimeIsToldToGoElsewhere) {
  Start({.pause = FakeEngine::Pause::kAfterStart});
  AsyncInfer runs(client_.get(), RequestOf("fake", 3));
  ASSERT_TRUE(engine_->AwaitStarted(1));
  AsyncInfer waits(client_.get(), RequestOf("fake", 3));
  ASSERT_TRUE(engine_->AwaitWaiting(1));
  std::thread drain([this] { EXPECT_TRUE(server_->Drain(absl::Seconds(2)).ok()); });
  EXPECT_EQ(waits.Wait().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(waits.Wait()), "DRAINING");
  engine_->Resume();
  EXPECT_TRUE(runs.Wait().ok());
  drain.join();
}

TEST_F(DrainTest, WithoutADrainQueuedCallsAreCutOffAndNothingHangs) {
  Start({.pause = FakeEngine::Pause::kBeforeStart});
  AsyncInfer call(client_.get(), RequestOf("fake", 3));
  ASSERT_TRUE(engine_->AwaitWaiting(1));
  server_.reset();
  EXPECT_FALSE(call.Wait().ok());
}

TEST_F(DrainTest, TakenPortsAreErrors) {
  Start();
  const auto start_on = [](int grpc_port, int http_port) {
    Options options;
    options.port = grpc_port;
    options.http_port = http_port;
    return Server::Start(options, "",
                         [](EngineObserver*, MemoryBudget*) -> absl::StatusOr<std::unique_ptr<Engine>> {
                           return std::make_unique<FakeEngine>(FakeEngine::Options());
                         })
        .status();
  };
  const absl::Status grpc_taken = start_on(server_->grpc_port(), 0);
  EXPECT_EQ(grpc_taken.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(grpc_taken.message()), HasSubstr("cannot listen for gRPC on 127.0.0.1:"));
  EXPECT_THAT(std::string(grpc_taken.message()), HasSubstr("Address already in use (--port"));
  const absl::Status http_taken = start_on(0, server_->http_port());
  EXPECT_THAT(std::string(http_taken.message()), HasSubstr("cannot listen for HTTP on 127.0.0.1:"));
  EXPECT_THAT(std::string(http_taken.message()), HasSubstr("(--http_port"));
}

TEST_F(DrainTest, AnEngineThatCannotStartIsTheServersError) {
  Options options;
  options.port = options.http_port = 0;  // ports are taken before the engine starts
  const absl::Status status =
      Server::Start(options, "", [](EngineObserver*, MemoryBudget*) -> absl::StatusOr<std::unique_ptr<Engine>> {
        return absl::NotFoundError("no such folder");
      }).status();
  EXPECT_EQ(status, absl::NotFoundError("no such folder"));
}

}  // namespace
}  // namespace voxserve::drain_test
