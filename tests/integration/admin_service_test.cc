// Tests AdminService's calls (plan searches, loads and unloads of models) through a real gRPC server. The engine is a
// fake, for which the test makes the updates and results.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "tests/integration/fake_server.h"
#include "voxserve/v1/admin.grpc.pb.h"

namespace voxserve::admin_service_test {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;

v1::TunePlanRequest RequestFor(const std::string& model) {
  v1::TunePlanRequest request;
  request.set_model(model);
  return request;
}

// Makes one TunePlan call. The test's own thread reads its updates.
class TuneStream {
 public:
  TuneStream(v1::AdminService::Stub* admin, const v1::TunePlanRequest& request,
             absl::Duration timeout = absl::Seconds(30)) {
    context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
    reader_ = admin->TunePlan(&context_, request);
  }

  // Returns the next update, or an empty one at the end of the stream.
  v1::TunePlanUpdate Next() {
    v1::TunePlanUpdate update;
    if (!reader_->Read(&update)) update.Clear();
    return update;
  }
  // Reads the updates that are left and returns the call's status.
  grpc::Status Finish() {
    v1::TunePlanUpdate update;
    while (reader_->Read(&update)) continue;
    return reader_->Finish();
  }
  void Cancel() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::TunePlanUpdate>> reader_;
};

class AdminServiceTest : public FakeServerTest {
 protected:
  void StartAdmin(FakeEngine::Options options = {}) {
    Start(options);
    admin_ = v1::AdminService::NewStub(admin_client_->channel);
  }

  std::unique_ptr<TuneStream> Tune(const v1::TunePlanRequest& request) {
    return std::make_unique<TuneStream>(admin_.get(), request);
  }

  void ExpectRefused(const v1::TunePlanRequest& request, StatusCode code, const std::string& reason,
                     const std::string& text) {
    const auto stream = Tune(request);
    EXPECT_EQ(stream->Next().update_case(), v1::TunePlanUpdate::UPDATE_NOT_SET);
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_EQ(ReasonOf(status), reason);
    EXPECT_THAT(status.error_message(), HasSubstr(text));
  }

  // Makes a LoadModel or UnloadModel call on a thread of its own.
  struct ModelAnswer {
    grpc::Status status;
    std::vector<int64_t> versions;
  };
  std::future<ModelAnswer> Call(bool loads, const std::string& model, int64_t version = 0,
                                grpc::ClientContext* context = nullptr) {
    return std::async(std::launch::async, [=, this] {
      grpc::ClientContext own;
      grpc::ClientContext* const used = context != nullptr ? context : &own;
      ModelAnswer answer;
      const auto call = [&](auto request, auto response, auto method) {
        request.set_model(model);
        request.set_version(version);
        answer.status = (admin_.get()->*method)(used, request, &response);
        answer.versions.assign(response.versions().begin(), response.versions().end());
      };
      if (loads) {
        call(v1::LoadModelRequest(), v1::LoadModelResponse(), &v1::AdminService::Stub::LoadModel);
      } else {
        call(v1::UnloadModelRequest(), v1::UnloadModelResponse(), &v1::AdminService::Stub::UnloadModel);
      }
      return answer;
    });
  }

  std::unique_ptr<v1::AdminService::Stub> admin_;
};

TEST_F(AdminServiceTest, StreamsProgressThenTheResult) {
  StartAdmin();
  v1::TunePlanRequest request = RequestFor("fake");
  request.set_version(2);
  request.set_num_scans(7);
  request.set_max_wait_seconds(2.5);
  const auto stream = Tune(request);
  ASSERT_TRUE(engine_->AwaitTunes(1));
  const TuneTask task = engine_->last_tune();
  EXPECT_EQ(task.model, "fake");
  EXPECT_EQ(task.version, 2);
  EXPECT_EQ(task.num_scans, 7);
  EXPECT_EQ(task.max_wait, absl::Milliseconds(2500));
  // Each update is read before the next one is made, because the server may replace an unread update by a newer one.
  for (const auto& [stage, fraction] : std::vector<std::pair<std::string, double>>{
           {"waiting for scans", 0}, {"candidates", 0.5}, {"candidates", 0.75}, {"checking", 1.5}}) {
    task.on_progress({.stage = stage, .fraction = fraction});
    const v1::TunePlanUpdate update = stream->Next();
    ASSERT_TRUE(update.has_progress());
    EXPECT_EQ(update.progress().stage(), stage);
    EXPECT_EQ(update.progress().fraction(), std::min(fraction, 1.0));
  }
  engine_->FinishTune(TuneResult{.device = "NVIDIA H200",
                                 .num_scans = 6,
                                 .buckets = {{.min_voxels = 0,
                                              .max_voxels = 50'000,
                                              .num_scans = 2,
                                              .default_time = absl::Microseconds(2500),
                                              .tuned_time = absl::Microseconds(1250)},
                                             {.min_voxels = 50'000,
                                              .max_voxels = 0,
                                              .num_scans = 4,
                                              .default_time = absl::Milliseconds(4),
                                              .tuned_time = absl::Milliseconds(3)}},
                                 .search_time = absl::Milliseconds(61500),
                                 .path = "/plans/fake.textproto"});
  const v1::TunePlanUpdate update = stream->Next();
  ASSERT_TRUE(update.has_result());
  const v1::TunePlanResult& result = update.result();
  EXPECT_EQ(result.device(), "NVIDIA H200");
  EXPECT_EQ(result.num_scans(), 6u);
  EXPECT_EQ(result.seconds(), 61.5);
  EXPECT_EQ(result.path(), "/plans/fake.textproto");
  ASSERT_EQ(result.buckets_size(), 2);
  EXPECT_EQ(result.buckets(0).min_voxels(), 0u);
  EXPECT_EQ(result.buckets(0).max_voxels(), 50'000u);
  EXPECT_EQ(result.buckets(0).num_scans(), 2u);
  EXPECT_EQ(result.buckets(0).default_ms(), 2.5);
  EXPECT_EQ(result.buckets(0).tuned_ms(), 1.25);
  EXPECT_EQ(result.buckets(1).min_voxels(), 50'000u);
  EXPECT_EQ(result.buckets(1).max_voxels(), 0u);
  EXPECT_EQ(stream->Next().update_case(), v1::TunePlanUpdate::UPDATE_NOT_SET);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(AdminServiceTest, FieldsThatAreNotSetHaveDefaults) {
  StartAdmin();
  const auto stream = Tune(RequestFor("fake"));
  ASSERT_TRUE(engine_->AwaitTunes(1));
  EXPECT_EQ(engine_->last_tune().version, 0);
  EXPECT_EQ(engine_->last_tune().num_scans, 16);
  EXPECT_EQ(engine_->last_tune().max_wait, absl::Seconds(60));
  engine_->FinishTune(TuneResult());
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(AdminServiceTest, AClientThatDoesNotReadGetsTheResultAllTheSame) {
  StartAdmin();
  const auto stream = Tune(RequestFor("fake"));
  ASSERT_TRUE(engine_->AwaitTunes(1));
  const TuneTask task = engine_->last_tune();
  constexpr int kUpdates = 20'000;
  for (int i = 0; i < kUpdates; ++i) {
    task.on_progress({.stage = std::string(100, 's'), .fraction = static_cast<double>(i) / kUpdates});
  }
  engine_->FinishTune(TuneResult{.device = "cpu"});
  double previous = -1;
  int num_progress = 0;
  v1::TunePlanUpdate update = stream->Next();
  for (; update.has_progress(); update = stream->Next()) {
    EXPECT_GT(update.progress().fraction(), previous);
    previous = update.progress().fraction();
    ++num_progress;
  }
  EXPECT_GT(num_progress, 0);
  EXPECT_EQ(update.result().device(), "cpu");
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(AdminServiceTest, RefusesUnknownModelsAndVersions) {
  StartAdmin();
  ExpectRefused(RequestFor("nobody"), StatusCode::NOT_FOUND, "MODEL_NOT_FOUND", "broken, fake");
  ExpectRefused(RequestFor(""), StatusCode::NOT_FOUND, "MODEL_NOT_FOUND", "broken, fake");
  ExpectRefused(RequestFor(std::string(1 << 20, 'n')), StatusCode::INVALID_ARGUMENT, "MALFORMED_MESSAGE", "65536");
  ExpectRefused(RequestFor("broken"), StatusCode::UNAVAILABLE, "MODEL_FAILED", "bad node");
  v1::TunePlanRequest request = RequestFor("fake");
  request.set_version(9);
  ExpectRefused(request, StatusCode::NOT_FOUND, "VERSION_NOT_FOUND", "1, 2");
  request.set_version(-1);
  ExpectRefused(request, StatusCode::NOT_FOUND, "VERSION_NOT_FOUND", "-1");
}

TEST_F(AdminServiceTest, RefusesFieldsOutOfRangeByName) {
  StartAdmin();
  for (const int num_scans : {-1, 101, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()}) {
    v1::TunePlanRequest request = RequestFor("fake");
    request.set_num_scans(num_scans);
    ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "INVALID_ARGUMENT", absl::StrCat("num_scans is ", num_scans));
  }
  for (const double seconds : {-1e-9, 600.5, std::nan(""), std::numeric_limits<double>::infinity()}) {
    v1::TunePlanRequest request = RequestFor("fake");
    request.set_max_wait_seconds(seconds);
    ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "INVALID_ARGUMENT", "max_wait_seconds is ");
    ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "INVALID_ARGUMENT", "at most 600");
  }
  v1::TunePlanRequest most = RequestFor("fake");
  most.set_num_scans(100);
  most.set_max_wait_seconds(600);
  const auto stream = Tune(most);
  ASSERT_TRUE(engine_->AwaitTunes(1));
  EXPECT_EQ(engine_->last_tune().num_scans, 100);
  EXPECT_EQ(engine_->last_tune().max_wait, absl::Minutes(10));
}

TEST_F(AdminServiceTest, AModelThatLoadsIsUnavailable) {
  StartAdmin({.loading = true});
  ExpectRefused(RequestFor("fake"), StatusCode::UNAVAILABLE, "MODEL_LOADING", "loading");
}

TEST_F(AdminServiceTest, ASecondSearchIsRefusedAndTheFirstGoesOn) {
  StartAdmin();
  const auto first = Tune(RequestFor("fake"));
  ASSERT_TRUE(engine_->AwaitTunes(1));
  ExpectRefused(RequestFor("fake"), StatusCode::FAILED_PRECONDITION, "ALREADY_TUNING", "fake");
  engine_->last_tune().on_progress({.stage = "candidates", .fraction = 0.25});
  EXPECT_EQ(first->Next().progress().stage(), "candidates");
  engine_->FinishTune(TuneResult{.device = "cpu"});
  EXPECT_EQ(first->Next().result().device(), "cpu");
  EXPECT_TRUE(first->Finish().ok());

  const auto third = Tune(RequestFor("fake"));
  EXPECT_TRUE(engine_->AwaitTunes(2));
}

TEST_F(AdminServiceTest, ErrorsOfTheSearchKeepCodeAndReason) {
  StartAdmin();
  int64_t num_tunes = 0;
  for (const absl::Status& error : {absl::DeadlineExceededError("no scan came"),
                                    absl::ResourceExhaustedError("no memory"), absl::InternalError("a bug")}) {
    const auto stream = Tune(RequestFor("fake"));
    ASSERT_TRUE(engine_->AwaitTunes(++num_tunes));
    engine_->last_tune().on_progress({.stage = "waiting for scans", .fraction = 0});
    engine_->FinishTune(WithReason(error, "WHY"));
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(static_cast<int>(status.error_code()), static_cast<int>(error.code()));
    EXPECT_EQ(status.error_message(), error.message());
    EXPECT_EQ(ReasonOf(status), "WHY");
  }
}

TEST_F(AdminServiceTest, CancellingTheCallEndsTheSearch) {
  StartAdmin();
  const auto stream = Tune(RequestFor("fake"));
  ASSERT_TRUE(engine_->AwaitTunes(1));
  stream->Cancel();
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(engine_->AwaitTuneCancels(1));
  const auto next = Tune(RequestFor("fake"));
  EXPECT_TRUE(engine_->AwaitTunes(2));
}

TEST_F(AdminServiceTest, ADeadlineEndsTheSearch) {
  StartAdmin();
  TuneStream stream(admin_.get(), RequestFor("fake"), absl::Milliseconds(300));
  ASSERT_TRUE(engine_->AwaitTunes(1));
  EXPECT_EQ(stream.Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(engine_->AwaitTuneCancels(1));
}

TEST_F(AdminServiceTest, WhatASearchTellsAfterItsCallIsDropped) {
  StartAdmin({.ends_cancelled_tunes = false});
  const auto stream = Tune(RequestFor("fake"));
  ASSERT_TRUE(engine_->AwaitTunes(1));
  const TuneTask task = engine_->last_tune();
  stream->Cancel();
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::CANCELLED);
  ASSERT_TRUE(engine_->AwaitTuneCancels(1));
  task.on_progress({.stage = "candidates", .fraction = 0.5});
  ExpectRefused(RequestFor("fake"), StatusCode::FAILED_PRECONDITION, "ALREADY_TUNING", "fake");
  engine_->FinishTune(TuneResult());
  task.on_progress({.stage = "candidates", .fraction = 0.75});
  const auto next = Tune(RequestFor("fake"));
  EXPECT_TRUE(engine_->AwaitTunes(2));
}

TEST_F(AdminServiceTest, DrainingEndsSearchesAtOnceAndRefusesNewOnes) {
  StartAdmin({.pause = FakeEngine::Pause::kBeforeStart, .ends_cancelled_tunes = false});
  AsyncInfer accepted(client_.get(), RequestOf("fake", 3));
  ASSERT_TRUE(engine_->AwaitWaiting(1));
  const auto stream = Tune(RequestFor("fake"));
  ASSERT_TRUE(engine_->AwaitTunes(1));
  std::thread drain([this] { EXPECT_TRUE(server_->Drain(absl::Seconds(30)).ok()); });
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(status), "DRAINING");
  EXPECT_TRUE(engine_->AwaitTuneCancels(1));
  ExpectRefused(RequestFor("fake"), StatusCode::UNAVAILABLE, "DRAINING", "shutting down");
  engine_->Resume();
  EXPECT_TRUE(accepted.Wait().ok()) << "an accepted request is answered";
  drain.join();
}

TEST_F(AdminServiceTest, WithoutADrainCallsAreCutOffAndNothingHangs) {
  StartAdmin();
  const auto stream = Tune(RequestFor("fake"));
  ASSERT_TRUE(engine_->AwaitTunes(1));
  server_.reset();
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(AdminServiceTest, MetricsAndTheStatusPageSayByWhichPlanAModelRuns) {
  StartAdmin();
  EXPECT_EQ(MetricOf("voxserve_plan_cache_hits_total"), 0);
  EXPECT_EQ(MetricOf("voxserve_plan_cache_misses_total"), 2);
  EXPECT_EQ(MetricOf(R"(voxserve_plan_info{device="cpu",model="fake",source="default"})"), 1);
  EXPECT_THAT(Get("/").second, HasSubstr("plan: default"));
  v1::TunePlanRequest request = RequestFor("fake");
  const auto stream = Tune(request);
  ASSERT_TRUE(engine_->AwaitTunes(1));
  engine_->FinishTune(TuneResult());
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(MetricOf(R"(voxserve_plan_info{device="cpu",model="fake",source="tuned"})"), 1);
  EXPECT_EQ(MetricOf(R"(voxserve_plan_info{device="cpu",model="fake",source="default"})"), 1) << "version 1's";
}

TEST_F(AdminServiceTest, LoadsAndUnloadsPassThrough) {
  StartAdmin();
  int64_t num_calls = 0;
  for (const bool loads : {true, false}) {
    auto answer = Call(loads, "fake", 7);
    ASSERT_TRUE(engine_->AwaitModelCalls(++num_calls));
    const FakeEngine::ModelCall call = engine_->last_model_call();
    EXPECT_EQ(call.loads, loads);
    EXPECT_EQ(call.model, "fake");
    EXPECT_EQ(call.version, 7);
    call.done(std::vector<int64_t>{2, 7});
    const ModelAnswer got = answer.get();
    EXPECT_TRUE(got.status.ok()) << got.status.error_message();
    EXPECT_THAT(got.versions, testing::ElementsAre(2, 7));
  }
}

TEST_F(AdminServiceTest, ErrorsOfLoadsKeepCodeReasonAndEveryProblem) {
  StartAdmin();
  int64_t num_calls = 0;
  for (const bool loads : {true, false}) {
    for (const absl::Status& error : {absl::FailedPreconditionError("2 problems: a; b"), absl::NotFoundError("no"),
                                      absl::InvalidArgumentError("odd"), absl::ResourceExhaustedError("memory")}) {
      auto answer = Call(loads, "", -1);
      ASSERT_TRUE(engine_->AwaitModelCalls(++num_calls));
      engine_->last_model_call().done(WithReason(error, "WHY"));
      const ModelAnswer got = answer.get();
      EXPECT_EQ(static_cast<int>(got.status.error_code()), static_cast<int>(error.code()));
      EXPECT_EQ(got.status.error_message(), error.message());
      EXPECT_EQ(ReasonOf(got.status), "WHY");
      EXPECT_THAT(got.versions, testing::IsEmpty());
    }
  }
}

TEST_F(AdminServiceTest, ALoadOutlivesItsCallAndItsAnswerIsDropped) {
  StartAdmin();
  grpc::ClientContext context;
  auto answer = Call(true, "fake", 0, &context);
  ASSERT_TRUE(engine_->AwaitModelCalls(1));
  context.TryCancel();
  EXPECT_EQ(answer.get().status.error_code(), StatusCode::CANCELLED);
  engine_->last_model_call().done(std::vector<int64_t>{1});
  auto next = Call(false, "fake");
  ASSERT_TRUE(engine_->AwaitModelCalls(2));
  engine_->last_model_call().done(std::vector<int64_t>{1});
  EXPECT_TRUE(next.get().status.ok());
}

TEST_F(AdminServiceTest, DrainingEndsLoads) {
  StartAdmin({.pause = FakeEngine::Pause::kBeforeStart});
  AsyncInfer accepted(client_.get(), RequestOf("fake", 3));
  ASSERT_TRUE(engine_->AwaitWaiting(1));
  auto under_way = Call(true, "fake");
  ASSERT_TRUE(engine_->AwaitModelCalls(1));
  std::thread drain([this] { EXPECT_TRUE(server_->Drain(absl::Seconds(30)).ok()); });
  const ModelAnswer ended = under_way.get();
  EXPECT_EQ(ended.status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(ended.status), "DRAINING");
  for (const bool loads : {true, false}) {
    const ModelAnswer got = Call(loads, "fake").get();
    EXPECT_EQ(got.status.error_code(), StatusCode::UNAVAILABLE);
    EXPECT_EQ(ReasonOf(got.status), "DRAINING");
  }
  // The call has already been answered with DRAINING, so this result is dropped.
  engine_->last_model_call().done(std::vector<int64_t>{1});
  engine_->Resume();
  EXPECT_TRUE(accepted.Wait().ok());
  drain.join();
}

TEST_F(AdminServiceTest, EachModelHasAHealthOfItsOwn) {
  using grpc::health::v1::HealthCheckResponse;
  StartAdmin();
  EXPECT_EQ(client_->Health("voxserve.model.fake"), HealthCheckResponse::SERVING);
  EXPECT_EQ(client_->Health("voxserve.model.broken"), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(client_->Health("voxserve.model.nobody"), HealthCheckResponse::UNKNOWN);
}

TEST_F(AdminServiceTest, TheOtherPortSaysWhereTheServiceIs) {
  Start();
  grpc::ClientContext context;
  v1::LoadModelResponse response;
  const grpc::Status status =
      v1::AdminService::NewStub(client_->channel)->LoadModel(&context, v1::LoadModelRequest(), &response);
  EXPECT_EQ(status.error_code(), StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), testing::HasSubstr("AdminService is not on this port"));
  EXPECT_THAT(status.error_message(), testing::HasSubstr("--admin_port"));
}

TEST_F(AdminServiceTest, ThePortServesHealthAndNoInference) {
  Start();
  AwaitReady();
  EXPECT_EQ(admin_client_->Health(), grpc::health::v1::HealthCheckResponse::SERVING);
  v1::InferResponse response;
  EXPECT_EQ(admin_client_->Infer(RequestOf("fake", 10), &response).error_code(), StatusCode::UNIMPLEMENTED);
}

}  // namespace
}  // namespace voxserve::admin_service_test
