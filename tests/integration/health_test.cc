// Tests health over gRPC (Check and Watch) and over HTTP, from the server's start until its end.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/fake_server.h"

namespace voxserve::health_test {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using testing::HasSubstr;

using HealthTest = FakeServerTest;

constexpr char kService[] = "voxserve.v1.InferenceService";

TEST_F(HealthTest, LoadingIsAliveAndNotReady) {
  Start({.loading = true});
  EXPECT_EQ(Get("/healthz").first, 200);
  EXPECT_EQ(Get("/readyz"), std::make_pair(503, std::string("loading models\n")));
  EXPECT_THAT(Get("/").second, HasSubstr("loading models"));
  EXPECT_EQ(client_->Health(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(client_->Health(kService), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(MetricOf(R"(voxserve_model_ready{model="fake",version="2"})"), 0);

  v1::InferResponse response;
  const grpc::Status status = client_->Infer(RequestOf("fake", 1), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(status), "MODEL_LOADING");

  engine_->FinishLoading();
  AwaitReady();
  EXPECT_EQ(client_->Health(), HealthCheckResponse::SERVING);
  EXPECT_EQ(client_->Health(kService), HealthCheckResponse::SERVING);
  EXPECT_EQ(MetricOf(R"(voxserve_model_ready{model="fake",version="2"})"), 1);
}

TEST_F(HealthTest, OtherServicesAreUnknown) {
  Start();
  grpc::ClientContext context;
  HealthCheckRequest request;
  request.set_service("voxserve.v1.Nothing");
  HealthCheckResponse response;
  EXPECT_EQ(client_->health->Check(&context, request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(HealthTest, AsManyVehiclesOfAnAddressMayWatchAsMayStream) {
  constexpr int kVehicles = 100;
  Options options;
  options.max_client_streams = kVehicles;
  Start({}, options);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<HealthCheckResponse>>> watches;
  HealthCheckResponse response;
  for (int i = 0; i < kVehicles; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    watches.push_back(client_->health->Watch(contexts.back().get(), HealthCheckRequest()));
    ASSERT_TRUE(watches.back()->Read(&response)) << i;
  }
  grpc::ClientContext context;
  const auto further = client_->health->Watch(&context, HealthCheckRequest());
  EXPECT_FALSE(further->Read(&response));
  EXPECT_EQ(ReasonOf(further->Finish()), "CLIENT_LIMIT");
  for (const auto& each : contexts) each->TryCancel();
}

TEST_F(HealthTest, WatchSeesEveryTransition) {
  Start({.loading = true});
  for (const char* service : {"", kService}) {
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    const auto stream = client_->health->Watch(&context, request);
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
    context.TryCancel();
    stream->Finish();
  }

  grpc::ClientContext context;
  HealthCheckRequest request;
  HealthCheckResponse response;
  const auto stream = client_->health->Watch(&context, request);
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  engine_->FinishLoading();
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  std::thread drain([this] { EXPECT_TRUE(server_->Drain(absl::Seconds(30)).ok()); });
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  EXPECT_FALSE(stream->Read(&response)) << "an open Watch does not hold the server up";
  drain.join();
}

}  // namespace
}  // namespace voxserve::health_test
