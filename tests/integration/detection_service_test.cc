// Tests what clients of a detection model get from a real gRPC server with a fake engine, whose work the test starts
// and ends.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/integration/infer_stream_fixture.h"

namespace voxserve::detection_service_test {
namespace {

using grpc::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;

class DetectionServiceTest : public InferStreamTest {
 protected:
  void StartWithBoxes() { Start({.has_boxes = true}); }
};

TEST_F(DetectionServiceTest, AnswersWithBoxesInPlaceOfLabels) {
  StartWithBoxes();
  v1::InferResponse response;
  const grpc::Status status = client_->Infer(RequestOf("fake", 4), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_FALSE(response.has_segmentation());
  ASSERT_EQ(response.detections().boxes_size(), 4);
  EXPECT_EQ(response.detections().boxes(0).class_name(), "car");
  EXPECT_EQ(response.detections().boxes(2).class_id(), 2u);
  EXPECT_EQ(response.detections().boxes(2).class_name(), "") << "the configuration names one class";
  EXPECT_EQ(response.detections().boxes(3).x(), 3);
  EXPECT_EQ(response.counts().used(), 4u);
  EXPECT_EQ(MetricOf(R"(voxserve_boxes_total{model="fake"})"), 4);
}

TEST_F(DetectionServiceTest, OfNoPointsThereAreNoBoxes) {
  StartWithBoxes();
  v1::InferResponse response;
  ASSERT_TRUE(client_->Infer(RequestOf("fake", 0), &response).ok());
  EXPECT_TRUE(response.has_detections());
  EXPECT_EQ(response.detections().boxes_size(), 0);
  EXPECT_FALSE(response.has_segmentation());
  EXPECT_EQ(MetricOf(R"(voxserve_boxes_total{model="fake"})"), 0);
}

TEST_F(DetectionServiceTest, HasNoScoresPerPoint) {
  StartWithBoxes();
  v1::InferRequest request = RequestOf("fake", 4);
  request.set_return_scores(true);
  v1::InferResponse response;
  const grpc::Status status = client_->Infer(request, &response);
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReasonOf(status), "UNSUPPORTED_OUTPUT");
  EXPECT_THAT(status.error_message(), HasSubstr("no scores per point to return; its boxes have their own"));
  EXPECT_EQ(engine_->num_started(), 0);
  v1::StreamConfig config = StreamConfigOf("fake");
  config.set_return_scores(true);
  ExpectRefused(config, StatusCode::INVALID_ARGUMENT, "UNSUPPORTED_OUTPUT", "no scores per point");
}

TEST_F(DetectionServiceTest, SaysSoOfTheModel) {
  StartWithBoxes();
  grpc::ClientContext context;
  v1::GetModelRequest request;
  request.set_model("fake");
  v1::GetModelResponse response;
  ASSERT_TRUE(client_->inference->GetModel(&context, request, &response).ok());
  EXPECT_FALSE(response.model().has_labels());
  EXPECT_FALSE(response.model().has_scores());
  EXPECT_TRUE(response.model().has_boxes());
  EXPECT_TRUE(response.model().has_velocities());
  EXPECT_THAT(Get("/").second, HasSubstr("boxes with velocities"));
}

TEST_F(DetectionServiceTest, EachFrameOfAStreamHasItsBoxes) {
  StartWithBoxes();
  Vehicle vehicle(client_.get(), StreamConfigOf("fake", v1::STREAM_POLICY_QUEUE));
  int64_t sum = 0;
  for (int64_t id = 0; id < 20; sum += id++) ASSERT_TRUE(vehicle.Send(static_cast<uint64_t>(id), id));
  vehicle.CloseSends();
  EXPECT_TRUE(vehicle.End().ok()) << vehicle.End().error_message();
  ASSERT_EQ(vehicle.results().size(), 20u);
  for (const v1::FrameResult& result : vehicle.results()) {
    EXPECT_TRUE(result.response().has_detections());
    EXPECT_FALSE(result.response().has_segmentation());
    EXPECT_EQ(result.response().detections().boxes_size(), static_cast<int>(result.frame_id()));
  }
  EXPECT_EQ(MetricOf(R"(voxserve_boxes_total{model="fake"})"), static_cast<double>(sum));
}

TEST_F(DetectionServiceTest, LatestFindsBoxesInTheNewestFrame) {
  Start({.pause = FakeEngine::Pause::kAfterStart, .has_boxes = true});
  Vehicle vehicle(client_.get(), StreamConfigOf("fake", v1::STREAM_POLICY_LATEST));
  ASSERT_TRUE(vehicle.Send(1, 1));
  ASSERT_TRUE(engine_->AwaitStarted(1));
  for (uint64_t frame = 2; frame <= 4; ++frame) ASSERT_TRUE(vehicle.Send(frame, static_cast<int64_t>(frame)));
  ASSERT_TRUE(vehicle.AwaitResults(2));
  EXPECT_THAT(vehicle.order(), ElementsAre(2, 3));
  for (const v1::FrameResult& result : vehicle.results()) {
    EXPECT_EQ(result.status().code(), static_cast<int>(StatusCode::ABORTED));
    EXPECT_EQ(Vehicle::OutcomeOf(result), "SUPERSEDED");
    EXPECT_FALSE(result.has_response());
  }
  engine_->Resume();
  ASSERT_TRUE(vehicle.AwaitResults(4));
  for (const size_t i : {2, 3}) {
    const v1::FrameResult result = vehicle.results()[i];
    EXPECT_EQ(Vehicle::OutcomeOf(result), "OK");
    EXPECT_FALSE(result.response().has_segmentation());
    EXPECT_EQ(result.response().detections().boxes_size(), static_cast<int>(result.frame_id()));
  }
  EXPECT_EQ(vehicle.results()[3].frame_id(), 4u);
  EXPECT_EQ(engine_->num_started(), 2);
  EXPECT_EQ(MetricOf(R"(voxserve_boxes_total{model="fake"})"), 1 + 4);
  EXPECT_EQ(MetricOf(R"(voxserve_frames_dropped_total{model="fake",reason="superseded"})"), 2);
}

TEST_F(DetectionServiceTest, BoxesBeyondTheMessageLimitAreRefused) {
  Options options;
  options.max_message_bytes = 1 << 20;
  Start({.has_boxes = true}, options);
  v1::InferResponse response;
  // The request has 0.96 MB, which is below the limit. The boxes of the response have more than the limit.
  const grpc::Status status = client_->Infer(RequestOf("fake", 60'000), &response);
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ReasonOf(status), "RESPONSE_TOO_LARGE");
  EXPECT_EQ(MetricOf(R"(voxserve_boxes_total{model="fake"})"), -1) << "none was answered";
  v1::InferResponse smaller;
  EXPECT_TRUE(client_->Infer(RequestOf("fake", 10), &smaller).ok());
}

}  // namespace
}  // namespace voxserve::detection_service_test
