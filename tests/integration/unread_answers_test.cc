// Tests a client that sends requests and does not read the answers. The server keeps only a limited number and amount
// of answers for it, and still answers other clients.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/integration/fake_server.h"
#include "tests/integration/raw_tcp.h"
#include "tests/integration/unreading_client.h"
#include "tests/support/await_true.h"

namespace voxserve::unread_answers_test {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;

class UnreadAnswersTest : public FakeServerTest {
 protected:
  // Sends requests and does not read their answers, so the server has to keep them.
  void Leave(UnreadingClient& client, int num_answers, int num_points) {
    v1::InferRequest request = RequestOf("fake", num_points);
    request.set_return_scores(true);
    for (int i = 0; i < num_answers; ++i) ASSERT_TRUE(client.Send(request)) << i;
    ASSERT_TRUE(AwaitMetric(R"(voxserve_frames_total{model="fake"})", num_answers));
  }

  void ExpectEngineFull() {
    v1::InferResponse response;
    const grpc::Status status = client_->Infer(RequestOf("fake", 1), &response);
    EXPECT_EQ(ReasonOf(status), "QUEUE_FULL");
    EXPECT_EQ(status.error_message(), "the queue is full");
  }

  bool AwaitNothingHeld() const {
    return support::AwaitTrue([this] { return server_->held().calls == 0 && server_->held().unsent_bytes == 0; });
  }

  // Repeats the request until it is answered. It is refused until the server has noticed that the client with the
  // unread answers is gone.
  bool AwaitAnswer(const v1::InferRequest& request) {
    return support::AwaitTrue([&] {
      v1::InferResponse response;
      return client_->Infer(request, &response).ok();
    });
  }
};

TEST_F(UnreadAnswersTest, OneClientHasItsShareAndOthersAreServed) {
  Options options;
  options.max_client_calls = 64;
  Start({.max_queue_requests = 100, .scores_per_point = 180}, options);
  TcpProxy proxy(server_->grpc_port(), std::numeric_limits<int64_t>::max(), 2);
  ServiceClient other(proxy.port());
  {
    UnreadingClient client(server_->grpc_port());
    Leave(client, 64, 100);  // Each answer has 72 kB.
    v1::InferResponse response;
    const grpc::Status refused = client_->Infer(RequestOf("fake", 1), &response);
    EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
    EXPECT_EQ(ReasonOf(refused), "CLIENT_LIMIT");
    EXPECT_THAT(refused.error_message(), HasSubstr("share is 64"));
    EXPECT_EQ(RetryDelayOf(refused), absl::Milliseconds(100));
    EXPECT_EQ(engine_->num_started(), 64) << "refused before any work";
    EXPECT_EQ(server_->held().calls, 64);
    EXPECT_EQ(MetricOf(R"(voxserve_calls_ended_early_total{reason="CLIENT_LIMIT"})"), 1);
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(other.Infer(RequestOf("fake", 1), &response).ok()) << i;
  }
  EXPECT_TRUE(AwaitAnswer(RequestOf("fake", 1)));
}

TEST_F(UnreadAnswersTest, AnAnswerThatIsNotReadInTimeIsDropped) {
  Options options;
  options.answer_timeout = absl::Milliseconds(300);
  Start({.max_queue_requests = 100, .scores_per_point = 180}, options);
  UnreadingClient client(server_->grpc_port());
  Leave(client, 3, 100);
  EXPECT_TRUE(AwaitMetric(R"(voxserve_calls_ended_early_total{reason="ANSWER_UNREAD"})", 3));
  EXPECT_TRUE(AwaitNothingHeld());
}

TEST_F(UnreadAnswersTest, ADrainDoesNotWaitForThoseWhoDoNotRead) {
  Options options;
  options.answer_timeout = absl::Hours(1);
  Start({.max_queue_requests = 100, .scores_per_point = 180}, options);
  UnreadingClient client(server_->grpc_port());
  Leave(client, 3, 100);
  EXPECT_TRUE(server_->Drain(absl::Seconds(30)).ok());
  EXPECT_EQ(MetricOf(R"(voxserve_calls_ended_early_total{reason="ANSWER_UNREAD"})"), 3);
}

TEST_F(UnreadAnswersTest, WhatWaitsInTheEngineIsNoneOfThem) {
  constexpr int kWaiting = 200;
  Options options;
  options.max_queue_requests = 1;  // This is the value of the server's flag. The limit of a single model may be larger.
  Start({.max_queue_requests = kWaiting, .pause = FakeEngine::Pause::kBeforeStart}, options);
  {
    UnreadingClient client(server_->grpc_port());
    for (int i = 0; i < kWaiting; ++i) ASSERT_TRUE(client.Send(RequestOf("fake", 1)));
    ASSERT_TRUE(engine_->AwaitWaiting(kWaiting)) << "over one connection";
    EXPECT_EQ(server_->held().calls, kWaiting);
    ExpectEngineFull();
  }
  EXPECT_TRUE(engine_->AwaitCancelled(kWaiting));
}

TEST_F(UnreadAnswersTest, TheirBytesAreBounded) {
  Options options;
  options.grpc_memory_bytes = 4 << 20;
  // With this much memory, a client's share is far above what all clients together may leave unread.
  options.memory_limit = int64_t{64} << 30;
  Start({.max_queue_requests = 100, .scores_per_point = 30}, options);  // Each answer has 1.2 MB.
  TcpProxy proxy(server_->grpc_port(), std::numeric_limits<int64_t>::max(), 2);
  ServiceClient other(proxy.port());
  v1::InferRequest request = RequestOf("fake", 10'000);
  request.set_return_scores(true);
  {
    UnreadingClient client(server_->grpc_port());
    Leave(client, 1, 10'000);
    v1::InferResponse response;
    for (int i = 0; i < 3; ++i) {
      const grpc::Status refused = client_->Infer(request, &response);
      EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
      EXPECT_EQ(ReasonOf(refused), "CLIENT_LIMIT") << refused.error_message();
      EXPECT_TRUE(other.Infer(request, &response).ok()) << "another client's fits";
    }
    EXPECT_GT(server_->held().unsent_bytes, 1 << 20);
  }
  EXPECT_TRUE(AwaitAnswer(request));
}

}  // namespace
}  // namespace voxserve::unread_answers_test
