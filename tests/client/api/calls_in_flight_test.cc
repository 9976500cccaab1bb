// Tests CallsInFlight: how long a call counts, and what it owns meanwhile.

#include "client/cpp/api/calls_in_flight.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "tests/client/fake_server.h"
#include "voxserve/v1/inference.grpc.pb.h"

namespace voxserve::client::calls_in_flight_test {
namespace {

class CallsInFlightTest : public testing::Test {
 protected:
  CallsInFlightTest() {
    Options options;
    options.address = server_.address();
    channels_ = *Channels::Create(options);
    stub_ = v1::InferenceService::NewStub(channels_->all()[0]);
  }

  void Call(const std::string& model, CallContext* context, std::function<void(grpc::Status)> done) {
    request_.set_model(model);
    stub_->async()->Infer(context, &request_, &response_, std::move(done));
  }

  FakeServer server_;
  v1::InferRequest request_;
  v1::InferResponse response_;
  std::shared_ptr<Channels> channels_;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
  CallsInFlight calls_;
};

TEST_F(CallsInFlightTest, NothingOfACallIsLeftOnceItDoesNotCount) {
  const std::shared_ptr<grpc::Channel>& channel = channels_->all()[0];
  const auto owners_without_call = channel.use_count();
  CallContext* const context = calls_.Begin(*channels_, absl::Minutes(1));
  EXPECT_EQ(calls_.number(), 1);
  absl::Notification may_return, has_returned;
  Call("segmenter", context, [&](const grpc::Status& status) {
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_GT(channel.use_count(), owners_without_call);
    calls_.End(context);
    may_return.WaitForNotification();
    has_returned.Notify();
  });
  calls_.AwaitNone();
  EXPECT_EQ(channel.use_count(), owners_without_call);
  may_return.Notify();
  has_returned.WaitForNotification();
}

TEST_F(CallsInFlightTest, NoMoreBeginThanMay) {
  CallContext* const first = calls_.Begin(*channels_, absl::Minutes(1), 2);
  CallContext* const second = calls_.Begin(*channels_, absl::Minutes(1), 2);
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(calls_.Begin(*channels_, absl::Minutes(1), 2), nullptr);
  EXPECT_EQ(calls_.number(), 2);
  calls_.End(first);
  CallContext* const third = calls_.Begin(*channels_, absl::Minutes(1), 2);
  ASSERT_NE(third, nullptr);
  calls_.End(second);
  calls_.End(third);
  EXPECT_EQ(calls_.number(), 0);
}

TEST_F(CallsInFlightTest, AllAreCancelled) {
  CallContext* const context = calls_.Begin(*channels_, absl::InfiniteDuration());
  grpc::Status outcome;
  Call("slow", context, [&](grpc::Status status) {
    outcome = std::move(status);
    calls_.End(context);
  });
  calls_.CancelAll();
  calls_.AwaitNone();
  EXPECT_EQ(outcome.error_code(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace voxserve::client::calls_in_flight_test
