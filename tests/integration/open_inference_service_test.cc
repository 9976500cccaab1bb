// Tests inference.GRPCInferenceService (KServe's protocol) of a real gRPC server with a fake engine, whose work the
// test starts and ends. test_tritonclient.py tests the answers that tritonclient gets.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "open_inference.grpc.pb.h"
#include "tests/integration/fake_server.h"

namespace voxserve::open_inference_service_test {
namespace {

using grpc::StatusCode;
using inference::GRPCInferenceService;
using inference::ModelInferRequest;
using inference::ModelInferResponse;
using testing::ElementsAre;
using testing::HasSubstr;

ModelInferRequest PointsOf(const std::string& model, int64_t num_points) {
  ModelInferRequest request;
  request.set_model_name(model);
  auto& input = *request.add_inputs();
  input.set_name("points");
  input.set_datatype("FP32");
  input.add_shape(num_points);
  input.add_shape(4);
  request.add_raw_input_contents(RequestOf(model, num_points).cloud().data());
  return request;
}

class OpenInferenceServiceTest : public FakeServerTest {
 protected:
  void StartWithStub(FakeEngine::Options engine_options = {}, const Options& options = {}) {
    Start(engine_options, options);
    stub_ = GRPCInferenceService::NewStub(client_->channel);
  }

  // Makes a call of the service with a deadline.
  template <typename Request, typename Response>
  grpc::Status Ask(grpc::Status (GRPCInferenceService::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                   const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    return ((*stub_).*method)(&context, request, response);
  }

  grpc::Status Infer(const ModelInferRequest& request, ModelInferResponse* response) {
    return Ask(&GRPCInferenceService::Stub::ModelInfer, request, response);
  }

  void ExpectRefused(const ModelInferRequest& request, StatusCode code, const std::string& reason,
                     const std::string& text) {
    ModelInferResponse response;
    const grpc::Status status = Infer(request, &response);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_EQ(ReasonOf(status), reason);
    EXPECT_THAT(status.error_message(), HasSubstr(text));
    EXPECT_EQ(engine_->num_started(), 0) << "refused before any work";
  }

  bool IsReady(const std::string& model, const std::string& version = "") {
    inference::ModelReadyRequest request;
    request.set_name(model);
    request.set_version(version);
    inference::ModelReadyResponse response;
    const grpc::Status status = Ask(&GRPCInferenceService::Stub::ModelReady, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.ready();
  }

  bool IsServerReady() {
    inference::ServerReadyResponse response;
    const grpc::Status status =
        Ask(&GRPCInferenceService::Stub::ServerReady, inference::ServerReadyRequest(), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.ready();
  }

  std::unique_ptr<GRPCInferenceService::Stub> stub_;
};

TEST_F(OpenInferenceServiceTest, AnswersWithLabels) {
  StartWithStub();
  ModelInferRequest request = PointsOf("fake", 4);
  request.set_id("frame 7");
  ModelInferResponse response;
  const grpc::Status status = Infer(request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.model_name(), "fake");
  EXPECT_EQ(response.model_version(), "2") << "the newest";
  EXPECT_EQ(response.id(), "frame 7");
  ASSERT_EQ(response.outputs_size(), 1);
  EXPECT_EQ(response.outputs(0).name(), "labels");
  EXPECT_EQ(response.raw_output_contents(0), std::string("\0\0\0\0\1\0\0\0\2\0\0\0\0\0\0\0", 16));
  EXPECT_EQ(response.parameters().at("points_used").int64_param(), 4);
  EXPECT_EQ(MetricOf(R"(voxserve_frames_total{model="fake"})"), 1);
  EXPECT_EQ(MetricOf(R"(voxserve_requests_total{code="OK",model="fake",version="2"})"), 1);
  EXPECT_EQ(MetricOf(R"(voxserve_stage_duration_seconds_count{model="fake",stage="decode"})"), 1);
  EXPECT_EQ(MetricOf(R"(voxserve_stage_duration_seconds_count{model="fake",stage="encode"})"), 1);
}

TEST_F(OpenInferenceServiceTest, AnswersWithTheVersionAndOutputsAskedFor) {
  StartWithStub();
  ModelInferRequest request = PointsOf("fake", 2);
  request.set_model_version("1");
  request.add_outputs()->set_name("scores");
  ModelInferResponse response;
  ASSERT_TRUE(Infer(request, &response).ok());
  EXPECT_EQ(response.model_version(), "1");
  ASSERT_EQ(response.outputs_size(), 1);
  EXPECT_THAT(response.outputs(0).shape(), ElementsAre(2, 3));
  EXPECT_EQ(response.raw_output_contents(0).size(), 2 * 3 * sizeof(float));
}

TEST_F(OpenInferenceServiceTest, AnswersWithBoxes) {
  StartWithStub({.has_boxes = true});
  ModelInferResponse response;
  ASSERT_TRUE(Infer(PointsOf("fake", 2), &response).ok());
  ASSERT_EQ(response.outputs_size(), 3);
  EXPECT_THAT(response.outputs(0).shape(), ElementsAre(2, 9));
  EXPECT_EQ(MetricOf(R"(voxserve_boxes_total{model="fake"})"), 2);
}

TEST_F(OpenInferenceServiceTest, TakesMoreThanGrpcsFourMegabytes) {
  StartWithStub();
  ModelInferResponse response;
  const grpc::Status status = Infer(PointsOf("fake", 500'000), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.raw_output_contents(0).size(), 2'000'000u);
}

TEST_F(OpenInferenceServiceTest, RefusesWithTheSameErrorsAsInfer) {
  StartWithStub();
  ExpectRefused(PointsOf("nobody", 1), StatusCode::NOT_FOUND, "MODEL_NOT_FOUND", "fake/1, fake/2");
  ModelInferRequest request = PointsOf("broken", 1);
  request.set_model_version("1");
  ExpectRefused(request, StatusCode::UNAVAILABLE, "MODEL_FAILED", "bad <node>");
  request = PointsOf("fake", 1);
  request.set_model_version("9");
  ExpectRefused(request, StatusCode::NOT_FOUND, "MODEL_NOT_FOUND", "fake/1, fake/2");
  request.set_model_version("one");
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "BAD_PARAMETER", "must be a whole number from 1, or empty");
  request = PointsOf("fake", 1);
  request.mutable_inputs(0)->set_datatype("INT8");
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "BAD_LAYOUT", "must be FP32 or FP16");
  request = PointsOf("fake", 1);
  (*request.mutable_parameters())["sequence_id"].set_int64_param(1);
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "BAD_PARAMETER", "models keep no state");
  ExpectRefused(PointsOf(std::string(1 << 20, 'n'), 1), StatusCode::INVALID_ARGUMENT, "MALFORMED_MESSAGE", "1048576");
  EXPECT_EQ(MetricOf(R"(voxserve_refusal_duration_seconds_count{model="fake"})"), 4)
      << "those that name a model that is there";
}

TEST_F(OpenInferenceServiceTest, AModelThatLoadsIsNotReady) {
  StartWithStub({.loading = true});
  EXPECT_FALSE(IsServerReady());
  EXPECT_FALSE(IsReady("fake"));
  ExpectRefused(PointsOf("fake", 1), StatusCode::UNAVAILABLE, "MODEL_LOADING", "still loading");
  engine_->FinishLoading();
  AwaitReady();
  EXPECT_TRUE(IsServerReady());
  EXPECT_TRUE(IsReady("fake"));
  EXPECT_TRUE(IsReady("fake", "1"));
  EXPECT_FALSE(IsReady("fake", "3"));
  EXPECT_FALSE(IsReady("broken", "1"));
  EXPECT_FALSE(IsReady("nobody"));
  EXPECT_EQ(client_->Health("inference.GRPCInferenceService"), grpc::health::v1::HealthCheckResponse::SERVING);
}

TEST_F(OpenInferenceServiceTest, MetadataTellsInputsAndOutputs) {
  StartWithStub();
  inference::ServerMetadataResponse server;
  ASSERT_TRUE(Ask(&GRPCInferenceService::Stub::ServerMetadata, inference::ServerMetadataRequest(), &server).ok());
  EXPECT_EQ(server.name(), "voxserve");
  EXPECT_EQ(server.version(), "1.2.3");
  inference::ModelMetadataRequest request;
  request.set_name("fake");
  inference::ModelMetadataResponse response;
  ASSERT_TRUE(Ask(&GRPCInferenceService::Stub::ModelMetadata, request, &response).ok());
  EXPECT_THAT(response.versions(), ElementsAre("1", "2"));
  ASSERT_EQ(response.inputs_size(), 1);
  EXPECT_EQ(response.inputs(0).name(), "points");
  EXPECT_EQ(response.inputs(0).datatype(), "FP32");
  EXPECT_THAT(response.inputs(0).shape(), ElementsAre(-1, 4));
  ASSERT_EQ(response.outputs_size(), 2);
  EXPECT_EQ(response.outputs(0).name(), "labels");
  EXPECT_EQ(response.outputs(1).name(), "scores");
  request.set_name("broken");
  request.set_version("1");
  grpc::Status status = Ask(&GRPCInferenceService::Stub::ModelMetadata, request, &response);
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("bad <node>"));
  request.set_name("nobody");
  status = Ask(&GRPCInferenceService::Stub::ModelMetadata, request, &response);
  EXPECT_EQ(ReasonOf(status), "MODEL_NOT_FOUND");
}

TEST_F(OpenInferenceServiceTest, AFullQueueSaysWhenToTryAgain) {
  StartWithStub({.max_queue_requests = 1, .pause = FakeEngine::Pause::kBeforeStart});
  AsyncInfer first(client_.get(), RequestOf("fake", 3));
  ASSERT_TRUE(engine_->AwaitWaiting(1));
  ModelInferResponse response;
  const grpc::Status status = Infer(PointsOf("fake", 3), &response);
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReasonOf(status), "QUEUE_FULL");
  EXPECT_EQ(RetryDelayOf(status), absl::Milliseconds(250));
  engine_->Resume();
  EXPECT_TRUE(first.Wait().ok());
}

TEST_F(OpenInferenceServiceTest, ACancelledTaskLeavesTheQueue) {
  StartWithStub({.pause = FakeEngine::Pause::kBeforeStart});
  grpc::ClientContext context;
  ModelInferResponse response;
  grpc::Status status;
  std::thread call([&] { status = stub_->ModelInfer(&context, PointsOf("fake", 3), &response); });
  EXPECT_TRUE(engine_->AwaitWaiting(1));
  context.TryCancel();
  call.join();
  EXPECT_EQ(status.error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(engine_->AwaitCancelled(1));
  EXPECT_TRUE(AwaitMetric(R"(voxserve_requests_total{code="CANCELLED",model="fake",version="_unknown"})", 1));
}

TEST_F(OpenInferenceServiceTest, ADrainingServerIsNotReadyAndAnswersWhatItAccepted) {
  StartWithStub({.pause = FakeEngine::Pause::kAfterStart});
  ModelInferResponse accepted;
  grpc::Status status;
  std::thread call([&] { status = Infer(PointsOf("fake", 3), &accepted); });
  EXPECT_TRUE(engine_->AwaitStarted(1));
  std::thread drain([&] { EXPECT_TRUE(server_->Drain(absl::Seconds(30)).ok()); });
  EXPECT_TRUE(support::AwaitTrue([&] { return !IsServerReady(); }));
  inference::ServerLiveResponse live;
  EXPECT_TRUE(Ask(&GRPCInferenceService::Stub::ServerLive, inference::ServerLiveRequest(), &live).ok());
  EXPECT_TRUE(live.live());
  ModelInferResponse refused;
  const grpc::Status late = Infer(PointsOf("fake", 3), &refused);
  EXPECT_EQ(late.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(late), "DRAINING");
  engine_->Resume();
  call.join();
  drain.join();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(accepted.raw_output_contents(0).size(), 12u);
}

TEST_F(OpenInferenceServiceTest, StatisticsAreTheSumsOfAllVersions) {
  StartWithStub();
  ModelInferRequest request = PointsOf("fake", 4);
  ModelInferResponse answer;
  ASSERT_TRUE(Infer(request, &answer).ok());
  request.set_model_version("1");
  ASSERT_TRUE(Infer(request, &answer).ok());
  request.mutable_inputs(0)->set_datatype("INT8");
  ASSERT_FALSE(Infer(request, &answer).ok());
  inference::ModelStatisticsRequest asked;
  asked.set_name("fake");
  inference::ModelStatisticsResponse response;
  ASSERT_TRUE(Ask(&GRPCInferenceService::Stub::ModelStatistics, asked, &response).ok());
  ASSERT_EQ(response.model_stats_size(), 1);
  const inference::ModelStatistics& model = response.model_stats(0);
  EXPECT_EQ(model.name(), "fake");
  EXPECT_EQ(model.version(), "2") << "the newest";
  EXPECT_EQ(model.inference_count(), 2u);
  EXPECT_EQ(model.execution_count(), 2u);
  EXPECT_GT(model.last_inference(), 1'700'000'000'000u) << "milliseconds";
  EXPECT_EQ(model.inference_stats().success().count(), 2u);
  EXPECT_GT(model.inference_stats().success().ns(), 0u);
  EXPECT_EQ(model.inference_stats().fail().count(), 1u);
  EXPECT_EQ(model.inference_stats().compute_infer().count(), 2u);
  EXPECT_EQ(model.inference_stats().compute_infer().ns(), 4'000'000u) << "the engine's 2 ms twice";
  EXPECT_EQ(model.inference_stats().compute_output().count(), 2u);
  asked.set_version("2");
  const grpc::Status status = Ask(&GRPCInferenceService::Stub::ModelStatistics, asked, &response);
  EXPECT_EQ(ReasonOf(status), "BAD_PARAMETER");
  EXPECT_THAT(status.error_message(), HasSubstr("statistics are kept by model, for all its versions together"));
}

TEST_F(OpenInferenceServiceTest, TheIndexHasEveryVersionAndItsProblems) {
  StartWithStub();
  inference::RepositoryIndexRequest request;
  inference::RepositoryIndexResponse response;
  ASSERT_TRUE(Ask(&GRPCInferenceService::Stub::RepositoryIndex, request, &response).ok());
  ASSERT_EQ(response.models_size(), 3);
  EXPECT_EQ(response.models(0).name(), "broken");
  EXPECT_EQ(response.models(0).state(), "UNAVAILABLE");
  EXPECT_EQ(response.models(0).reason(), "bad <node>");
  EXPECT_EQ(response.models(2).version(), "2");
  EXPECT_EQ(response.models(2).state(), "READY");
  request.set_ready(true);
  ASSERT_TRUE(Ask(&GRPCInferenceService::Stub::RepositoryIndex, request, &response).ok());
  EXPECT_EQ(response.models_size(), 2);
  request.set_repository_name("other");
  const grpc::Status status = Ask(&GRPCInferenceService::Stub::RepositoryIndex, request, &response);
  EXPECT_EQ(ReasonOf(status), "BAD_PARAMETER");
  EXPECT_THAT(status.error_message(), HasSubstr("there is no repository \"other\""));
}

// ---- streams

class OpenInferenceStreamTest : public OpenInferenceServiceTest {
 protected:
  void StartStream(FakeEngine::Options engine_options = {}, const Options& options = {}) {
    StartWithStub(engine_options, options);
    if (stub_ == nullptr) return;
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    stream_ = stub_->ModelStreamInfer(&context_);
  }

  bool Send(ModelInferRequest request, const std::string& id) {
    request.set_id(id);
    return stream_->Write(request);
  }

  inference::ModelStreamInferResponse Next() {
    inference::ModelStreamInferResponse response;
    EXPECT_TRUE(stream_->Read(&response));
    return response;
  }

  void ExpectEnd(StatusCode code, const std::string& reason) {
    inference::ModelStreamInferResponse response;
    EXPECT_FALSE(stream_->Read(&response));
    const grpc::Status status = stream_->Finish();
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_EQ(ReasonOf(status), reason);
  }

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<ModelInferRequest, inference::ModelStreamInferResponse>> stream_;
};

TEST_F(OpenInferenceStreamTest, EveryRequestGetsOneResponse) {
  StartStream();
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(Send(PointsOf("fake", 4), id));
  for (const char* id : {"a", "b", "c"}) {  // the engine runs the requests one after the other
    const auto response = Next();
    EXPECT_EQ(response.error_message(), "");
    EXPECT_EQ(response.infer_response().id(), id);
    EXPECT_EQ(response.infer_response().raw_output_contents(0).size(), 16u);
  }
  stream_->WritesDone();
  ExpectEnd(StatusCode::OK, "");
  EXPECT_EQ(MetricOf(R"(voxserve_frames_total{model="fake"})"), 3);
}

TEST_F(OpenInferenceStreamTest, ABadRequestDoesNotEndIt) {
  StartStream();
  ModelInferRequest bad = PointsOf("fake", 4);
  bad.mutable_inputs(0)->set_datatype("INT8");
  ASSERT_TRUE(Send(bad, "bad"));
  auto response = Next();
  EXPECT_EQ(response.error_message(),
            "INVALID_ARGUMENT: \"points\" has datatype \"INT8\", must be FP32 or FP16 (BAD_LAYOUT)");
  EXPECT_EQ(response.infer_response().id(), "bad");
  ASSERT_TRUE(Send(PointsOf(std::string(1 << 20, 'n'), 1), "long"));
  response = Next();
  EXPECT_THAT(response.error_message(), HasSubstr("(MALFORMED_MESSAGE)"));
  EXPECT_EQ(response.infer_response().id(), "") << "it could not be read";
  EXPECT_EQ(MetricOf(R"(voxserve_calls_ended_early_total{reason="MALFORMED_MESSAGE"})"), 1);
  ModelInferRequest marked = PointsOf("fake", 1);
  (*marked.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
  ASSERT_TRUE(Send(marked, "good"));
  response = Next();
  EXPECT_EQ(response.infer_response().id(), "good");
  EXPECT_TRUE(response.infer_response().parameters().at("triton_final_response").bool_param());
  stream_->WritesDone();
  ExpectEnd(StatusCode::OK, "");
}

TEST_F(OpenInferenceStreamTest, AHalfCloseWaitsForTheAnswers) {
  StartStream({.pause = FakeEngine::Pause::kBeforeStart});
  ASSERT_TRUE(Send(PointsOf("fake", 4), "a"));
  stream_->WritesDone();
  ASSERT_TRUE(engine_->AwaitWaiting(1));
  engine_->Resume();
  EXPECT_EQ(Next().infer_response().id(), "a");
  ExpectEnd(StatusCode::OK, "");
}

TEST_F(OpenInferenceStreamTest, ItReadsNoMoreWhileSixteenAreOpen) {
  StartStream({.max_queue_requests = 16, .pause = FakeEngine::Pause::kBeforeStart});
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Send(PointsOf("fake", 1), std::to_string(i)));
  ASSERT_TRUE(engine_->AwaitWaiting(16));
  // The server reads these calls from the same connection, so behind the requests. A 17th request that it took would be
  // refused (QUEUE_FULL).
  for (int i = 0; i < 20; ++i) {
    inference::ServerReadyResponse ready;
    EXPECT_TRUE(Ask(&GRPCInferenceService::Stub::ServerReady, inference::ServerReadyRequest(), &ready).ok());
  }
  engine_->Resume();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Next().error_message(), "");
  stream_->WritesDone();
  ExpectEnd(StatusCode::OK, "");
}

TEST_F(OpenInferenceStreamTest, AClientThatIsGoneTakesItsRequestsAlong) {
  StartStream({.pause = FakeEngine::Pause::kBeforeStart});
  for (const char* id : {"a", "b"}) ASSERT_TRUE(Send(PointsOf("fake", 4), id));
  ASSERT_TRUE(engine_->AwaitWaiting(2));
  context_.TryCancel();
  EXPECT_TRUE(engine_->AwaitCancelled(2));
  ExpectEnd(StatusCode::CANCELLED, "");
  EXPECT_TRUE(support::AwaitTrue([&] { return server_->held().streams == 0; }));
}

TEST_F(OpenInferenceStreamTest, ADrainAnswersWhatWasReadAndEndsIt) {
  StartStream({.pause = FakeEngine::Pause::kAfterStart});
  ASSERT_TRUE(Send(PointsOf("fake", 4), "a"));
  ASSERT_TRUE(engine_->AwaitStarted(1));
  std::thread drain([&] { EXPECT_TRUE(server_->Drain(absl::Seconds(30)).ok()); });
  EXPECT_TRUE(support::AwaitTrue([&] { return Get("/readyz").first != 200; }));
  engine_->Resume();
  EXPECT_EQ(Next().infer_response().id(), "a");
  ExpectEnd(StatusCode::UNAVAILABLE, "DRAINING");
  drain.join();
}

TEST_F(OpenInferenceStreamTest, ADrainRefusesWhatComesLater) {
  StartStream({.pause = FakeEngine::Pause::kAfterStart});
  ASSERT_TRUE(Send(PointsOf("fake", 4), "a"));
  ASSERT_TRUE(engine_->AwaitStarted(1));
  std::thread drain([&] { EXPECT_TRUE(server_->Drain(absl::Seconds(30)).ok()); });
  EXPECT_TRUE(support::AwaitTrue([&] { return Get("/readyz").first != 200; }));
  // The server becomes unready before its streams learn of the drain. Until then it still reads requests.
  std::string id = "late";
  for (int i = 0; i < 100 && !id.empty(); ++i) {
    EXPECT_TRUE(Send(PointsOf("fake", 4), "late"));
    const auto response = Next();
    id = response.infer_response().id();
    EXPECT_THAT(response.error_message(), HasSubstr("UNAVAILABLE: "));
    EXPECT_THAT(response.error_message(), HasSubstr("(DRAINING)"));
  }
  EXPECT_EQ(id, "") << "it is not read any more";
  engine_->Resume();
  EXPECT_EQ(Next().infer_response().id(), "a");
  ExpectEnd(StatusCode::UNAVAILABLE, "DRAINING");
  drain.join();
}

TEST_F(OpenInferenceStreamTest, AClientThatFallsSilentEndsIt) {
  Options options;
  options.stream_idle_timeout = absl::Milliseconds(100);
  StartStream({}, options);
  ASSERT_TRUE(Send(PointsOf("fake", 4), "a"));
  EXPECT_EQ(Next().infer_response().id(), "a");
  inference::ModelStreamInferResponse none;
  EXPECT_FALSE(stream_->Read(&none));
  const grpc::Status status = stream_->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(ReasonOf(status), "STREAM_IDLE");
  EXPECT_EQ(status.error_message(), "no request came within 100ms");
  EXPECT_EQ(MetricOf(R"(voxserve_calls_ended_early_total{reason="STREAM_IDLE"})"), 1);
}

// ---- loads

class OpenInferenceAdminTest : public OpenInferenceServiceTest {
 protected:
  void SetUp() override {
    StartWithStub();
    ASSERT_NE(server_, nullptr);
    admin_ = GRPCInferenceService::NewStub(admin_client_->channel);
  }

  template <typename Request, typename Response>
  grpc::Status AskAdmin(grpc::Status (GRPCInferenceService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                           Response*),
                        const Request& request, Response* response) {
    std::swap(stub_, admin_);
    const grpc::Status status = Ask(method, request, response);
    std::swap(stub_, admin_);
    return status;
  }

  std::unique_ptr<GRPCInferenceService::Stub> admin_;
};

TEST_F(OpenInferenceAdminTest, LoadsAndUnloads) {
  grpc::Status loaded, unloaded;
  inference::RepositoryModelLoadRequest load;
  load.set_model_name("fake");
  std::thread load_call([&] {
    inference::RepositoryModelLoadResponse response;
    loaded = AskAdmin(&GRPCInferenceService::Stub::RepositoryModelLoad, load, &response);
  });
  EXPECT_TRUE(engine_->AwaitModelCalls(1));
  EXPECT_TRUE(engine_->last_model_call().loads);
  EXPECT_EQ(engine_->last_model_call().model, "fake");
  EXPECT_EQ(engine_->last_model_call().version, 0);
  engine_->last_model_call().done(std::vector<int64_t>{1, 2});
  load_call.join();
  EXPECT_TRUE(loaded.ok()) << loaded.error_message();
  inference::RepositoryModelUnloadRequest unload;
  unload.set_model_name("fake");
  (*unload.mutable_parameters())["unload_dependents"].set_bool_param(false);
  std::thread unload_call([&] {
    inference::RepositoryModelUnloadResponse response;
    unloaded = AskAdmin(&GRPCInferenceService::Stub::RepositoryModelUnload, unload, &response);
  });
  EXPECT_TRUE(engine_->AwaitModelCalls(2));
  EXPECT_FALSE(engine_->last_model_call().loads);
  engine_->last_model_call().done(absl::NotFoundError("not in service"));
  unload_call.join();
  EXPECT_EQ(unloaded.error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(unloaded.error_message(), "not in service");
}

TEST_F(OpenInferenceAdminTest, RefusesOtherConfigurations) {
  inference::RepositoryModelLoadRequest load;
  load.set_model_name("fake");
  (*load.mutable_parameters())["config"].set_string_param("{}");
  inference::RepositoryModelLoadResponse response;
  grpc::Status status = AskAdmin(&GRPCInferenceService::Stub::RepositoryModelLoad, load, &response);
  EXPECT_EQ(ReasonOf(status), "BAD_PARAMETER");
  EXPECT_EQ(status.error_message(),
            "parameter \"config\" is not served: a model's configuration and files are those of its folder");
  load.clear_parameters();
  load.set_repository_name("other");
  status = AskAdmin(&GRPCInferenceService::Stub::RepositoryModelLoad, load, &response);
  EXPECT_THAT(status.error_message(), HasSubstr("there is no repository \"other\""));
}

TEST_F(OpenInferenceAdminTest, ThePortOfInferenceDoesNotLoad) {
  inference::RepositoryModelLoadRequest load;
  inference::RepositoryModelLoadResponse response;
  const grpc::Status status = Ask(&GRPCInferenceService::Stub::RepositoryModelLoad, load, &response);
  EXPECT_EQ(status.error_code(), StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(status.error_message(),
            "inference.GRPCInferenceService/RepositoryModelLoad is not on this port: it is on the operators' port, "
            "--admin_port of the server");
}

TEST_F(OpenInferenceAdminTest, TheOperatorsPortTellsButDoesNotInfer) {
  inference::RepositoryIndexResponse index;
  EXPECT_TRUE(AskAdmin(&GRPCInferenceService::Stub::RepositoryIndex, inference::RepositoryIndexRequest(), &index).ok());
  EXPECT_EQ(index.models_size(), 3);
  ModelInferResponse response;
  EXPECT_EQ(AskAdmin(&GRPCInferenceService::Stub::ModelInfer, PointsOf("fake", 1), &response).error_code(),
            StatusCode::UNIMPLEMENTED);
}

}  // namespace
}  // namespace voxserve::open_inference_service_test
