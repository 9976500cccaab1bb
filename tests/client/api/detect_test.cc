// Tests Detect, DetectAsync and OpenDetectionStream of Client against FakeServer: the boxes of an answer, and the
// errors, such as that for a model without boxes.

#include <cmath>
#include <functional>

#include "absl/synchronization/notification.h"
#include "client/cpp/api/client.h"
#include "gmock/gmock.h"
#include "tests/client/api/clouds.h"
#include "tests/client/fake_server.h"

namespace voxserve::client::detect_test {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<Detections> DetectNow(Client* client, const InferOptions& options, PointCloud cloud) {
  return client->Detect(options, std::move(cloud));
}

absl::StatusOr<Detections> DetectLater(Client* client, const InferOptions& options, PointCloud cloud) {
  absl::StatusOr<Detections> outcome = absl::UnknownError("not called");
  absl::Notification done;
  client->DetectAsync(options, std::move(cloud), [&](absl::StatusOr<Detections> result) {
    outcome = std::move(result);
    done.Notify();
  });
  done.WaitForNotification();
  return outcome;
}

// Sends the cloud as the only frame of a stream, and returns its boxes.
absl::StatusOr<Detections> DetectInStream(Client* client, const InferOptions& options, PointCloud cloud) {
  absl::StatusOr<Detections> outcome = absl::UnknownError("not called");
  absl::Notification ended;
  const StreamOptions stream_options = {
      .model = options.model, .return_scores = options.return_scores, .sample = options.sample};
  auto stream = client->OpenDetectionStream(
      stream_options, {.on_result = [&](DetectionFrameOutcome frame) { outcome = std::move(frame.result); },
                       .on_end = [&](const absl::Status&) { ended.Notify(); }});
  if (!stream.ok()) return stream.status();
  if (absl::Status status = (*stream)->Send(7, cloud); !status.ok()) return status;
  (*stream)->CloseSends();
  ended.WaitForNotification();
  return outcome;
}

using Detect = std::function<absl::StatusOr<Detections>(Client*, const InferOptions&, PointCloud)>;

class DetectTest : public testing::TestWithParam<Detect> {
 protected:
  absl::StatusOr<Detections> Detect(const InferOptions& options, const std::vector<float>& xs) {
    return GetParam()(client_.get(), options, Cloud(xs));
  }

  FakeServer server_;
  std::unique_ptr<Client> client_ = *Client::Create({.address = server_.address()});
};

INSTANTIATE_TEST_SUITE_P(Calls, DetectTest, testing::Values(DetectNow, DetectLater, DetectInStream));

TEST_P(DetectTest, GivesTheBoxesInTheirOrder) {
  const auto result = Detect({.model = "detector"}, {1, std::nanf(""), 5});
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->boxes.size(), 2u);
  const Box& box = result->boxes[1];
  EXPECT_EQ(box.class_id, 2u);
  EXPECT_EQ(box.class_name, "person");
  EXPECT_FLOAT_EQ(box.score, 1.0f / 3);
  EXPECT_EQ(box.x, 5);
  EXPECT_EQ(box.y, 2.5);
  EXPECT_EQ(box.z, 1);
  EXPECT_EQ(box.length, 4);
  EXPECT_EQ(box.width, 2);
  EXPECT_EQ(box.height, 1.5);
  EXPECT_EQ(box.yaw, 0.5);
  EXPECT_EQ(box.velocity_x, 3);
  EXPECT_EQ(box.velocity_y, 4);
  EXPECT_EQ(box.query, 9u);
  EXPECT_EQ(result->boxes[0].query, std::nullopt);
  EXPECT_EQ(result->model, "detector");
  EXPECT_EQ(result->version, 2);
  EXPECT_EQ(result->counts.invalid(), 1u);
  EXPECT_EQ(result->stages.size(), 2u);
  EXPECT_GT(result->round_trip, absl::ZeroDuration());
}

TEST_P(DetectTest, OfNoPointsThereAreNoBoxes) {
  const auto result = Detect({.model = "detector"}, {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->boxes.empty());
}

TEST_P(DetectTest, ASampleComesWithBoxesToo) {
  const auto result = Detect({.model = "detector", .sample = FarthestPoints{.num_points = 2}}, {1, 2, 3});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->boxes.size(), 3u);
  EXPECT_EQ(result->sampled_points.size(), 2u);
}

TEST_P(DetectTest, AModelWithBothIsAskedForEither) {
  EXPECT_EQ(Detect({.model = "both"}, {1, 2})->boxes.size(), 2u);
  const auto labelled = client_->Infer({.model = "both"}, Cloud({1, 2}));
  ASSERT_TRUE(labelled.ok()) << labelled.status();
  EXPECT_EQ(labelled->labels.size(), 2u);
  ASSERT_TRUE(labelled->boxes.has_value());
  EXPECT_EQ(labelled->boxes->size(), 2u);
  EXPECT_EQ(labelled->boxes->at(1).x, 2);
  EXPECT_FALSE(client_->Infer({.model = "segmenter"}, Cloud({1}))->boxes.has_value());
}

TEST_P(DetectTest, AModelWithoutBoxesNamesTheOtherCall) {
  const absl::Status status = Detect({.model = "segmenter"}, {1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReason(status), kUnsupportedOutput);
  EXPECT_EQ(status.message(), "model \"segmenter\" answers labels and no boxes; ask it with Infer or OpenStream");
}

TEST_P(DetectTest, BoxesHaveNoScoresPerPoint) {
  const absl::Status status = Detect({.model = "detector", .return_scores = true}, {1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("return_scores"));
  EXPECT_EQ(server_.num_infer_calls(), 0u);
}

TEST_P(DetectTest, RefusesBoxesThatAreNone) {
  for (const auto& [model, message] : std::vector<std::pair<std::string, std::string>>{
           {"crooked", "box 0 is not finite"}, {"mute", "neither labels nor boxes"}}) {
    const absl::Status status = Detect({.model = model}, {1}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(ErrorReason(status), kMalformedResponse);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST_P(DetectTest, PassesTheServersErrorsOn) {
  EXPECT_EQ(ErrorReason(Detect({.model = "full"}, {1}).status()), "QUEUE_FULL");
}

TEST(DetectStreamTest, EachFrameHasItsBoxes) {
  FakeServer server;
  const auto client = *Client::Create({.address = server.address()});
  std::vector<std::pair<uint64_t, size_t>> boxes;
  absl::Notification ended;
  auto stream = client->OpenDetectionStream(
      {.model = "detector", .policy = StreamPolicy::kQueue, .max_unsent_frames = 100},
      {.on_result =
           [&](DetectionFrameOutcome frame) { boxes.emplace_back(frame.frame_id, frame.result->boxes.size()); },
       .on_end =
           [&](const absl::Status& status) {
             EXPECT_TRUE(status.ok()) << status;
             ended.Notify();
           }});
  ASSERT_TRUE(stream.ok()) << stream.status();
  for (uint64_t id = 0; id < 20; ++id) ASSERT_TRUE((*stream)->Send(id, Cloud(std::vector<float>(id, 1.0f))).ok());
  (*stream)->CloseSends();
  ended.WaitForNotification();
  ASSERT_EQ(boxes.size(), 20u);
  for (uint64_t id = 0; id < 20; ++id) EXPECT_EQ(boxes[id], std::make_pair(id, static_cast<size_t>(id)));
}

TEST(DetectStreamTest, AModelWithoutLabelsNamesTheOtherCallFrameByFrame) {
  FakeServer server;
  const auto client = *Client::Create({.address = server.address()});
  const absl::Status answer = client->Infer({.model = "detector"}, Cloud({1})).status();
  EXPECT_EQ(ErrorReason(answer), kUnsupportedOutput);
  EXPECT_EQ(answer.message(),
            "model \"detector\" answers boxes and no labels; ask it with Detect or OpenDetectionStream");
  std::vector<absl::Status> frames;
  absl::Notification ended;
  auto stream = client->OpenStream({.model = "detector", .policy = StreamPolicy::kQueue},
                                   {.on_result = [&](FrameOutcome frame) { frames.push_back(frame.result.status()); },
                                    .on_end = [&](const absl::Status&) { ended.Notify(); }});
  ASSERT_TRUE(stream.ok()) << stream.status();
  for (uint64_t id = 0; id < 2; ++id) ASSERT_TRUE((*stream)->Send(id, Cloud({1})).ok());
  (*stream)->CloseSends();
  ended.WaitForNotification();
  EXPECT_THAT(frames, testing::ElementsAre(answer, answer));
}

}  // namespace
}  // namespace voxserve::client::detect_test
