// Tests the server's answers to bad input and to failures. A real gRPC server runs the real engine with a network that
// is small enough to compute by hand.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/engine/golden_scan.h"
#include "tests/integration/engine_server.h"
#include "tests/integration/vehicle.h"
#include "tests/support/paths.h"

namespace voxserve::engine_service_test {
namespace {

using grpc::StatusCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kIgnored = 255;

// Returns a model whose scores are {0.5, z, 10 * intensity - 1} for a point that is the only one in its voxel. The
// range is -16 to 16 m in x and y and -4 to 4 m in z. Voxels are 1 m wide.
support::TestModel HeightModel() {
  support::TestModel model;
  model.graph = R"(name: "height"
nodes {
  name: "voxels"
  voxelize {
    voxel_size: [1, 1, 1]
    rounding: ROUNDING_FLOOR
    origin: ORIGIN_RANGE
    range_min: [-16, -16, -4]
    range_max: [16, 16, 4]
    reduce: REDUCE_FIRST
    features { name: "z" unit: "m" }
    features { name: "intensity" unit: "1" default_value: 0.25 }
  }
}
nodes { name: "head" inputs: ["voxels"] linear { out_channels: 3 bias: true } }
nodes { name: "best" inputs: ["head"] argmax {} }
nodes { name: "labels" inputs: ["best", "voxels"] voxel_to_point {} }
nodes { name: "scores" inputs: ["head", "voxels"] voxel_to_point {} }
outputs { kind: KIND_LABELS node: "labels" }
outputs { kind: KIND_SCORES node: "scores" }
)";
  model.weights = {{"head.weight", support::FloatTensor({3, 2}, {0, 0, 1, 0, 0, 10})},
                   {"head.bias", support::FloatTensor({3}, {0.5f, 0, -1})}};
  return model;
}

int LabelOf(float z, float intensity) {
  const float scores[] = {0.5f, z, 10 * intensity - 1};
  return static_cast<int>(std::max_element(scores, scores + 3) - scores);
}

class EngineServiceTest : public EngineServerTest {
 protected:
  void StartWith(const support::TestModel& model) {
    model.WriteTo(folder_.path() / "height");
    Start(folder_.path().string());
  }
};

TEST_F(EngineServiceTest, LabelsWhatTheNetworkSays) {
  StartWith(HeightModel());
  v1::InferRequest request = Request("height", {0.5f, 0.5f, 2.5f, 0,    //
                                                -3.5f, 0.5f, -1, 0.1f,  //
                                                7.5f, 0.5f, 1, 0.9f});
  request.set_return_scores(true);
  const v1::InferResponse response = InferOk(request);
  EXPECT_THAT(Labels(response), ElementsAre(1, 0, 2));
  EXPECT_EQ(response.segmentation().num_classes(), 3u);
  ASSERT_EQ(response.segmentation().scores().size(), 9 * sizeof(float));
  float scores[9];
  std::memcpy(scores, response.segmentation().scores().data(), sizeof(scores));
  const float expected[] = {0.5f, 2.5f, -1, 0.5f, -1, 0, 0.5f, 1, 8};
  for (int i = 0; i < 9; ++i) EXPECT_NEAR(scores[i], expected[i], 1e-5) << i;
  EXPECT_EQ(response.counts().voxels(), 3u);
  EXPECT_EQ(response.device(), "cpu");
}

// A frame in parts has the same answer as its points in one frame, to the byte.
TEST_F(EngineServiceTest, AFrameInPartsHasTheAnswerOfTheWholeFrame) {
  StartWith(HeightModel());
  constexpr size_t kNumPoints = 5000;
  std::mt19937 random(3);
  std::uniform_real_distribution<float> coordinate(-18, 18), intensity(-0.1f, 1);
  std::vector<float> points;
  for (size_t i = 0; i < kNumPoints; ++i) {
    points.insert(points.end(), {coordinate(random), coordinate(random), coordinate(random) / 4, intensity(random)});
  }
  points[4 * 77] = std::numeric_limits<float>::quiet_NaN();
  points[4 * 4321 + 3] = std::numeric_limits<float>::infinity();
  v1::StreamConfig config = StreamConfigOf("height", v1::STREAM_POLICY_QUEUE);
  config.set_return_scores(true);
  Vehicle vehicle(client_.get(), config);
  v1::StreamFrame whole;
  whole.set_frame_id(1);
  *whole.mutable_cloud() = Request("height", points).cloud();
  whole.mutable_cloud()->mutable_fields(3)->set_scale(0.5);
  ASSERT_TRUE(vehicle.Send(whole));
  std::vector<uint32_t> order = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (uint64_t frame = 2; frame <= 4; ++frame) {
    size_t num_sent = 0;
    std::vector<size_t> borders = {0, kNumPoints};
    for (int i = 0; i < 9; ++i) borders.push_back(random() % kNumPoints);
    std::sort(borders.begin(), borders.end());
    for (const uint32_t index : order) {
      v1::FramePart part;
      part.set_frame_id(frame);
      part.set_index(index);
      part.set_is_last(index == 9);
      *part.mutable_cloud() = Request("height", {points.begin() + 4 * static_cast<int64_t>(borders[index]),
                                                 points.begin() + 4 * static_cast<int64_t>(borders[index + 1])})
                                  .cloud();
      part.mutable_cloud()->mutable_fields(3)->set_scale(0.5);
      if (num_sent++ > 0 && frame == 3) part.mutable_cloud()->clear_fields();
      ASSERT_TRUE(vehicle.Send(part));
    }
    std::shuffle(order.begin(), order.end(), random);
  }
  ASSERT_TRUE(vehicle.AwaitResults(4));
  const v1::InferResponse expected = vehicle.results()[0].response();
  EXPECT_EQ(expected.segmentation().labels().size(), kNumPoints);
  EXPECT_EQ(expected.counts().invalid(), 2u);
  EXPECT_GT(expected.counts().out_of_range(), 0u);
  for (const v1::FrameResult& result : vehicle.results()) {
    ASSERT_FALSE(result.has_status()) << result.status().message();
    EXPECT_EQ(result.response().segmentation().SerializeAsString(), expected.segmentation().SerializeAsString());
    EXPECT_EQ(result.response().counts().SerializeAsString(), expected.counts().SerializeAsString());
  }
}

TEST_F(EngineServiceTest, PointsWhoseLogitsOverflowGetTheIgnoreLabelAndAreCounted) {
  StartWith(HeightModel());
  v1::InferRequest request = Request("height", {0.5f, 0.5f, 2.5f, 0,     //
                                                -3.5f, 0.5f, -1, 1e38f,  // Ten times this intensity overflows a float.
                                                -3.5f, 0.6f, -1, 0.9f,   // This point is in the previous one's voxel.
                                                7.5f, 0.5f, 1, 0.9f});
  request.set_return_scores(true);
  const v1::InferResponse response = InferOk(request);
  EXPECT_THAT(Labels(response), ElementsAre(1, kIgnored, kIgnored, 2));
  EXPECT_EQ(response.counts().not_finite(), 2u);
  EXPECT_EQ(response.counts().used(), 4u);
  float scores[12];
  ASSERT_EQ(response.segmentation().scores().size(), sizeof(scores));
  std::memcpy(scores, response.segmentation().scores().data(), sizeof(scores));
  EXPECT_THAT(std::vector<float>(scores + 3, scores + 9), ::testing::Each(0));
  EXPECT_NEAR(scores[1], 2.5f, 1e-5f);
  EXPECT_NEAR(scores[11], 8, 1e-5f);
  EXPECT_THAT(Body("/metrics"), HasSubstr(R"(voxserve_points_not_finite_total{model="height"} 2)"));
}

TEST_F(EngineServiceTest, ValuesInAnotherUnitAreWarnedOf) {
  support::TestModel model = HeightModel();
  const std::string feature = "default_value: 0.25";
  model.graph.insert(model.graph.find(feature), "range { low: 0 high: 1 } ");
  StartWith(model);
  v1::InferRequest request = Request("height", {0.5f, 0.5f, 2.5f, 0, -3.5f, 0.5f, -1, 255, 7.5f, 0.5f, 1, 40});
  const v1::InferResponse response = InferOk(request);
  EXPECT_THAT(Labels(response), ElementsAre(1, 2, 2)) << "the network sees the values as they are";
  ASSERT_EQ(response.warnings_size(), 1);
  const v1::FeatureWarning& warning = response.warnings(0);
  EXPECT_EQ(warning.feature(), "intensity");
  EXPECT_EQ(warning.range().low(), 0);
  EXPECT_EQ(warning.range().high(), 1);
  EXPECT_EQ(warning.smallest(), 0);
  EXPECT_EQ(warning.largest(), 255);
  EXPECT_EQ(warning.num_checked(), 3u);
  EXPECT_EQ(warning.num_outside(), 2u);
  EXPECT_THAT(Body("/metrics"), HasSubstr(R"(voxserve_feature_warnings_total{feature="intensity",model="height"} 1)"));
  request.mutable_cloud()->mutable_fields(3)->set_scale(1.0 / 255);
  EXPECT_EQ(InferOk(request).warnings_size(), 0);

  // The newest frame of merged sweeps is looked at.
  v1::StreamConfig config = StreamConfigOf("height", v1::STREAM_POLICY_QUEUE);
  config.mutable_sweeps()->set_num_sweeps(2);
  Vehicle vehicle(client_.get(), config);
  for (uint64_t frame_id = 1; frame_id <= 2; ++frame_id) {
    v1::StreamFrame frame;
    frame.set_frame_id(frame_id);
    *frame.mutable_cloud() = request.cloud();
    frame.mutable_cloud()->mutable_fields(3)->set_scale(frame_id == 1 ? 1 : 1.0 / 255);
    frame.mutable_cloud()->mutable_stamp()->set_seconds(static_cast<int64_t>(frame_id));
    frame.mutable_pose()->set_qw(1);
    EXPECT_TRUE(vehicle.Send(frame));
  }
  vehicle.CloseSends();
  EXPECT_TRUE(vehicle.End().ok());
  for (const v1::FrameResult& result : vehicle.results()) {
    EXPECT_EQ(result.response().warnings_size(), result.frame_id() == 1 ? 1 : 0);
  }
  EXPECT_EQ(vehicle.results().size(), 2u);
}

// Returns a request of five points. Each point has a voxel of its own, except the fourth, which has no voxel.
v1::InferRequest FivePoints() {
  return Request("height", {0.5f,  0.5f, 1,  0, 3.5f, 0.5f, 2, 0, 7.5f, 0.5f, 3, 0, std::nanf(""), 0, 0, 0,  //
                            10.5f, 0.5f, -1, 0});
}

TEST_F(EngineServiceTest, ReturnsFarthestPoints) {
  StartWith(HeightModel());
  v1::InferRequest request = FivePoints();
  const std::vector<int> labels = Labels(InferOk(request));
  EXPECT_THAT(labels, ElementsAre(1, 1, 1, kIgnored, 0));
  request.mutable_sample()->set_num_points(3);
  v1::InferResponse response = InferOk(request);
  EXPECT_THAT(response.sampled_points(), ElementsAre(0, 4, 2));
  EXPECT_EQ(Labels(response), labels);
  EXPECT_EQ(response.counts().unsampled(), 0u);
  request.mutable_sample()->set_start_index(3);
  EXPECT_THAT(InferOk(request).sampled_points(), ElementsAre(4, 0, 2)) << "the next valid point starts";
  request.mutable_sample()->set_num_points(4);
  request.mutable_sample()->set_seed(~uint64_t{0});
  EXPECT_THAT(InferOk(request).sampled_points(), ::testing::UnorderedElementsAre(0, 1, 2, 4));
}

TEST_F(EngineServiceTest, NetworkSeesFarthestPointsAlone) {
  StartWith(HeightModel());
  v1::InferRequest request = FivePoints();
  request.mutable_sample()->set_num_points(3);
  request.mutable_sample()->set_use(v1::FarthestPointSample::USE_NETWORK);
  const v1::InferResponse response = InferOk(request);
  EXPECT_THAT(response.sampled_points(), ElementsAre(0, 4, 2));
  EXPECT_THAT(Labels(response), ElementsAre(1, kIgnored, 1, kIgnored, 0));
  EXPECT_EQ(response.counts().used(), 3u);
  EXPECT_EQ(response.counts().invalid(), 1u);
  EXPECT_EQ(response.counts().unsampled(), 1u);
  EXPECT_EQ(response.counts().voxels(), 3u);
  EXPECT_THAT(Body("/metrics"), HasSubstr(R"(voxserve_points_total{fate="unsampled",model="height"} 1)"));
  EXPECT_THAT(Body("/metrics"), HasSubstr(R"(stage="sample")"));
}

TEST_F(EngineServiceTest, ASampleThatCannotBeIsRefused) {
  StartWith(HeightModel());
  const auto refused = [&](const std::function<void(v1::FarthestPointSample&)>& ask) {
    v1::InferRequest request = FivePoints();
    request.mutable_sample()->set_num_points(2);
    ask(*request.mutable_sample());
    return ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "BAD_SAMPLE");
  };
  EXPECT_EQ(refused([](auto& s) { s.set_num_points(0); }), "sample.num_points is 0; it must be 1 or more");
  EXPECT_EQ(refused([](auto& s) { s.set_num_points(5); }), "sample.num_points is 5; the cloud has 4 valid points of 5");
  EXPECT_EQ(refused([](auto& s) { s.set_num_points(UINT32_MAX); }),
            "sample.num_points is 4294967295; the cloud has 5 points");
  EXPECT_EQ(refused([](auto& s) { s.set_start_index(5); }), "sample.start_index is 5; the cloud has 5 points");
  EXPECT_THAT(refused([](auto& s) { s.set_use(static_cast<v1::FarthestPointSample::Use>(9)); }), HasSubstr("is 9"));
  v1::InferRequest empty = Request("height", {});
  empty.mutable_sample()->set_num_points(1);
  EXPECT_EQ(ExpectRefused(empty, StatusCode::INVALID_ARGUMENT, "BAD_SAMPLE"),
            "sample.num_points is 1; the cloud has 0 points");
}

TEST_F(EngineServiceTest, AStreamSamplesItsFrames) {
  StartWith(HeightModel());
  v1::StreamConfig config = StreamConfigOf("height", v1::STREAM_POLICY_QUEUE);
  config.mutable_sample()->set_num_points(3);
  Vehicle vehicle(client_.get(), config);
  v1::StreamFrame frame;
  frame.set_frame_id(1);
  *frame.mutable_cloud() = FivePoints().cloud();
  EXPECT_TRUE(vehicle.Send(frame));
  EXPECT_TRUE(vehicle.Send(2, 2));  // The frame has too few points for a sample of 3, so only this frame fails.
  frame.set_frame_id(3);
  EXPECT_TRUE(vehicle.Send(frame));
  vehicle.CloseSends();
  EXPECT_TRUE(vehicle.End().ok());
  const auto outcomes = vehicle.outcomes();
  EXPECT_EQ(outcomes.at(1), "OK");
  EXPECT_EQ(outcomes.at(2), "BAD_SAMPLE");
  EXPECT_EQ(outcomes.at(3), "OK");
  for (const v1::FrameResult& result : vehicle.results()) {
    if (result.frame_id() == 2) continue;
    EXPECT_THAT(result.response().sampled_points(), ElementsAre(0, 4, 2));
  }
}

TEST_F(EngineServiceTest, ReadsAnyLayout) {
  StartWith(HeightModel());
  // Makes a PointCloud2 as drivers send it: doubles, big endian, a ring and a time that the model does not name,
  // padding after each point and after each row, and intensity in 0..255.
  v1::InferRequest request;
  request.set_model("height");
  v1::PointCloud& cloud = *request.mutable_cloud();
  cloud.set_num_points(4);
  cloud.set_height(2);
  cloud.set_point_step(40);
  cloud.set_row_step(2 * 40 + 16);
  cloud.set_is_bigendian(true);
  const auto add_field = [&](const char* name, uint32_t offset, v1::PointFieldType type) {
    v1::PointField& field = *cloud.add_fields();
    field.set_name(name);
    field.set_offset(offset);
    field.set_type(type);
    return &field;
  };
  add_field("z", 0, v1::POINT_FIELD_TYPE_FLOAT64);
  add_field("ring", 8, v1::POINT_FIELD_TYPE_UINT16);
  add_field("intensity", 10, v1::POINT_FIELD_TYPE_UINT8)->set_scale(1.0 / 255);
  add_field("x", 16, v1::POINT_FIELD_TYPE_FLOAT64);
  add_field("y", 24, v1::POINT_FIELD_TYPE_FLOAT64);
  add_field("t", 32, v1::POINT_FIELD_TYPE_UINT32);
  const auto put_double = [&](size_t at, double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    for (int i = 0; i < 8; ++i) (*cloud.mutable_data())[at + i] = static_cast<char>(bits >> (56 - 8 * i));
  };
  cloud.mutable_data()->assign(2 * 96, '\xEE');
  const double z[] = {2.5, -1, 1, 3};
  const uint8_t intensity[] = {0, 25, 230, 0};
  std::vector<int> expected;
  for (int i = 0; i < 4; ++i) {
    const size_t at = i / 2 * 96 + i % 2 * 40;
    put_double(at, z[i]);
    (*cloud.mutable_data())[at + 10] = static_cast<char>(intensity[i]);
    put_double(at + 16, i * 2 + 0.5);
    put_double(at + 24, -3.5);
    expected.push_back(LabelOf(static_cast<float>(z[i]), static_cast<float>(intensity[i]) / 255));
  }
  EXPECT_EQ(Labels(InferOk(request)), expected);
  EXPECT_THAT(expected, ElementsAre(1, 0, 2, 1));
}

TEST_F(EngineServiceTest, FieldsThatNobodyReadsMayHaveAnyTypeAndPlace) {
  StartWith(HeightModel());
  v1::InferRequest request = Request("height", {0.5f, 0.5f, 0.1f, 0});
  const auto expected = Labels(InferOk(request));
  v1::PointField& time = *request.mutable_cloud()->add_fields();  // a uint64 of ROS over x and y
  time.set_name("t");
  time.set_type(static_cast<v1::PointFieldType>(10));
  EXPECT_EQ(Labels(InferOk(request)), expected);
  for (v1::PointField& field : *request.mutable_cloud()->mutable_fields()) {
    if (field.name() == "z") field.set_type(v1::POINT_FIELD_TYPE_UNSPECIFIED);
  }
  EXPECT_THAT(ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "BAD_LAYOUT"),
              HasSubstr("the model reads field \"z\", whose type 0"));
}

TEST_F(EngineServiceTest, AFieldWithADefaultMayBeMissing) {
  StartWith(HeightModel());
  v1::InferRequest request = Request("height", {0.5f, 0.5f, 0.1f, 0});
  EXPECT_THAT(Labels(InferOk(request)), ElementsAre(LabelOf(0.1f, 0)));
  request.mutable_cloud()->mutable_fields(3)->set_name("reflectance");
  EXPECT_THAT(Labels(InferOk(request)), ElementsAre(LabelOf(0.1f, 0.25f))) << "10 * 0.25 - 1 = 1.5 wins";
}

TEST_F(EngineServiceTest, AMissingFieldIsNamed) {
  StartWith(HeightModel());
  for (int axis = 0; axis < 3; ++axis) {
    v1::InferRequest request = Request("height", {0, 0, 0, 0});
    const std::string name = request.cloud().fields(axis).name();
    request.mutable_cloud()->mutable_fields(axis)->set_name("other");
    EXPECT_THAT(ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "MISSING_FIELD"), HasSubstr(name));
  }
}

TEST_F(EngineServiceTest, NoPointsAndNoneInRangeAreAnswers) {
  StartWith(HeightModel());
  const v1::InferResponse none = InferOk(Request("height", {}));
  EXPECT_THAT(Labels(none), IsEmpty());
  EXPECT_EQ(none.counts().voxels(), 0u);
  const v1::InferResponse outside = InferOk(Request("height", {100, 0, 0, 0, 0, 0, 4, 0, 0, -16.5f, 0, 0}));
  EXPECT_THAT(Labels(outside), ElementsAre(kIgnored, kIgnored, kIgnored));
  EXPECT_EQ(outside.counts().out_of_range(), 3u);
  EXPECT_EQ(outside.counts().used(), 0u);
}

TEST_F(EngineServiceTest, PointsThatCannotBeServedAreCountedAndTheRestIsServed) {
  StartWith(HeightModel());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const v1::InferResponse response = InferOk(Request("height", {nan,  0,         0,  0,         //
                                                                1.5f, 0,         3,  0,         //
                                                                0,    -infinity, 0,  0,         //
                                                                3e9f, 0,         0,  0,         //
                                                                5.5f, 0,         3,  infinity,  //
                                                                16,   0,         0,  0,         //
                                                                -16,  -16,       -4, 0}));
  EXPECT_THAT(Labels(response), ElementsAre(kIgnored, 1, kIgnored, kIgnored, kIgnored, kIgnored, 0));
  EXPECT_EQ(response.counts().invalid(), 3u);
  EXPECT_EQ(response.counts().out_of_range(), 2u);
  EXPECT_EQ(response.counts().used(), 2u);
  EXPECT_EQ(response.counts().dropped(), 0u);
  const std::string metrics = Body("/metrics");
  EXPECT_THAT(metrics, HasSubstr("voxserve_points_total{fate=\"invalid\",model=\"height\"} 3\n"));
  EXPECT_THAT(metrics, HasSubstr("voxserve_points_total{fate=\"out_of_range\",model=\"height\"} 2\n"));
  EXPECT_THAT(metrics, HasSubstr("voxserve_points_total{fate=\"used\",model=\"height\"} 2\n"));
}

TEST_F(EngineServiceTest, TooManyPointsNameTheLimit) {
  support::TestModel model = HeightModel();
  model.config = "max_points: 10";
  StartWith(model);
  EXPECT_EQ(Labels(InferOk(RequestOf("height", 10))).size(), 10u);
  const std::string message = ExpectRefused(RequestOf("height", 11), StatusCode::INVALID_ARGUMENT, "TOO_MANY_POINTS");
  EXPECT_THAT(message, HasSubstr("11"));
  EXPECT_THAT(message, HasSubstr("10"));
}

TEST_F(EngineServiceTest, TooManyVoxelsFollowTheModelsPolicy) {
  support::TestModel rejecting = HeightModel();
  rejecting.config = "max_voxels: 2";
  rejecting.WriteTo(folder_.path() / "rejecting");
  support::TestModel nearest = HeightModel();
  nearest.config = "max_voxels: 2 voxel_overflow_policy: VOXEL_OVERFLOW_POLICY_NEAREST_FIRST";
  nearest.WriteTo(folder_.path() / "nearest");
  Start(folder_.path().string());
  const std::vector<float> points = {12.5f, 0.5f, 3, 0, 2.5f, 0.5f, 3, 0, 5.5f, 0.5f, 3, 0, 2.6f, 0.5f, 3.1f, 0};

  const std::string message =
      ExpectRefused(Request("rejecting", points), StatusCode::INVALID_ARGUMENT, "TOO_MANY_VOXELS");
  EXPECT_THAT(message, HasSubstr("3"));
  EXPECT_THAT(message, HasSubstr("2"));

  const v1::InferResponse response = InferOk(Request("nearest", points));
  EXPECT_THAT(Labels(response), ElementsAre(kIgnored, 1, 1, 1));
  EXPECT_EQ(response.counts().dropped(), 1u);
  EXPECT_EQ(response.counts().used(), 3u);
  EXPECT_EQ(response.counts().voxels(), 2u);
}

TEST_F(EngineServiceTest, UnknownModelsAndVersionsListWhatIsThere) {
  HeightModel().WriteTo(folder_.path() / "height", 3);
  StartWith(HeightModel());
  EXPECT_THAT(ExpectRefused(Request("hieght", {}), StatusCode::NOT_FOUND, "MODEL_NOT_FOUND"), HasSubstr("height"));
  v1::InferRequest request = Request("height", {});
  for (const int64_t version : {int64_t{2}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    request.set_version(version);
    const std::string message = ExpectRefused(request, StatusCode::NOT_FOUND, "VERSION_NOT_FOUND");
    EXPECT_THAT(message, HasSubstr(std::to_string(version)));
    EXPECT_THAT(message, HasSubstr("3"));
  }
  request.set_version(0);
  EXPECT_EQ(InferOk(request).version(), 3) << "the newest";
  request.set_version(1);
  EXPECT_EQ(InferOk(request).version(), 1);
}

TEST_F(EngineServiceTest, ScoresOfAModelThatHasNone) {
  support::TestModel model = HeightModel();
  model.Replace("nodes { name: \"scores\" inputs: [\"head\", \"voxels\"] voxel_to_point {} }\n", "")
      .Replace("outputs { kind: KIND_SCORES node: \"scores\" }\n", "");
  StartWith(model);
  v1::InferRequest request = Request("height", {0, 0, 3, 0});
  EXPECT_THAT(Labels(InferOk(request)), ElementsAre(1));
  request.set_return_scores(true);
  ExpectRefused(request, StatusCode::INVALID_ARGUMENT, "UNSUPPORTED_OUTPUT");
}

TEST_F(EngineServiceTest, ABrokenVersionLeavesTheOthersInService) {
  support::TestModel broken = HeightModel();
  broken.weights.erase("head.bias");
  broken.Replace("name: \"best\" inputs: [\"head\"]", "name: \"best\" inputs: [\"haed\"]");
  broken.WriteTo(folder_.path() / "height", 2);
  StartWith(HeightModel());
  EXPECT_EQ(Body("/readyz"), "ready\n");
  v1::InferRequest request = Request("height", {0, 0, 3, 0});
  EXPECT_EQ(InferOk(request).version(), 1) << "the newest that is ready";
  request.set_version(2);
  EXPECT_THAT(ExpectRefused(request, StatusCode::UNAVAILABLE, "MODEL_FAILED"), HasSubstr("haed"));

  grpc::ClientContext context;
  v1::ListModelsResponse models;
  ASSERT_TRUE(client_->inference->ListModels(&context, v1::ListModelsRequest(), &models).ok());
  ASSERT_EQ(models.models_size(), 2);
  EXPECT_EQ(models.models(0).state(), v1::MODEL_STATE_READY);
  EXPECT_EQ(models.models(1).state(), v1::MODEL_STATE_FAILED);
  const std::vector<std::string> problems(models.models(1).problems().begin(), models.models(1).problems().end());
  EXPECT_THAT(problems, ::testing::Contains(HasSubstr("haed")));
  EXPECT_THAT(problems, ::testing::Contains(HasSubstr("head.bias"))) << "every problem, not the first alone";
  EXPECT_THAT(Body("/"), HasSubstr("haed"));
  EXPECT_THAT(Body("/metrics"), HasSubstr("voxserve_model_ready{model=\"height\",version=\"2\"} 0\n"));
}

TEST_F(EngineServiceTest, WithNothingToServeItIsNotReady) {
  support::TestModel broken = HeightModel();
  broken.weights.clear();
  StartWith(broken);
  EXPECT_EQ(Body("/healthz"), "ok\n");
  EXPECT_EQ(Body("/readyz"), "no model is ready\n");
  EXPECT_EQ(client_->Health(), grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  ExpectRefused(Request("height", {0, 0, 3, 0}), StatusCode::UNAVAILABLE, "MODEL_FAILED");
}

TEST_F(EngineServiceTest, LabelsAndScoresOfAGoldenScanAreThoseOfOtherEngines) {
  Start(support::SourceDir() + "/deploy/models");
  const absl::StatusOr<GoldenScan> scan = LoadGoldenScan("pandaset_070");
  ASSERT_TRUE(scan.ok()) << scan.status();
  v1::InferRequest request = Request("minkunet", scan->points);
  request.set_return_scores(true);
  const v1::InferResponse response = InferOk(request);
  const v1::Segmentation& segmentation = response.segmentation();
  const int64_t num_points = scan->num_points();
  const int num_classes = scan->num_classes;
  ASSERT_EQ(segmentation.labels().size(), static_cast<size_t>(num_points));
  ASSERT_EQ(segmentation.scores().size(), num_points * num_classes * sizeof(float));
  const auto* scores = reinterpret_cast<const float*>(segmentation.scores().data());
  const std::vector<int64_t> rows = scan->PointToVoxel();
  float largest_difference = 0;
  int64_t num_wrong = 0;
  for (int64_t i = 0; i < num_points; ++i) {
    const float* golden = scan->LogitsOf(rows[i]);  // The golden file of this scan has the logits of all voxels.
    for (int c = 0; c < num_classes; ++c) {
      largest_difference = std::max(largest_difference, std::abs(scores[i * num_classes + c] - golden[c]));
    }
    const bool is_tie = scan->margins.at(rows[i]) <= 1e-3f;
    if (!is_tie && static_cast<uint8_t>(segmentation.labels()[i]) != scan->labels[i]) ++num_wrong;
  }
  EXPECT_LE(largest_difference, 5e-4f);
  EXPECT_EQ(num_wrong, 0);
  EXPECT_EQ(response.counts().voxels(), static_cast<uint64_t>(scan->num_voxels()));
}

}  // namespace
}  // namespace voxserve::engine_service_test
