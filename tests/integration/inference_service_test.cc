// Tests what clients get from a real gRPC server with a fake engine, whose work the test starts and ends.

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/integration/fake_server.h"
#include "tests/integration/raw_tcp.h"
#include "tests/support/fake_pinned_memory.h"

namespace voxserve::inference_service_test {
namespace {

using grpc::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;

class InferenceServiceTest : public FakeServerTest {
 protected:
  void ExpectServerLives() {
    v1::InferResponse response;
    const grpc::Status status = client_->Infer(RequestOf("fake", 10), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.segmentation().labels().size(), 10u);
  }

  void ExpectRefused(const v1::InferRequest& request, StatusCode code, const std::string& reason,
                     const std::string& text) {
    v1::InferResponse response;
    const grpc::Status status = client_->Infer(request, &response);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_EQ(ReasonOf(status), reason);
    EXPECT_THAT(status.error_message(), HasSubstr(text));
    EXPECT_EQ(engine_->num_started(), 0) << "refused before any work";
  }
};

TEST_F(InferenceServiceTest, AnswersWithLabels) {
  Start();
  v1::InferRequest request = RequestOf("fake", 4);
  request.set_request_id("frame 7");
  v1::InferResponse response;
  const grpc::Status status = client_->Infer(request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.model(), "fake");
  EXPECT_EQ(response.version(), 2) << "the newest";
  EXPECT_EQ(response.request_id(), "frame 7");
  EXPECT_EQ(response.segmentation().labels(), std::string("\0\1\2\0", 4));
  EXPECT_TRUE(response.segmentation().scores().empty());
  EXPECT_EQ(response.counts().used(), 4u);
  std::vector<std::string> stages;
  for (const auto& stage : response.stages()) stages.push_back(stage.name());
  EXPECT_THAT(stages, ElementsAre("decode", "queue", "features", "encode"));
}

TEST_F(InferenceServiceTest, AnswersWithTheVersionAndScoresAskedFor) {
  Start();
  v1::InferRequest request = RequestOf("fake", 2);
  request.set_version(1);
  request.set_return_scores(true);
  v1::InferResponse response;
  ASSERT_TRUE(client_->Infer(request, &response).ok());
  EXPECT_EQ(response.version(), 1);
  EXPECT_EQ(response.segmentation().scores().size(), 2 * 3 * sizeof(float));
}

TEST_F(InferenceServiceTest, CloudsLieWhereTheEngineWantsThem) {
  support::FakePinnedMemory memory;
  const auto pool = PinnedPool::Create({.source = memory.Source()});
  Start({.pinned_pool = pool});
  const v1::InferRequest request = RequestOf("fake", 10'000);
  const auto num_bytes = static_cast<int64_t>(request.cloud().data().size());
  const auto infer = [&] {
    v1::InferResponse response;
    const grpc::Status status = client_->Infer(request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.segmentation().labels().size(), 10'000u);
    return engine_->last_started_was_pinned();
  };
  EXPECT_FALSE(infer()) << "none is ready";
  pool->Adjust();
  // Waits until the buffer of the last request is free again. The server frees it soon after the answer, also if the
  // request fails.
  const auto await_ready = [&] {
    for (int i = 0; i < 1000 && !pool->Take(num_bytes, BufferLife::kRequest)->is_pinned(); ++i) {
      absl::SleepFor(absl::Milliseconds(10));
    }
  };
  for (int i = 0; i < 3; ++i) {
    await_ready();
    EXPECT_TRUE(infer()) << i;
  }
  v1::InferRequest bad = request;
  bad.mutable_cloud()->mutable_data()->pop_back();
  await_ready();
  v1::InferResponse response;
  EXPECT_EQ(client_->Infer(bad, &response).error_code(), StatusCode::INVALID_ARGUMENT);
  bad = request;
  bad.set_model("none");
  await_ready();
  EXPECT_EQ(client_->Infer(bad, &response).error_code(), StatusCode::NOT_FOUND);
  await_ready();
  EXPECT_TRUE(infer());
  EXPECT_EQ(memory.num_allocations(), 1);
}

TEST_F(InferenceServiceTest, NoPointsAreNoError) {
  Start();
  v1::InferResponse response;
  ASSERT_TRUE(client_->Infer(RequestOf("fake", 0), &response).ok());
  EXPECT_TRUE(response.segmentation().labels().empty());
  EXPECT_EQ(response.counts().used(), 0u);
}

TEST_F(InferenceServiceTest, TakesMoreThanGrpcsFourMegabytes) {
  Start();
  v1::InferRequest request = RequestOf("fake", 500'000);  // The request has 8 MB of points.
  request.set_return_scores(true);                        // The response has 6 MB.
  v1::InferResponse response;
  const grpc::Status status = client_->Infer(request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.segmentation().labels().size(), 500'000u);
}

TEST_F(InferenceServiceTest, RefusesWhatIsNoCloud) {
  Start();
  v1::InferRequest request;
  request.set_model("fake");
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "MISSING_CLOUD", "no cloud");
}

TEST_F(InferenceServiceTest, RefusesBytesThatDoNotFitWithBothSizes) {
  Start();
  v1::InferRequest request = RequestOf("fake", 10);
  request.mutable_cloud()->mutable_data()->pop_back();
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "BAD_LAYOUT", "159");
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "BAD_LAYOUT", "160");
  request.mutable_cloud()->mutable_data()->append(2, '\0');
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "BAD_LAYOUT", "161");
}

TEST_F(InferenceServiceTest, RefusesSizesThatOverflow) {
  Start();
  v1::InferRequest request = RequestOf("fake", 1);
  // This number of points times 16 bytes overflows to 16 bytes, which is the size of the cloud's data.
  request.mutable_cloud()->set_num_points(UINT64_MAX / 16 + 2);
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "BAD_LAYOUT", "");
}

TEST_F(InferenceServiceTest, RefusesFieldsOutsideThePointByName) {
  Start();
  v1::InferRequest request = RequestOf("fake", 10);
  request.mutable_cloud()->mutable_fields(1)->set_offset(14);
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "BAD_LAYOUT", "\"y\" ends at byte 18");
}

TEST_F(InferenceServiceTest, RefusesBytesOfNoPoints) {
  Start();
  v1::InferRequest request = RequestOf("fake", 10);
  request.mutable_cloud()->set_num_points(0);
  request.mutable_cloud()->set_row_step(160);
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "BAD_LAYOUT",
                "data has 160 bytes, but 0 points of 16 bytes take 0");
}

TEST_F(InferenceServiceTest, RefusesUnknownModelsAndVersions) {
  Start();
  ExpectRefused(RequestOf("nobody", 1), StatusCode::NOT_FOUND, "MODEL_NOT_FOUND", "broken, fake");
  ExpectRefused(RequestOf("", 1), StatusCode::NOT_FOUND, "MODEL_NOT_FOUND", "broken, fake");
  v1::InferRequest request = RequestOf("fake", 1);
  request.set_version(9);
  ExpectRefused(request, StatusCode::NOT_FOUND, "VERSION_NOT_FOUND", "1, 2");
  request.set_version(-1);
  ExpectRefused(request, StatusCode::NOT_FOUND, "VERSION_NOT_FOUND", "-1");
  ExpectRefused(RequestOf("broken", 1), StatusCode::UNAVAILABLE, "MODEL_FAILED", "bad node");
}

TEST_F(InferenceServiceTest, AHugeNameIsNoMessage) {
  Start();
  ExpectRefused(RequestOf(std::string(1 << 20, 'n'), 1), StatusCode::INVALID_ARGUMENT, "MALFORMED_MESSAGE", "1048576");
}

TEST_F(InferenceServiceTest, AFullQueueSaysWhenToTryAgain) {
  Start({.max_queue_requests = 2, .pause = FakeEngine::Pause::kBeforeStart});
  AsyncInfer first(client_.get(), RequestOf("fake", 3));
  AsyncInfer second(client_.get(), RequestOf("fake", 3));
  ASSERT_TRUE(engine_->AwaitWaiting(2));
  AsyncInfer third(client_.get(), RequestOf("fake", 3));
  const grpc::Status& status = third.Wait();
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReasonOf(status), "QUEUE_FULL");
  EXPECT_EQ(RetryDelayOf(status), absl::Milliseconds(250));
  const auto& trailers = third.context().GetServerTrailingMetadata();
  const auto pushback = trailers.find("grpc-retry-pushback-ms");
  ASSERT_NE(pushback, trailers.end());
  EXPECT_EQ(std::string(pushback->second.data(), pushback->second.size()), "250");
  EXPECT_EQ(MetricOf(R"(voxserve_refusal_duration_seconds_count{model="fake"})"), 1);
  engine_->Resume();
  EXPECT_TRUE(first.Wait().ok());
  EXPECT_TRUE(second.Wait().ok());
}

TEST_F(InferenceServiceTest, WhatHappensOftenDoesNotFillTheLog) {
  constexpr int kRefusals = 300;
  Start();
  testing::internal::CaptureStderr();
  for (int i = 0; i < kRefusals; ++i) {
    v1::InferResponse response;
    ASSERT_FALSE(client_->Infer(RequestOf("nobody", 1), &response).ok());
  }
  v1::InferRequest other = RequestOf("fake", 1);
  other.set_version(9);
  v1::InferResponse response;
  ASSERT_FALSE(client_->Infer(other, &response).ok());
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("reason=MODEL_NOT_FOUND"));
  EXPECT_THAT(log, HasSubstr("reason=VERSION_NOT_FOUND")) << "other reasons are not left out";
  // The server limits the number of log lines per second for each reason. 300 calls take a few seconds at most, even on
  // a slow machine.
  EXPECT_LT(std::count(log.begin(), log.end(), '\n'), kRefusals / 2) << log;
  EXPECT_EQ(MetricOf(R"(voxserve_refusal_duration_seconds_count{model="_unknown"})"), kRefusals);
}

TEST_F(InferenceServiceTest, ADeadlineTakesTheTaskOutOfTheQueue) {
  Start({.pause = FakeEngine::Pause::kBeforeStart});
  v1::InferResponse response;
  const grpc::Status status = client_->Infer(RequestOf("fake", 3), &response, absl::Milliseconds(100));
  EXPECT_EQ(status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(engine_->AwaitCancelled(1));
  // The client's timer may end the call a moment before the server's clock reaches the deadline. The server then counts
  // the call as cancelled.
  EXPECT_TRUE(AwaitMetric(R"(voxserve_requests_total{code="DEADLINE_EXCEEDED",model="fake",version="_unknown"})", 1) ||
              MetricOf(R"(voxserve_requests_total{code="CANCELLED",model="fake",version="_unknown"})") == 1);
  engine_->Resume();
  ExpectServerLives();
  EXPECT_EQ(engine_->num_started(), 1) << "the late one never ran";
  EXPECT_EQ(MetricOf(R"(voxserve_refusal_duration_seconds_count{model="fake"})"), 0) << "it was let in";
}

TEST_F(InferenceServiceTest, ACancelledTaskLeavesTheQueue) {
  Start({.pause = FakeEngine::Pause::kBeforeStart});
  AsyncInfer call(client_.get(), RequestOf("fake", 3));
  ASSERT_TRUE(engine_->AwaitWaiting(1));
  call.Cancel();
  EXPECT_EQ(call.Wait().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(engine_->AwaitCancelled(1));
  EXPECT_TRUE(AwaitMetric(R"(voxserve_requests_total{code="CANCELLED",model="fake",version="_unknown"})", 1));
  EXPECT_EQ(MetricOf(R"(voxserve_frames_dropped_total{model="fake",reason="cancelled"})"), 1);
  engine_->Resume();
  ExpectServerLives();
  EXPECT_EQ(engine_->num_started(), 1);
}

TEST_F(InferenceServiceTest, ACancelledTaskThatRunsIsNoFrame) {
  Start({.pause = FakeEngine::Pause::kAfterStart});
  AsyncInfer call(client_.get(), RequestOf("fake", 3));
  ASSERT_TRUE(engine_->AwaitStarted(1));
  call.Cancel();
  EXPECT_EQ(call.Wait().error_code(), StatusCode::CANCELLED);
  ASSERT_TRUE(engine_->AwaitCancelCalls(1));
  engine_->Resume();
  EXPECT_TRUE(AwaitMetric(R"(voxserve_requests_total{code="CANCELLED",model="fake",version="_unknown"})", 1));
  EXPECT_EQ(MetricOf(R"(voxserve_frames_total{model="fake"})"), 0);
  ExpectServerLives();
  EXPECT_EQ(MetricOf(R"(voxserve_frames_total{model="fake"})"), 1);
  EXPECT_EQ(engine_->num_started(), 2) << "it had run";
}

TEST_F(InferenceServiceTest, ACutConnectionTakesTheTaskOutOfTheQueue) {
  Start({.pause = FakeEngine::Pause::kBeforeStart});
  TcpProxy proxy(server_->grpc_port());
  ServiceClient remote(proxy.port());
  AsyncInfer call(&remote, RequestOf("fake", 1000));
  ASSERT_TRUE(engine_->AwaitWaiting(1));
  proxy.Cut();
  EXPECT_EQ(call.Wait().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_TRUE(engine_->AwaitCancelled(1));
  engine_->Resume();
  ExpectServerLives();
}

TEST_F(InferenceServiceTest, GarbageOnThePortsHurtsNobody) {
  Start();
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  std::string settings(9, '\0');  // This is an empty SETTINGS frame.
  settings[3] = 4;
  std::string headers = settings;
  headers[2] = 100;  // This is a HEADERS frame on stream 1 that promises 100 bytes and brings none.
  headers[3] = 1;
  headers[8] = 1;
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string(100'000, '\xFF'), std::string("\0", 1), preface,
        absl::StrCat(preface, std::string(1000, '\x7E')), absl::StrCat(preface, settings, headers)}) {
    SendRaw(server_->grpc_port(), garbage);
    SendRaw(server_->http_port(), garbage);
    ExpectServerLives();
    EXPECT_EQ(Get("/healthz").first, 200);
  }
}

TEST_F(InferenceServiceTest, CompressedRequestsAreRefused) {
  Start();
  // 16 MB of zeros compress to 16 kB. In the same way, much more would pass the limit on a message's size.
  v1::InferRequest request = RequestOf("fake", 1'000'000);
  std::string& data = *request.mutable_cloud()->mutable_data();
  data.assign(data.size(), '\0');
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    context.set_compression_algorithm(algorithm);
    v1::InferResponse response;
    const grpc::Status status = client_->inference->Infer(&context, request, &response);
    EXPECT_EQ(status.error_code(), StatusCode::UNIMPLEMENTED) << status.error_message();
  }
  EXPECT_EQ(engine_->num_started(), 0);
  ExpectServerLives();
}

TEST_F(InferenceServiceTest, ATooLargeRequestIsRefusedByGrpcItself) {
  Options options;
  options.max_message_bytes = 1 << 20;
  Start({}, options);
  v1::InferResponse response;
  const grpc::Status status = client_->Infer(RequestOf("fake", 100'000), &response);  // The request has 1.6 MB.
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("1048576"));
  ExpectServerLives();
}

TEST_F(InferenceServiceTest, ATooLargeResponseIsAnErrorWithBothSizes) {
  Options options;
  options.max_message_bytes = 1 << 20;
  Start({.scores_per_point = 100}, options);
  v1::InferRequest request = RequestOf("fake", 10'000);  // The request has 160 kB, and the response would have 4 MB.
  request.set_return_scores(true);
  v1::InferResponse response;
  const grpc::Status status = client_->Infer(request, &response);
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReasonOf(status), "RESPONSE_TOO_LARGE");
  EXPECT_THAT(status.error_message(), HasSubstr("1048576"));
  ExpectServerLives();
}

TEST_F(InferenceServiceTest, AnErrorOfTheEngineHasAReason) {
  Start();
  engine_->FailNext(absl::InternalError("a bug"));
  v1::InferResponse response;
  const grpc::Status status = client_->Infer(RequestOf("fake", 10), &response);
  EXPECT_EQ(status.error_code(), StatusCode::INTERNAL);
  EXPECT_EQ(status.error_message(), "a bug");
  EXPECT_EQ(ReasonOf(status), "INTERNAL");
  ExpectServerLives();
}

TEST_F(InferenceServiceTest, ManyClientsAtOnceGetTheirOwnAnswers) {
  Start({.max_queue_requests = 1000});
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([this, t] {
      ServiceClient client(server_->grpc_port());
      for (int i = 0; i < 50; ++i) {
        v1::InferRequest request = RequestOf("fake", t * 50 + i);
        request.set_request_id(std::to_string(t * 50 + i));
        v1::InferResponse response;
        const grpc::Status status = client.Infer(request, &response);
        ASSERT_TRUE(status.ok()) << status.error_message();
        ASSERT_EQ(response.request_id(), request.request_id());
        ASSERT_EQ(response.segmentation().labels().size(), static_cast<size_t>(t * 50 + i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(MetricOf(R"(voxserve_requests_total{code="OK",model="fake",version="2"})"), 400);
  EXPECT_EQ(MetricOf(R"(voxserve_frames_total{model="fake"})"), 400);
}

TEST_F(InferenceServiceTest, ListsModelsWithTheirProblems) {
  Start();
  grpc::ClientContext context;
  v1::ListModelsResponse response;
  ASSERT_TRUE(client_->inference->ListModels(&context, v1::ListModelsRequest(), &response).ok());
  ASSERT_EQ(response.models_size(), 3);
  EXPECT_EQ(response.models(0).name(), "broken");
  EXPECT_EQ(response.models(0).state(), v1::MODEL_STATE_FAILED);
  EXPECT_THAT(response.models(0).problems(), ElementsAre("bad <node>"));
  EXPECT_EQ(response.models(2).version(), 2);
  EXPECT_EQ(response.models(2).state(), v1::MODEL_STATE_READY);
}

TEST_F(InferenceServiceTest, DescribesAModel) {
  Start();
  grpc::ClientContext context;
  v1::GetModelRequest request;
  request.set_model("fake");
  v1::GetModelResponse response;
  ASSERT_TRUE(client_->inference->GetModel(&context, request, &response).ok());
  EXPECT_EQ(response.model().version(), 2);
  EXPECT_EQ(response.model().classes(0).name(), "car");

  request.set_model("nobody");
  grpc::ClientContext again;
  const grpc::Status status = client_->inference->GetModel(&again, request, &response);
  EXPECT_EQ(status.error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(ReasonOf(status), "MODEL_NOT_FOUND");
}

TEST_F(InferenceServiceTest, AStampThatIsNoTimeIsRefused) {
  Start();
  v1::InferRequest request = RequestOf("fake", 10);
  google::protobuf::Timestamp& stamp = *request.mutable_cloud()->mutable_stamp();
  stamp.set_seconds(std::numeric_limits<int64_t>::min());
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "BAD_STAMP", "-9223372036854775808 s and 0 ns");
  stamp.set_seconds(-62'135'596'800);  // This is a time in the year 1, which is a valid stamp but not a recent one.
  v1::InferResponse response;
  const grpc::Status status = client_->Infer(request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(MetricOf(R"(voxserve_frame_age_stale_total{model="fake"})"), 1);
  EXPECT_EQ(MetricOf(R"(voxserve_frame_age_seconds_sum{model="fake"})"), 0);
}

TEST_F(InferenceServiceTest, CountsAndTimesWhatItDoes) {
  Start();
  v1::InferRequest request = RequestOf("fake", 10);
  const absl::Time taken = absl::Now() - absl::Milliseconds(80);
  request.mutable_cloud()->mutable_stamp()->set_seconds(absl::ToUnixSeconds(taken));
  request.mutable_cloud()->mutable_stamp()->set_nanos(static_cast<int32_t>(absl::ToUnixNanos(taken) % 1'000'000'000));
  v1::InferResponse response;
  ASSERT_TRUE(client_->Infer(request, &response).ok());
  request.mutable_cloud()->mutable_stamp()->set_seconds(absl::ToUnixSeconds(taken) + 3600);
  ASSERT_TRUE(client_->Infer(request, &response).ok());
  request.set_model("nobody");
  EXPECT_FALSE(client_->Infer(request, &response).ok());

  EXPECT_EQ(MetricOf(R"(voxserve_requests_total{code="OK",model="fake",version="2"})"), 2);
  EXPECT_EQ(MetricOf(R"(voxserve_requests_total{code="NOT_FOUND",model="_unknown",version="_unknown"})"), 1);
  EXPECT_EQ(MetricOf(R"(voxserve_refusal_duration_seconds_count{model="_unknown"})"), 1);
  EXPECT_EQ(MetricOf(R"(voxserve_refusal_duration_seconds_count{model="fake"})"), 0);
  EXPECT_EQ(MetricOf(R"(voxserve_points_total{fate="used",model="fake"})"), 20);
  EXPECT_EQ(MetricOf(R"(voxserve_request_duration_seconds_count{model="fake"})"), 2);
  for (const char* stage : {"decode", "features", "encode"}) {
    EXPECT_EQ(MetricOf(absl::StrCat(R"(voxserve_stage_duration_seconds_count{model="fake",stage=")", stage, "\"}")), 2)
        << stage;
  }
  EXPECT_EQ(MetricOf(R"(voxserve_frame_age_seconds_count{model="fake"})"), 1);
  EXPECT_EQ(MetricOf(R"(voxserve_frame_age_seconds_bucket{model="fake",le="0.075"})"), 0) << "80 ms old at least";
  EXPECT_EQ(MetricOf(R"(voxserve_frame_age_negative_total{model="fake"})"), 1);
  EXPECT_EQ(MetricOf(R"(voxserve_model_ready{model="fake",version="1"})"), 1);
  EXPECT_EQ(MetricOf(R"(voxserve_model_ready{model="broken",version="1"})"), 0);
  EXPECT_THAT(Get("/").second, HasSubstr("bad &lt;node&gt;"));
}

TEST_F(InferenceServiceTest, ReflectionNamesTheService) {
  Start();
  grpc::GenericStub stub(client_->channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto await = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto call =
      stub.PrepareCall(&context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  call->StartCall(nullptr);
  ASSERT_TRUE(await());
  const grpc::Slice list_services("\x3a\x00", 2);  // ServerReflectionRequest{list_services: ""}
  call->WriteLast(grpc::ByteBuffer(&list_services, 1), grpc::WriteOptions(), nullptr);
  ASSERT_TRUE(await());
  grpc::ByteBuffer answer;
  call->Read(&answer, nullptr);
  ASSERT_TRUE(await());
  grpc::Slice bytes;
  ASSERT_TRUE(answer.DumpToSingleSlice(&bytes).ok());
  const std::string text(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
  EXPECT_THAT(text, HasSubstr("voxserve.v1.InferenceService"));
  EXPECT_THAT(text, HasSubstr("grpc.health.v1.Health"));
  EXPECT_THAT(text, HasSubstr("inference.GRPCInferenceService"));
  EXPECT_THAT(text, HasSubstr("xds.service.orca.v3.OpenRcaService"));
  grpc::Status status;
  call->Finish(&status, nullptr);
  EXPECT_TRUE(await());
  EXPECT_TRUE(status.ok());
}

}  // namespace
}  // namespace voxserve::inference_service_test
