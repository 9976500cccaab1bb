// Tests the installed library's classes, against libvoxserve_client.so itself. The test's own server registers the
// descriptors of the same messages in this process: the library must not.
#include <voxserve/client.h>

#include <array>
#include <cmath>
#include <cstring>
#include <future>
#include <limits>
#include <map>
#include <mutex>

#include "gmock/gmock.h"
#include "tests/client/fake_server.h"

namespace voxserve::public_client_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

PointCloud Cloud(const std::vector<float>& x) {
  std::vector<float> values;
  for (const float value : x) values.insert(values.end(), {value, 0, 0, 0.5f});
  return *PointCloud::FromFloats({"x", "y", "z", "intensity"}, values);
}

class PublicClientTest : public testing::Test {
 protected:
  Client Connect() { return *Client::Create(ClientOptions(server_.address()).set_admin_address(server_.address())); }

  client::FakeServer server_;
};

TEST_F(PublicClientTest, LabelsEveryPoint) {
  Client client = Connect();
  const auto result = client.Infer(InferOptions("segmenter").set_request_id("scan-7"),
                                   Cloud({0.5f, 1.5f, 2.5f, std::numeric_limits<float>::quiet_NaN(), -4.0f}));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->labels(), ElementsAre(0, 1, 2, 255, 1));
  EXPECT_EQ(result->ignore_label(), 255);
  EXPECT_EQ(result->num_classes(), 3);
  EXPECT_EQ(result->model(), "segmenter");
  EXPECT_EQ(result->version(), 2);
  EXPECT_EQ(result->device(), "cpu");
  EXPECT_EQ(result->request_id(), "scan-7");
  EXPECT_EQ(result->used_points(), 4u);
  EXPECT_EQ(result->invalid_points(), 1u);
  EXPECT_THAT(result->stages(), testing::Contains(testing::Pair("features", std::chrono::microseconds(2500))));
  EXPECT_GT(result->round_trip().count(), 0);
  EXPECT_TRUE(result->scores().empty());
}

TEST_F(PublicClientTest, AnAnswerOutlivesItsClientAndItsFirstCopy) {
  Answer answer;
  {
    Client client = Connect();
    answer = *client.Infer(InferOptions("segmenter"), Cloud({1}));
  }
  EXPECT_EQ(answer.model(), "segmenter");
}

TEST_F(PublicClientTest, AnAnswerAndAModelThatWereMovedFromCanBeAsked) {
  Client client = Connect();
  auto result = client.Infer(InferOptions("segmenter"), Cloud({1}));
  const Segmentation answer = *std::move(result);
  EXPECT_THAT(answer.labels(), ElementsAre(1));
  EXPECT_THAT(result->labels(), ElementsAre(1));  // NOLINT: the use is what is tested
  auto found = client.GetModel("segmenter");
  const Model model = *std::move(found);
  EXPECT_EQ(model.name(), "segmenter");
  EXPECT_EQ(found->name(), "segmenter");  // NOLINT
}

TEST_F(PublicClientTest, WarnsOfFeaturesInAnotherUnit) {
  Client client = Connect();
  const auto result = client.Infer(InferOptions("ranged"), Cloud({1}));
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->warnings().size(), 1u);
  EXPECT_THAT(result->warnings()[0], HasSubstr("intensity"));
  EXPECT_THAT(result->warnings()[0], HasSubstr("0 to 1"));
}

TEST_F(PublicClientTest, WarnsOfPointsOutsideOfTheRange) {
  Client client = Connect();
  const auto result = client.Infer(InferOptions("distant"), Cloud({1}));
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->warnings().size(), 1u);
  EXPECT_THAT(result->warnings()[0], HasSubstr("990 of 991 points lie outside of the range that distant accepts"));
}

TEST_F(PublicClientTest, WarnsOfScoresThatAreNotFinite) {
  Client client = Connect();
  const auto result = client.Infer(InferOptions("narrow"), Cloud({1, 2}));
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->warnings().size(), 1u);
  EXPECT_THAT(result->warnings()[0], HasSubstr("narrow has NaN or infinite values for 1 of 2 points"));
}

TEST_F(PublicClientTest, FindsBoxes) {
  Client client = Connect();
  const auto result = client.Detect(InferOptions("detector"), Cloud({3, 1}));
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->boxes().size(), 2u);
  const Box& box = result->boxes()[1];
  EXPECT_EQ(box.class_id, 1u);
  EXPECT_EQ(result->class_name(1), "car");
  EXPECT_EQ(result->class_name(2), "") << "there is no such box";
  EXPECT_FLOAT_EQ(box.score, 0.5f);
  EXPECT_THAT((std::array<float, 9>{box.x, box.y, box.z, box.length, box.width, box.height, box.yaw, box.velocity_x,
                                    box.velocity_y}),
              ElementsAre(1, 0.5f, 1, 4, 2, 1.5f, 0.5f, 3, 4));
  EXPECT_FALSE(result->query(0).has_value());
}

TEST_F(PublicClientTest, ReturnsASample) {
  Client client = Connect();
  const auto result = client.Infer(InferOptions("segmenter").set_sample(2, /*seed=*/5), Cloud({0, 1, 2}));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->sampled_points(), ElementsAre(1, 2));
}

TEST_F(PublicClientTest, GivesTheServersReasonAndDelay) {
  Client client = Connect();
  const auto full = client.Infer(InferOptions("full"), Cloud({0}));
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(full.status().reason(), "QUEUE_FULL");
  EXPECT_TRUE(full.status().is_from_server());
  EXPECT_EQ(full.status().retry_delay(), std::chrono::milliseconds(250));
  EXPECT_THAT(full.status().ToString(), HasSubstr("RESOURCE_EXHAUSTED: "));
  EXPECT_THAT(full.status().ToString(), HasSubstr("(QUEUE_FULL)"));
}

TEST_F(PublicClientTest, RefusesByItself) {
  Client client = Connect();
  EXPECT_EQ(client.Infer(InferOptions(""), Cloud({0})).status().code(), StatusCode::kInvalidArgument);
  const auto slow = client.Infer(InferOptions("slow").set_timeout(std::chrono::milliseconds(50)), Cloud({0}));
  EXPECT_EQ(slow.status().code(), StatusCode::kDeadlineExceeded);
  const auto bad = Client::Create(ClientOptions("localhost:1").set_num_channels(0));
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(bad.status().message()), HasSubstr("num_channels"));
  auto nobody = Client::Create(ClientOptions("127.0.0.1:1").set_max_attempts(1));
  const auto none = nobody->Infer(InferOptions("segmenter"), Cloud({0}));
  EXPECT_EQ(none.status().reason(), "NO_SERVER");
  EXPECT_FALSE(none.status().is_from_server());
}

TEST_F(PublicClientTest, AMovedClientAndAMovedCloudAreRefusedOrEmpty) {
  Client client = Connect();
  PointCloud cloud = Cloud({0, 1});
  const PointCloud copy = cloud;
  Client other = std::move(client);
  EXPECT_EQ(client.Infer(InferOptions("segmenter"), copy).status().code(),  // NOLINT: the use is what is tested
            StatusCode::kFailedPrecondition);
  const auto result = other.Infer(InferOptions("segmenter"), std::move(cloud));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(cloud.num_points(), 0u);  // NOLINT
  EXPECT_EQ(copy.num_points(), 2u);
  cloud.AddField("x", FieldType::kFloat32, 0);  // NOLINT
  EXPECT_THAT(cloud.field_names(), ElementsAre("x"));
}

TEST_F(PublicClientTest, CallsBackOnce) {
  Client client = Connect();
  std::promise<Result<Segmentation>> labels;
  client.InferAsync(InferOptions("segmenter"), Cloud({2}),
                    [&](Result<Segmentation> result) { labels.set_value(std::move(result)); });
  EXPECT_THAT(labels.get_future().get()->labels(), ElementsAre(2));
  std::promise<Result<Detections>> boxes;
  client.DetectAsync(InferOptions("detector"), Cloud({2}),
                     [&](Result<Detections> result) { boxes.set_value(std::move(result)); });
  EXPECT_EQ(boxes.get_future().get()->boxes().size(), 1u);
}

TEST_F(PublicClientTest, StreamsFramesAndEnds) {
  Client client = Connect();
  std::mutex mutex;
  std::map<uint64_t, std::vector<uint16_t>> labels;
  std::map<uint64_t, int> sweeps;
  std::promise<Status> end;
  auto stream = client.OpenStream(
      StreamOptions("segmenter").set_policy(StreamPolicy::kQueue).set_sweeps(2),
      [&](uint64_t frame_id, Result<Segmentation> result) {
        const std::lock_guard<std::mutex> lock(mutex);
        ASSERT_TRUE(result.ok()) << result.status();
        labels[frame_id] = {result->labels().begin(), result->labels().end()};
        sweeps[frame_id] = result->num_sweeps();
      },
      StreamEvents().set_on_end([&](Status status) { end.set_value(status); }));
  ASSERT_TRUE(stream.ok()) << stream.status();
  PointCloud cloud = Cloud({1});
  EXPECT_EQ(stream->Send(1, cloud).code(), StatusCode::kInvalidArgument) << "sweeps need a pose and a stamp";
  cloud.SetStamp(std::chrono::nanoseconds(1'700'000'000'123'456'789));
  EXPECT_TRUE(stream->Send(2, cloud, Pose{}).ok());
  EXPECT_TRUE(stream->Send(3, cloud, Pose{.x = 1}).ok());
  EXPECT_TRUE(stream->Send(4, cloud, Pose{}, /*reset_sweeps=*/true).ok());
  stream->CloseSends();
  EXPECT_TRUE(end.get_future().get().ok());
  EXPECT_THAT(labels[3], ElementsAre(1));
  EXPECT_THAT(sweeps, ElementsAre(testing::Pair(2, 1), testing::Pair(3, 2), testing::Pair(4, 1)));
  EXPECT_EQ(stream->Send(5, cloud, Pose{}).reason(), "STREAM_ENDED");
}

TEST_F(PublicClientTest, SendsAFrameInParts) {
  Client client = Connect();
  std::mutex mutex;
  std::map<uint64_t, std::vector<uint16_t>> labels;
  std::promise<Status> end;
  auto stream = client.OpenStream(
      StreamOptions("segmenter").set_policy(StreamPolicy::kQueue),
      [&](uint64_t frame_id, Result<Segmentation> result) {
        const std::lock_guard<std::mutex> lock(mutex);
        ASSERT_TRUE(result.ok()) << result.status();
        labels[frame_id] = {result->labels().begin(), result->labels().end()};
      },
      StreamEvents().set_on_end([&](Status status) { end.set_value(status); }));
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_TRUE(stream->SendPart(1, Cloud({1, 2}), /*is_last=*/false).ok());
  EXPECT_TRUE(stream->SendPart(1, Cloud({0}), /*is_last=*/true, Pose{.x = 3}, /*reset_sweeps=*/true).ok());
  EXPECT_EQ(stream->SendPart(1, Cloud({1}), /*is_last=*/true).reason(), "DUPLICATE_FRAME");
  stream->CloseSends();
  EXPECT_TRUE(end.get_future().get().ok());
  EXPECT_THAT(labels, ElementsAre(testing::Pair(1, ElementsAre(1, 2, 0))));
  const std::vector<v1::FramePart> parts = server_.parts();
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[1].pose().x(), 3);
  EXPECT_TRUE(parts[1].reset_sweeps());
  EXPECT_EQ(stream->SendPart(2, Cloud({1}), /*is_last=*/true).reason(), "STREAM_ENDED");
}

TEST_F(PublicClientTest, AStreamToAMissingModelEndsWithItsReason) {
  Client client = Connect();
  std::promise<Status> end;
  auto stream = client.OpenDetectionStream(StreamOptions("missing"), nullptr,
                                           StreamEvents().set_on_end([&](Status status) { end.set_value(status); }));
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_EQ(end.get_future().get().reason(), "MODEL_NOT_FOUND");
}

TEST_F(PublicClientTest, DescribesModels) {
  Client client = Connect();
  const auto model = client.GetModel("segmenter");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->state(), ModelState::kReady);
  EXPECT_EQ(model->version(), 2);
  ASSERT_EQ(model->class_ids().size(), 3u);
  EXPECT_EQ(model->class_name(1), "car");
  EXPECT_EQ(model->class_name(77), "");
  EXPECT_FALSE(model->class_color(77).has_value());
  const auto broken = client.GetModel("broken");
  ASSERT_TRUE(broken.ok()) << broken.status();
  EXPECT_EQ(broken->state(), ModelState::kFailed);
  EXPECT_EQ(broken->problems().size(), 2u);
  EXPECT_EQ(client.GetModel("missing").status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(client.ListModels()->empty());
}

TEST_F(PublicClientTest, LoadsModelsAndAsksForHealth) {
  Client client = Connect();
  EXPECT_THAT(*client.LoadModel("segmenter"), ElementsAre(1, 2));
  EXPECT_THAT(*client.UnloadModel("segmenter", 1), ElementsAre(1));
  EXPECT_EQ(client.LoadModel("broken").status().reason(), "BAD_MODEL");
  server_.SetServing(true);
  EXPECT_TRUE(*client.IsServing());
  server_.SetServing(false);
  EXPECT_FALSE(*client.IsServing());
}

TEST(PublicPointCloudTest, KeepsTheBytesOfARosMessage) {
  PointCloud cloud;
  cloud.AddField("x", FieldTypeOfRos(7), 0);
  cloud.AddField("intensity", FieldTypeOfRos(2), 4);
  cloud.AddField("time", FieldTypeOfRos(10), 5);
  std::array<std::byte, 10> bytes{};
  const float x = 2.5f;
  std::memcpy(&bytes[5], &x, sizeof x);
  bytes[9] = std::byte{200};
  cloud.SetPoints(bytes, 2, 5);
  EXPECT_EQ(cloud.num_points(), 2u);
  EXPECT_EQ(cloud.point_step(), 5u);
  EXPECT_EQ(cloud.bytes().size(), 10u);
  EXPECT_THAT(*cloud.Values("x"), ElementsAre(0, 2.5f));
  ASSERT_TRUE(cloud.SetScale("intensity", 0.01).ok());
  EXPECT_THAT(*cloud.Values("intensity"), ElementsAre(0, testing::FloatEq(2)));
  EXPECT_EQ(cloud.SetScale("ring", 1).code(), StatusCode::kNotFound);
  EXPECT_EQ(cloud.Values("ring").status().code(), StatusCode::kInvalidArgument);
}

TEST(PublicPointCloudTest, RefusesWhatIsNoPoints) {
  const std::vector<float> values(7);
  EXPECT_EQ(PointCloud::FromFloats({"x", "y"}, values).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(PointCloud::FromFloats({}, values).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(PointCloud::Read("/nowhere/scan.bin").status().code(), StatusCode::kNotFound);
}

TEST(PublicPointCloudTest, KnowsRosTypes) {
  EXPECT_EQ(FieldTypeOfRos(8), FieldType::kFloat64);
  EXPECT_EQ(FieldTypeOfRos(11), FieldType::kUint8);
  EXPECT_EQ(FieldTypeOfRos(9), FieldType::kUnspecified) << "int64 there, float16 on the wire";
  EXPECT_EQ(FieldTypeOfRos(-1), FieldType::kUnspecified);
}

TEST(PublicStatusTest, HasCodeMessageAndReason) {
  const Status status(StatusCode::kNotFound, "no model \"x\"", "MODEL_NOT_FOUND");
  EXPECT_EQ(status.ToString(), "NOT_FOUND: no model \"x\" (MODEL_NOT_FOUND)");
  EXPECT_EQ(Status().ToString(), "OK");
  EXPECT_TRUE(Status(StatusCode::kOk, "ignored").message().empty());
  EXPECT_EQ(ToString(static_cast<StatusCode>(99)), "UNKNOWN");
}

TEST(PublicResultTest, HoldsAValueOrAStatus) {
  const Result<int> value = 3;
  EXPECT_EQ(*value, 3);
  EXPECT_TRUE(value.status().ok());
  const Result<int> none = Status();
  EXPECT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), StatusCode::kInternal) << "OK without a value is a mistake";
}

TEST(PublicResultDeathTest, EndsTheProcessWithTheReason) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const Result<int> none = Status(StatusCode::kNotFound, "no such thing");
  EXPECT_DEATH((void)*none, "NOT_FOUND: no such thing");
}

}  // namespace
}  // namespace voxserve::public_client_test
