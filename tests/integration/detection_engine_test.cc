// Tests the boxes that clients get through a real gRPC server from the real engine, against boxes computed by hand for
// a small network.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/engine_server.h"
#include "tests/integration/vehicle.h"

namespace voxserve::detection_engine_test {
namespace {

using grpc::StatusCode;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kIgnored = 255;

// Returns a model that makes a car from each point that is alone in its square metre. The car is 4 x 2 x 1.5 m large.
// It stands in the middle of the square, at the point's height. Its score is sigmoid(10 * intensity - 5), and its speed
// along x is the point's age in seconds. The range is -16 to 16 m in x and y and -4 to 4 m in z.
support::TestModel SquareModel() {
  support::TestModel model;
  model.graph = R"(name: "squares"
nodes {
  name: "voxels"
  voxelize {
    voxel_size: [1, 1, 8]
    rounding: ROUNDING_FLOOR
    origin: ORIGIN_RANGE
    range_min: [-16, -16, -4]
    range_max: [16, 16, 4]
    reduce: REDUCE_FIRST
    features { name: "z" unit: "m" }
    features { name: "intensity" unit: "1" }
    features { name: "age" unit: "s" default_value: 0 }
  }
}
nodes { name: "bev" inputs: ["voxels"] to_bev {} }
nodes { name: "heatmap" inputs: ["bev"] linear { out_channels: 1 bias: true } }
nodes { name: "center" inputs: ["bev"] linear { out_channels: 2 bias: true } }
nodes { name: "height" inputs: ["bev"] linear { out_channels: 1 } }
nodes { name: "dim" inputs: ["bev"] linear { out_channels: 3 bias: true } }
nodes { name: "rot" inputs: ["bev"] linear { out_channels: 2 bias: true } }
nodes { name: "vel" inputs: ["bev"] linear { out_channels: 2 } }
nodes {
  name: "found"
  inputs: ["heatmap", "center", "height", "dim", "rot", "vel"]
  center_head_decode {
    convention: CONVENTION_OPENPCDET
    class_ids: [1]
    stride: 1
    score_threshold: 0.5
    max_boxes: 8
    has_velocity: true
  }
}
nodes { name: "kept" inputs: ["found"] nms { iou_threshold: 0.1 max_boxes_out: 8 } }
outputs { kind: KIND_BOXES node: "kept" }
)";
  model.weights = {
      {"heatmap.weight", support::FloatTensor({1, 3}, {0, 10, 0})},
      {"heatmap.bias", support::FloatTensor({1}, {-5})},
      {"center.weight", support::FloatTensor({2, 3}, {0, 0, 0, 0, 0, 0})},
      {"center.bias", support::FloatTensor({2}, {0.5f, 0.5f})},
      {"height.weight", support::FloatTensor({1, 3}, {1, 0, 0})},
      {"dim.weight", support::FloatTensor({3, 3}, {0, 0, 0, 0, 0, 0, 0, 0, 0})},
      {"dim.bias", support::FloatTensor({3}, {std::log(4.0f), std::log(2.0f), std::log(1.5f)})},
      {"rot.weight", support::FloatTensor({2, 3}, {0, 0, 0, 0, 0, 0})},
      {"rot.bias", support::FloatTensor({2}, {1, 0})},
      {"vel.weight", support::FloatTensor({2, 3}, {0, 0, 1, 0, 0, 0})},
  };
  model.config = "classes { id: 1 name: \"car\" }";
  return model;
}

// Returns SquareModel with a second output, a label for each point: 0 below z = 0.5 m, else 1.
support::TestModel LabellingSquareModel() {
  support::TestModel model = SquareModel();
  model.graph += R"(
nodes { name: "classes" inputs: ["voxels"] linear { out_channels: 2 bias: true } }
nodes { name: "best" inputs: ["classes"] argmax {} }
nodes { name: "labels" inputs: ["best", "voxels"] voxel_to_point {} }
nodes { name: "scores" inputs: ["classes", "voxels"] voxel_to_point {} }
outputs { kind: KIND_LABELS node: "labels" }
outputs { kind: KIND_SCORES node: "scores" }
)";
  model.weights["classes.weight"] = support::FloatTensor({2, 3}, {0, 0, 0, 1, 0, 0});
  model.weights["classes.bias"] = support::FloatTensor({2}, {0.5f, 0});
  return model;
}

// ThreeCars returns a request with two cars far apart, a third one between them, and a point that is no car because its
// score is low. The cars are in descending order of their scores.
constexpr float kHigh = 0.9f, kMiddle = 0.8f, kLow = 0.7f;
v1::InferRequest ThreeCars() {
  return Request("squares", {-12.5f, 0.5f, 1, kHigh,   //
                             12.5f, 0.5f, 2, kMiddle,  //
                             0.5f, 0.5f, -1, kLow,     //
                             0.5f, 8.5f, 0, 0.1f});
}

float Sigmoid(float logit) { return 1 / (1 + std::exp(-logit)); }

void ExpectCar(const v1::Box& box, float x, float y, float z, float intensity, float velocity_x = 0) {
  EXPECT_EQ(box.class_id(), 1u);
  EXPECT_EQ(box.class_name(), "car");
  EXPECT_NEAR(box.score(), Sigmoid(10 * intensity - 5), 1e-5);
  const float values[] = {box.x(),      box.y(),   box.z(),          box.length(),    box.width(),
                          box.height(), box.yaw(), box.velocity_x(), box.velocity_y()};
  const float expected[] = {x, y, z, 4, 2, 1.5f, 0, velocity_x, 0};
  for (size_t i = 0; i < std::size(values); ++i) EXPECT_NEAR(values[i], expected[i], 1e-5) << i;
}

void ExpectThreeCars(const v1::Detections& found) {
  ASSERT_EQ(found.boxes_size(), 3);
  ExpectCar(found.boxes(0), -12.5f, 0.5f, 1, kHigh);
  ExpectCar(found.boxes(1), 12.5f, 0.5f, 2, kMiddle);
  ExpectCar(found.boxes(2), 0.5f, 0.5f, -1, kLow);
}

class DetectionEngineTest : public EngineServerTest {
 protected:
  void StartWith(const support::TestModel& model) {
    model.WriteTo(folder_.path() / "squares");
    Start(folder_.path().string());
  }
};

TEST_F(DetectionEngineTest, TensorsStandBesideBoxesAndLabelsWhereTheyAreNamed) {
  support::TestModel model = LabellingSquareModel();
  model.graph += "outputs { kind: KIND_TENSOR node: \"heatmap\" name: \"heat\" }\n";
  model.graph += "outputs { kind: KIND_TENSOR node: \"scores\" name: \"logits\" }\n";
  StartWith(model);
  EXPECT_EQ(InferOk(ThreeCars()).tensors_size(), 0) << "none is named";
  v1::InferRequest request = ThreeCars();
  request.set_return_scores(true);
  request.add_outputs("logits");
  request.add_outputs("heat");
  const v1::InferResponse response = InferOk(request);
  ExpectThreeCars(response.detections());
  EXPECT_THAT(Labels(response), ElementsAre(1, 1, 0, 0));
  ASSERT_EQ(response.tensors_size(), 2);
  const v1::Tensor& heat = response.tensors(0);
  EXPECT_EQ(heat.name(), "heat");
  EXPECT_EQ(heat.rows(), v1::TENSOR_ROWS_CELLS);
  EXPECT_THAT(heat.shape(), ElementsAre(32, 32, 1));
  std::vector<float> expected(32 * 32, -5);
  const auto at = [&expected](size_t row, size_t column) -> float& { return expected[row * 32 + column]; };
  at(16, 3) = 10 * kHigh - 5;
  at(16, 28) = 10 * kMiddle - 5;
  at(16, 16) = 10 * kLow - 5;
  at(24, 16) = 10 * 0.1f - 5;
  std::vector<float> values(heat.data().size() / sizeof(float));
  std::memcpy(values.data(), heat.data().data(), heat.data().size());
  EXPECT_THAT(values, ::testing::Pointwise(::testing::FloatNear(1e-5f), expected));
  const v1::Tensor& logits = response.tensors(1);
  EXPECT_EQ(logits.rows(), v1::TENSOR_ROWS_POINTS);
  EXPECT_EQ(logits.data(), response.segmentation().scores());
}

TEST_F(DetectionEngineTest, FindsWhatTheNetworkSays) {
  StartWith(SquareModel());
  const v1::InferResponse response = InferOk(ThreeCars());
  ExpectThreeCars(response.detections());
  EXPECT_FALSE(response.has_segmentation());
  EXPECT_EQ(response.counts().used(), 4u);
  EXPECT_EQ(response.device(), "cpu");
  EXPECT_EQ(MetricOf(R"(voxserve_boxes_total{model="squares"})"), 3);
}

TEST_F(DetectionEngineTest, OfOverlappingBoxesTheBestStays) {
  StartWith(SquareModel());
  const v1::InferResponse response = InferOk(Request("squares", {3.5f, 0.5f, 0, kLow, 4.5f, 0.5f, 0, kHigh}));
  ASSERT_EQ(response.detections().boxes_size(), 1);
  ExpectCar(response.detections().boxes(0), 4.5f, 0.5f, 0, kHigh);
}

TEST_F(DetectionEngineTest, PointsThatAreNoneMakeNoBoxes) {
  StartWith(SquareModel());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const v1::InferRequest nothing = Request("squares", {nan, nan, nan, nan, nan, nan, nan, nan, 0.5f, nan, 0, kHigh,  //
                                                       0.5f, 0.5f, 0, nan});
  v1::InferResponse response = InferOk(nothing);
  EXPECT_TRUE(response.has_detections());
  EXPECT_EQ(response.detections().boxes_size(), 0);
  EXPECT_EQ(response.counts().invalid(), 4u);
  EXPECT_EQ(response.counts().used(), 0u);
  EXPECT_EQ(response.counts().voxels(), 0u);
  EXPECT_EQ(MetricOf(R"(voxserve_boxes_total{model="squares"})"), 0);

  Vehicle vehicle(client_.get(), StreamConfigOf("squares", v1::STREAM_POLICY_QUEUE));
  for (uint64_t id = 1; id <= 2; ++id) {
    v1::StreamFrame frame;
    frame.set_frame_id(id);
    *frame.mutable_cloud() = (id == 1 ? nothing : ThreeCars()).cloud();
    ASSERT_TRUE(vehicle.Send(frame));
  }
  ASSERT_TRUE(vehicle.AwaitResults(2));
  EXPECT_EQ(Vehicle::OutcomeOf(vehicle.results()[0]), "OK");
  EXPECT_TRUE(vehicle.results()[0].response().has_detections());
  EXPECT_EQ(vehicle.results()[0].response().detections().boxes_size(), 0);
  ExpectThreeCars(vehicle.results()[1].response().detections());
}

TEST_F(DetectionEngineTest, ANetworkWhoseEmptyImageIsFullOfBoxesFindsNoneInNothing) {
  support::TestModel model = SquareModel();
  model.weights["heatmap.bias"] = support::FloatTensor({1}, {5});
  StartWith(model);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(InferOk(Request("squares", {nan, 0, 0, 0})).detections().boxes_size(), 0);
  EXPECT_GT(InferOk(Request("squares", {0.5f, 0.5f, 0, 0})).detections().boxes_size(), 1) << "but with one point";
}

TEST_F(DetectionEngineTest, ASampleToReturnChangesNoBox) {
  StartWith(SquareModel());
  v1::InferRequest request = ThreeCars();
  request.mutable_sample()->set_num_points(2);
  request.mutable_sample()->set_use(v1::FarthestPointSample::USE_RETURN);
  const v1::InferResponse response = InferOk(request);
  EXPECT_THAT(response.sampled_points(), ElementsAre(0, 1));
  ExpectThreeCars(response.detections());
  EXPECT_EQ(response.counts().unsampled(), 0u);
}

TEST_F(DetectionEngineTest, ASampleForTheNetworkHasItsBoxesAlone) {
  StartWith(SquareModel());
  v1::InferRequest request = ThreeCars();
  request.mutable_sample()->set_num_points(2);
  request.mutable_sample()->set_use(v1::FarthestPointSample::USE_NETWORK);
  const v1::InferResponse response = InferOk(request);
  EXPECT_THAT(response.sampled_points(), ElementsAre(0, 1));
  ASSERT_EQ(response.detections().boxes_size(), 2);
  ExpectCar(response.detections().boxes(0), -12.5f, 0.5f, 1, kHigh);
  ExpectCar(response.detections().boxes(1), 12.5f, 0.5f, 2, kMiddle);
  EXPECT_EQ(response.counts().used(), 2u);
  EXPECT_EQ(response.counts().unsampled(), 2u);
}

TEST_F(DetectionEngineTest, ASampleThatCannotBeIsRefused) {
  StartWith(SquareModel());
  v1::InferRequest request = ThreeCars();
  request.mutable_sample()->set_num_points(5);
  EXPECT_EQ(ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "BAD_SAMPLE"),
            "sample.num_points is 5; the cloud has 4 points");
}

TEST_F(DetectionEngineTest, AModelMayHaveLabelsAndBoxes) {
  StartWith(LabellingSquareModel());
  v1::InferRequest request = ThreeCars();
  v1::InferResponse response = InferOk(request);
  EXPECT_THAT(Labels(response), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(response.segmentation().scores(), IsEmpty());
  ExpectThreeCars(response.detections());

  request.set_return_scores(true);
  response = InferOk(request);
  EXPECT_EQ(response.segmentation().scores().size(), 4 * 2 * sizeof(float));
  ExpectThreeCars(response.detections());

  request = Request("squares", {std::nanf(""), 0, 0, 0});
  response = InferOk(request);
  EXPECT_THAT(Labels(response), ElementsAre(kIgnored));
  EXPECT_TRUE(response.has_detections());
  EXPECT_EQ(response.detections().boxes_size(), 0);

  grpc::ClientContext context;
  v1::GetModelRequest get;
  get.set_model("squares");
  v1::GetModelResponse model;
  ASSERT_TRUE(client_->inference->GetModel(&context, get, &model).ok());
  EXPECT_TRUE(model.model().has_labels());
  EXPECT_TRUE(model.model().has_scores());
  EXPECT_TRUE(model.model().has_boxes());
  EXPECT_TRUE(model.model().has_velocities());
  EXPECT_EQ(model.model().max_voxels(), 0u);
  EXPECT_EQ(model.model().voxel_overflow(), v1::VOXEL_OVERFLOW_REJECT);
  EXPECT_EQ(model.model().max_message_bytes(), uint64_t{64} << 20);
  ASSERT_EQ(model.model().reach().distance_size(), 3);
  EXPECT_TRUE(std::isinf(model.model().reach().distance(0))) << "boxes compete";
  EXPECT_NE(model.model().reach().unbounded_by(), "");
}

TEST_F(DetectionEngineTest, AFrameMayHaveLabelsAndBoxes) {
  StartWith(LabellingSquareModel());
  Vehicle vehicle(client_.get(), StreamConfigOf("squares"));
  v1::StreamFrame frame;
  *frame.mutable_cloud() = ThreeCars().cloud();
  ASSERT_TRUE(vehicle.Send(frame));
  ASSERT_TRUE(vehicle.AwaitResults(1));
  const v1::InferResponse response = vehicle.results()[0].response();
  EXPECT_THAT(Labels(response), ElementsAre(1, 1, 0, 0));
  ExpectThreeCars(response.detections());
}

// Each frame holds one car that stands still. From one frame to the next, half a second passes and the sensor moves by
// two metres.
TEST_F(DetectionEngineTest, BoxesAreOfAllSweepsInTheNewestOnesCoordinates) {
  StartWith(LabellingSquareModel());
  v1::StreamConfig config = StreamConfigOf("squares", v1::STREAM_POLICY_QUEUE);
  config.mutable_sweeps()->set_num_sweeps(2);
  config.mutable_sweeps()->set_age_feature("age");
  Vehicle vehicle(client_.get(), config);
  const float cars[][2] = {{9.5f, kLow}, {-9.5f, kHigh}, {0.5f, kMiddle}};  // x, intensity
  for (int i = 0; i < 3; ++i) {
    v1::StreamFrame frame;
    frame.set_frame_id(static_cast<uint64_t>(i));
    *frame.mutable_cloud() = Request("", {cars[i][0], 0.5f, 1, cars[i][1]}).cloud();
    frame.mutable_cloud()->mutable_stamp()->set_seconds(1'700'000'000 + i / 2);
    frame.mutable_cloud()->mutable_stamp()->set_nanos(i % 2 * 500'000'000);
    frame.mutable_pose()->set_qw(1);
    frame.mutable_pose()->set_x(2 * i);
    ASSERT_TRUE(vehicle.Send(frame));
  }
  ASSERT_TRUE(vehicle.AwaitResults(3));
  const std::vector<v1::FrameResult> results = vehicle.results();
  for (const v1::FrameResult& result : results) {
    ASSERT_EQ(Vehicle::OutcomeOf(result), "OK");
    EXPECT_THAT(Labels(result.response()), ElementsAre(1)) << "of the newest frame's point alone";
  }
  EXPECT_EQ(results[0].num_sweeps(), 1u);
  ASSERT_EQ(results[0].response().detections().boxes_size(), 1);
  ExpectCar(results[0].response().detections().boxes(0), 9.5f, 0.5f, 1, kLow);

  EXPECT_EQ(results[1].num_sweeps(), 2u);
  EXPECT_EQ(results[1].response().counts().used(), 2u);
  const v1::Detections& second = results[1].response().detections();
  ASSERT_EQ(second.boxes_size(), 2);
  ExpectCar(second.boxes(0), -9.5f, 0.5f, 1, kHigh);
  ExpectCar(second.boxes(1), 7.5f, 0.5f, 1, kLow, 0.5f);

  const v1::Detections& third = results[2].response().detections();
  ASSERT_EQ(third.boxes_size(), 2) << "the first frame is out of the two";
  ExpectCar(third.boxes(0), -11.5f, 0.5f, 1, kHigh, 0.5f);
  ExpectCar(third.boxes(1), 0.5f, 0.5f, 1, kMiddle);
}

}  // namespace
}  // namespace voxserve::detection_engine_test
