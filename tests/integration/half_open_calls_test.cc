// Tests what the server does with calls whose client sends nothing, half of a request, or bytes that are no message.

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "tests/integration/infer_stream_fixture.h"

namespace voxserve::half_open_calls_test {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;

constexpr char kInfer[] = "/voxserve.v1.InferenceService/Infer";
constexpr char kInferStream[] = "/voxserve.v1.InferenceService/InferStream";

// One call whose messages are written as bytes, so they may be invalid.
class RawCall {
 public:
  RawCall(const ServiceClient& client, const std::string& method) : stub_(client.channel) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    call_ = stub_.PrepareCall(&context_, method, &queue_);
    call_->StartCall(nullptr);
    Await();
  }
  ~RawCall() {
    context_.TryCancel();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  bool Send(const std::string& text) {
    const grpc::Slice slice(text);
    call_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    return Await();
  }
  bool Send(const google::protobuf::Message& message) { return Send(message.SerializeAsString()); }
  void CloseSends() {
    call_->WritesDone(nullptr);
    Await();
  }
  // Reads one message. Returns false if the call has no more.
  bool Read(google::protobuf::Message* message) {
    grpc::ByteBuffer bytes;
    call_->Read(&bytes, nullptr);
    if (!Await()) return false;
    grpc::Slice slice;
    return bytes.DumpToSingleSlice(&slice).ok() && message->ParseFromArray(slice.begin(), slice.size());
  }
  grpc::Status Finish() {
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Await();
    return status;
  }

 private:
  bool Await() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

class HalfOpenCallsTest : public InferStreamTest {
 protected:
  const ServiceClient& ClientFor(const std::string& method) const {
    return method.find("AdminService") == std::string::npos ? *client_ : *admin_client_;
  }

  void ExpectEnd(RawCall& call, StatusCode code, const std::string& reason) {
    const grpc::Status status = call.Finish();
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_EQ(ReasonOf(status), reason) << status.error_message();
  }
};

v1::InferStreamRequest ConfigMessage() {
  v1::InferStreamRequest message;
  *message.mutable_config() = StreamConfigOf("fake");
  return message;
}

v1::InferStreamRequest FrameMessage(uint64_t frame_id) {
  v1::InferStreamRequest message;
  message.mutable_frame()->set_frame_id(frame_id);
  *message.mutable_frame()->mutable_cloud() = RequestOf("fake", 10).cloud();
  return message;
}

TEST_F(HalfOpenCallsTest, ARequestThatDoesNotComeEndsTheCall) {
  Options options;
  options.request_timeout = absl::Milliseconds(200);
  Start({}, options);
  for (const std::string method : {kInfer, "/grpc.health.v1.Health/Check", "/voxserve.v1.AdminService/LoadModel"}) {
    RawCall call(ClientFor(method), method);
    ExpectEnd(call, StatusCode::DEADLINE_EXCEEDED, "REQUEST_INCOMPLETE");
  }
  EXPECT_EQ(MetricOf(R"(voxserve_calls_ended_early_total{reason="REQUEST_INCOMPLETE"})"), 3);
  ExpectServerLives();
}

TEST_F(HalfOpenCallsTest, ACallWithoutARequestIsRefused) {
  Start();
  RawCall call(*client_, kInfer);
  call.CloseSends();
  ExpectEnd(call, StatusCode::INVALID_ARGUMENT, "REQUEST_INCOMPLETE");
}

TEST_F(HalfOpenCallsTest, BytesThatAreNoMessageAreRefused) {
  Start();
  for (const std::string method : {kInfer, "/grpc.health.v1.Health/Check", "/voxserve.v1.AdminService/TunePlan",
                                   "/voxserve.v1.InferenceService/GetModel"}) {
    RawCall call(ClientFor(method), method);
    ASSERT_TRUE(call.Send(std::string("\x0a\x7f no")));
    ExpectEnd(call, StatusCode::INVALID_ARGUMENT, "MALFORMED_MESSAGE");
    if (method == kInfer) {
      EXPECT_EQ(MetricOf(R"(voxserve_calls_ended_early_total{reason="MALFORMED_MESSAGE"})"), 1);
    }
  }
  EXPECT_EQ(MetricOf(R"(voxserve_requests_total{code="INVALID_ARGUMENT",model="_unknown",version="_unknown"})"), 1);
  ExpectServerLives();
}

TEST_F(HalfOpenCallsTest, AMalformedFrameEndsNothingButItself) {
  Start();
  RawCall call(*client_, kInferStream);
  ASSERT_TRUE(call.Send(ConfigMessage()));
  std::string bad = FrameMessage(7).SerializeAsString();
  bad.resize(bad.size() - 5);
  ASSERT_TRUE(call.Send(bad));
  ASSERT_TRUE(call.Send(FrameMessage(8)));
  v1::InferStreamResponse first, second;
  ASSERT_TRUE(call.Read(&first));
  ASSERT_TRUE(call.Read(&second));
  EXPECT_EQ(first.result().status().code(), static_cast<int>(StatusCode::INVALID_ARGUMENT));
  EXPECT_THAT(first.result().status().message(), HasSubstr("truncated"));
  EXPECT_EQ(MetricOf(R"(voxserve_calls_ended_early_total{reason="MALFORMED_MESSAGE"})"), 1);
  EXPECT_EQ(second.result().frame_id(), 8u);
  EXPECT_FALSE(second.result().has_status()) << second.result().status().message();
  call.CloseSends();
  EXPECT_TRUE(call.Finish().ok());
}

TEST_F(HalfOpenCallsTest, AStreamThatBeginsWithGarbageEnds) {
  Start();
  RawCall call(*client_, kInferStream);
  ASSERT_TRUE(call.Send(std::string("\x0a\x7f no")));
  ExpectEnd(call, StatusCode::INVALID_ARGUMENT, "MALFORMED_MESSAGE");
}

TEST_F(HalfOpenCallsTest, ASilentStreamEnds) {
  Options options;
  options.stream_idle_timeout = absl::Seconds(1);
  Start({.pause = FakeEngine::Pause::kAfterStart}, options);
  RawCall busy(*client_, kInferStream);
  ASSERT_TRUE(busy.Send(ConfigMessage()));
  ASSERT_TRUE(busy.Send(FrameMessage(1)));
  ASSERT_TRUE(engine_->AwaitStarted(1));
  // These fall silent after the last message of `busy`, so it would end before they do.
  RawCall without_config(*client_, kInferStream);
  RawCall silent(*client_, kInferStream);
  ASSERT_TRUE(silent.Send(ConfigMessage()));
  ExpectEnd(without_config, StatusCode::DEADLINE_EXCEEDED, "STREAM_IDLE");
  ExpectEnd(silent, StatusCode::DEADLINE_EXCEEDED, "STREAM_IDLE");
  EXPECT_TRUE(support::AwaitTrue([&] { return server_->held().streams == 1; })) << "it waits for its answer";
  engine_->Resume();
  v1::InferStreamResponse answer;
  ASSERT_TRUE(busy.Read(&answer));
  EXPECT_FALSE(answer.result().has_status());
  ExpectEnd(busy, StatusCode::DEADLINE_EXCEEDED, "STREAM_IDLE");
  EXPECT_EQ(MetricOf(R"(voxserve_calls_ended_early_total{reason="STREAM_IDLE"})"), 3);
  EXPECT_TRUE(AwaitNoStreams());
}

TEST_F(HalfOpenCallsTest, OneClientHasItsShareOfStreams) {
  Options options;
  options.max_client_streams = 2;
  Start({}, options);
  RawCall first(*client_, kInferStream), second(*client_, kInferStream);
  for (int i = 0; i < 1000 && server_->held().streams < 2; ++i) absl::SleepFor(absl::Milliseconds(10));
  RawCall third(*client_, kInferStream);
  ExpectEnd(third, StatusCode::RESOURCE_EXHAUSTED, "CLIENT_LIMIT");
  EXPECT_EQ(server_->held().streams, 2);
  ExpectServerLives();
}

TEST_F(HalfOpenCallsTest, AClientThatOpensUselessCallsLosesItsConnection) {
  Options options;
  options.max_client_calls = 1;
  Start({}, options);
  RawCall open(*client_, kInfer);
  ServiceClient flood(server_->grpc_port());
  StatusCode last = StatusCode::OK;
  int num_refused = 0;
  for (; num_refused < 20'000 && last != StatusCode::UNAVAILABLE; ++num_refused) {
    v1::InferResponse response;
    last = flood.Infer(RequestOf("fake", 0), &response).error_code();
  }
  EXPECT_EQ(last, StatusCode::UNAVAILABLE) << "the connection is closed";
  EXPECT_GT(num_refused, 1000) << "a burst is allowed";
  // The client may see that its connection is closed before the server counts it.
  const std::string counter = R"(voxserve_calls_ended_early_total{reason="UNFINISHED_CALLS"})";
  for (int i = 0; i < 1000 && MetricOf(counter) < 1; ++i) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_GE(MetricOf(counter), 1);
  // Other connections from the same address stay open.
  ServiceClient other(server_->grpc_port());
  EXPECT_EQ(other.Health(), grpc::health::v1::HealthCheckResponse::SERVING);
  EXPECT_EQ(MetricOf(counter), 1);
}

TEST_F(HalfOpenCallsTest, UnknownMethodsAreUnimplemented) {
  Start();
  RawCall call(*client_, "/voxserve.v1.InferenceService/Guess");
  EXPECT_EQ(call.Finish().error_code(), StatusCode::UNIMPLEMENTED);
}

}  // namespace
}  // namespace voxserve::half_open_calls_test
