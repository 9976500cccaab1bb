// Tests the demonstration network through a real gRPC server: requests that wait behind it, and the metrics of its
// work.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/serving/engine.h"
#include "tests/integration/raw_tcp.h"
#include "tests/integration/server_test.h"
#include "tests/support/model_folder.h"
#include "tests/support/paths.h"
#include "voxserve/v1/admin.grpc.pb.h"

namespace voxserve::minkunet_service_test {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

// The network takes more than a second for these points on one thread. Meanwhile other requests arrive and wait, even
// on a machine that stalls for some hundred milliseconds.
constexpr int kManyPoints = 100'000;
constexpr int64_t kManyBytes = int64_t{kManyPoints} * 16;

// Serves two models: minkunet, whose requests do not share a batch, and one that takes hardly any time. Each has a
// queue depth of its own. One worker serves both in the order of arrival.
class MinkunetServiceTest : public ServerTest {
 protected:
  void Start(Engine::Options options = {}, const Options& server_options = {}, bool with_small_model = true) {
    std::filesystem::create_directory(folder_.path() / "minkunet");
    std::filesystem::create_directory_symlink(support::SourceDir() + "/deploy/models/minkunet/1",
                                              folder_.path() / "minkunet" / "1");
    std::ofstream(folder_.path() / "minkunet" / "config.textproto") << "batching { max_batch_requests: 1 }";
    if (with_small_model) support::SmallModel().WriteTo(folder_.path() / "small");
    options.model_repository = folder_.path().string();
    options.num_threads = 1;
    ASSERT_NO_FATAL_FAILURE(StartServer(server_options, [&](EngineObserver* observer, MemoryBudget* memory_budget) {
      options.observer = observer;
      options.memory_budget = memory_budget;
      return Engine::Create(options);
    }));
    AwaitReady();
  }

  std::unique_ptr<AsyncInfer> Send(const std::string& model, int num_points,
                                   absl::Duration timeout = absl::Minutes(2)) {
    return std::make_unique<AsyncInfer>(client_.get(), RequestOf(model, num_points), timeout);
  }

  // Sends three large requests and waits until two are in the queue. So a later request waits at least until two of
  // them have ended. (If one were in the queue, the worker could be about to take it, and nothing would wait behind
  // it.)
  void KeepBusy() {
    for (std::unique_ptr<AsyncInfer>& call : busy_) call = Send("minkunet", kManyPoints);
    ASSERT_TRUE(AwaitMetric(R"(voxserve_queue_depth{model="minkunet"})", 2));
  }

  void ExpectBusyWorkIsAnswered() {
    for (const std::unique_ptr<AsyncInfer>& call : busy_) {
      EXPECT_TRUE(call->Wait().ok()) << call->Wait().error_message();
      EXPECT_EQ(call->response().segmentation().labels().size(), static_cast<size_t>(kManyPoints));
    }
  }

  // Expects that the small model's request left the queue for this reason without having run.
  void ExpectSmallModelNeverRan(const std::string& reason) {
    EXPECT_TRUE(AwaitMetric(absl::StrCat(R"(voxserve_frames_dropped_total{model="small",reason=")", reason, "\"}"), 1));
    EXPECT_EQ(MetricOf(R"(voxserve_queue_depth{model="small"})"), 0);
    ExpectBusyWorkIsAnswered();
    v1::InferResponse response;
    EXPECT_TRUE(client_->Infer(RequestOf("small", 10), &response).ok()) << "the server lives";
    EXPECT_EQ(MetricOf(R"(voxserve_batch_requests_count{model="small"})"), 1) << "the last request alone";
  }

  // Sends more requests at once than may run and wait. Expects that the others are refused with `text`, which has the
  // queue's size and its limit.
  void ExpectQueueFull(const std::string& text) {
    std::vector<std::unique_ptr<AsyncInfer>> calls;
    for (int i = 0; i < 6; ++i) calls.push_back(Send("minkunet", kManyPoints));
    int num_refused = 0;
    for (const std::unique_ptr<AsyncInfer>& call : calls) {
      const grpc::Status& status = call->Wait();
      if (status.ok()) continue;
      ++num_refused;
      EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
      EXPECT_EQ(ReasonOf(status), "QUEUE_FULL");
      EXPECT_THAT(status.error_message(), HasSubstr(text));
      EXPECT_LT(RetryDelayOf(status), absl::Minutes(1));
      EXPECT_EQ(call->context().GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1u);
    }
    EXPECT_GE(num_refused, 1);
    EXPECT_LE(num_refused, 5) << "the first one runs";
    EXPECT_EQ(MetricOf(R"(voxserve_frames_dropped_total{model="minkunet",reason="queue_full"})"), num_refused);
    EXPECT_EQ(MetricOf(R"(voxserve_frames_total{model="minkunet"})"), 6 - num_refused);
  }

  support::TemporaryFolder folder_;
  std::unique_ptr<AsyncInfer> busy_[3];
};

TEST_F(MinkunetServiceTest, AQueueFullOfRequestsSaysWhenToTryAgain) {
  Start({.max_queue_requests = 1});
  ExpectQueueFull("1 requests waiting, limit 1");
}

TEST_F(MinkunetServiceTest, AQueueFullOfBytesSaysWhenToTryAgain) {
  Start({.max_queue_bytes = kManyBytes * 3 / 2});
  ExpectQueueFull(absl::StrCat(kManyBytes, " bytes waiting, limit ", kManyBytes * 3 / 2));
}

TEST_F(MinkunetServiceTest, AModelThatIsLoadedLaterHasAQueueOfItsOwn) {
  constexpr int kQueue = 20;
  Options options;
  options.max_queue_requests = kQueue;
  Start({.max_queue_requests = kQueue}, options, /*with_small_model=*/false);
  EXPECT_EQ(ReasonOf(Send("small", 10)->Wait()), "MODEL_NOT_FOUND");
  support::SmallModel().WriteTo(folder_.path() / "small");
  grpc::ClientContext context;
  v1::LoadModelRequest request;
  request.set_model("small");
  v1::LoadModelResponse loaded;
  ASSERT_TRUE(v1::AdminService::NewStub(admin_client_->channel)->LoadModel(&context, request, &loaded).ok());

  ASSERT_NO_FATAL_FAILURE(KeepBusy());  // Two of the large requests wait in minkunet's queue.
  std::vector<std::unique_ptr<AsyncInfer>> calls;
  for (int i = 0; i < kQueue; ++i) {
    calls.push_back(Send("small", 10));
    if (i > 1) calls.push_back(Send("minkunet", 10));
  }
  ASSERT_TRUE(AwaitMetric(R"(voxserve_queue_depth{model="small"})", kQueue));
  ASSERT_TRUE(AwaitMetric(R"(voxserve_queue_depth{model="minkunet"})", kQueue));
  for (const std::string model : {"small", "minkunet"}) {
    const std::unique_ptr<AsyncInfer> beyond = Send(model, 10);
    EXPECT_EQ(ReasonOf(beyond->Wait()), "QUEUE_FULL");
    EXPECT_THAT(beyond->Wait().error_message(), HasSubstr(absl::StrCat("queue of model \"", model, "\" is full")));
    EXPECT_EQ(MetricOf(absl::StrCat(R"(voxserve_refusal_duration_seconds_count{model=")", model, "\"}")), 1);
  }
  for (const std::unique_ptr<AsyncInfer>& call : calls) EXPECT_TRUE(call->Wait().ok()) << call->Wait().error_message();
  ExpectBusyWorkIsAnswered();
}

TEST_F(MinkunetServiceTest, ADeadlineThatPassesInTheQueue) {
  Start();
  ASSERT_NO_FATAL_FAILURE(KeepBusy());
  EXPECT_EQ(Send("small", 10, absl::Seconds(1))->Wait().error_code(), StatusCode::DEADLINE_EXCEEDED);
  ExpectSmallModelNeverRan("expired");
  EXPECT_EQ(MetricOf(R"(voxserve_requests_total{code="DEADLINE_EXCEEDED",model="small",version="_unknown"})"), 1);
}

TEST_F(MinkunetServiceTest, ACancelledTaskLeavesTheQueue) {
  Start();
  ASSERT_NO_FATAL_FAILURE(KeepBusy());
  const std::unique_ptr<AsyncInfer> call = Send("small", 10);
  ASSERT_TRUE(AwaitMetric(R"(voxserve_queue_depth{model="small"})", 1));
  call->Cancel();
  EXPECT_EQ(call->Wait().error_code(), StatusCode::CANCELLED);
  ExpectSmallModelNeverRan("cancelled");
  EXPECT_EQ(MetricOf(R"(voxserve_requests_total{code="CANCELLED",model="small",version="_unknown"})"), 1);
}

TEST_F(MinkunetServiceTest, ACutConnectionTakesItsTaskOutOfTheQueue) {
  Start();
  ASSERT_NO_FATAL_FAILURE(KeepBusy());
  TcpProxy proxy(server_->grpc_port());
  ServiceClient remote(proxy.port());
  AsyncInfer call(&remote, RequestOf("small", 10));
  ASSERT_TRUE(AwaitMetric(R"(voxserve_queue_depth{model="small"})", 1));
  proxy.Cut();
  EXPECT_EQ(call.Wait().error_code(), StatusCode::UNAVAILABLE);
  ExpectSmallModelNeverRan("cancelled");
}

TEST_F(MinkunetServiceTest, MetricsTellOfItsWork) {
  Start();
  v1::InferResponse response;
  const grpc::Status status = client_->Infer(RequestOf("minkunet", 2000), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(MetricOf(R"(voxserve_batch_requests_count{model="minkunet"})"), 1);
  EXPECT_EQ(MetricOf(R"(voxserve_batch_requests_sum{model="minkunet"})"), 1);
  EXPECT_EQ(MetricOf(R"(voxserve_batch_points_sum{model="minkunet"})"), 2000);
  EXPECT_GT(response.counts().voxels(), 0u);
  EXPECT_EQ(MetricOf(R"(voxserve_batch_voxels_sum{model="minkunet"})"), response.counts().voxels());
  EXPECT_EQ(MetricOf(R"(voxserve_points_total{fate="used",model="minkunet"})"), 2000);
  for (const char* stage : {"decode", "queue", "copy_in", "voxelize", "geometry", "features", "head", "encode"}) {
    EXPECT_EQ(MetricOf(absl::StrCat(R"(voxserve_stage_duration_seconds_count{model="minkunet",stage=")", stage, "\"}")),
              1)
        << stage;
  }
  // The worker for long requests ran it: no request has shown yet that one of this size is short.
  EXPECT_GT(MetricOf(R"(voxserve_device_busy_seconds_total{device="cpu",stream="1"})"), 0);
  EXPECT_GT(MetricOf(R"(voxserve_device_memory_bytes{device="cpu",kind="weights"})"), 1e6);  // a lower bound
  // The worker for short requests keeps the memory of its batches.
  const std::string busy = R"(voxserve_device_busy_seconds_total{device="cpu",stream="0"})";
  for (int i = 0; i < 20 && MetricOf(busy) <= 0; ++i) {
    ASSERT_TRUE(client_->Infer(RequestOf("minkunet", 100), &response).ok());
  }
  EXPECT_GT(MetricOf(busy), 0);
  EXPECT_GT(MetricOf(R"(voxserve_device_memory_bytes{device="cpu",kind="batches"})"), 100 * 16);
  EXPECT_EQ(MetricOf(R"(voxserve_plan_info{device="cpu",model="minkunet",source="default"})"), 1);
  EXPECT_EQ(MetricOf(R"(voxserve_plan_info{device="cpu",model="small",source="default"})"), 1);
}

TEST_F(MinkunetServiceTest, PointsBeyondTheKeysLimitsAreOutOfRange) {
  Start();
  v1::InferRequest request = RequestOf("minkunet", 1000);
  v1::InferResponse without;
  ASSERT_TRUE(client_->Infer(request, &without).ok());
  const float far[2][4] = {{1e9f, 0, 0, 0.5f}, {0, -1e9f, 0, 0.5f}};
  v1::PointCloud& cloud = *request.mutable_cloud();
  cloud.mutable_data()->append(reinterpret_cast<const char*>(far), sizeof(far));
  cloud.set_num_points(1002);
  v1::InferResponse response;
  const grpc::Status status = client_->Infer(request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.counts().out_of_range(), 2u);
  EXPECT_EQ(response.counts().used(), 1000u);
  EXPECT_EQ(response.segmentation().labels(), without.segmentation().labels() + "\xFF\xFF")
      << "the rest is labelled as if they were not there";
}

}  // namespace
}  // namespace voxserve::minkunet_service_test
