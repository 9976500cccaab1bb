#include "client/cpp/api/stream.h"

#include <algorithm>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/api/client.h"
#include "gmock/gmock.h"
#include "tests/client/api/clouds.h"
#include "tests/client/fake_server.h"

namespace voxserve::client::stream_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kLargeCloud = 1'000'000;  // points, 16 MB: more than gRPC and the socket take from a writer

// Records the events of a stream, in order.
class Log {
 public:
  StreamCallbacks Callbacks() {
    return {.on_result =
                [this](FrameOutcome frame) {
                  absl::MutexLock lock(&mutex_);
                  EXPECT_FALSE(end_.has_value()) << "a result after the end";
                  results_.push_back(std::move(frame));
                },
            .on_going_away =
                [this] {
                  absl::MutexLock lock(&mutex_);
                  ++num_going_away_;
                },
            .on_end =
                [this](absl::Status status) {
                  absl::MutexLock lock(&mutex_);
                  EXPECT_FALSE(end_.has_value()) << "a second end";
                  end_ = std::move(status);
                }};
  }

  void AwaitResults(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto has_enough = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return results_.size() >= count; };
    mutex_.Await(absl::Condition(&has_enough));
  }

  absl::Status AwaitEnd() {
    absl::MutexLock lock(&mutex_);
    const auto has_ended = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return end_.has_value(); };
    mutex_.Await(absl::Condition(&has_ended));
    return *end_;
  }

  void AwaitGoingAway() {
    absl::MutexLock lock(&mutex_);
    const auto is_away = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return num_going_away_ > 0; };
    mutex_.Await(absl::Condition(&is_away));
  }

  std::vector<FrameOutcome> results() const {
    absl::MutexLock lock(&mutex_);
    return results_;
  }

  std::map<uint64_t, absl::Status> StatusByFrame() const {
    std::map<uint64_t, absl::Status> statuses;
    for (const FrameOutcome& frame : results()) {
      EXPECT_TRUE(statuses.emplace(frame.frame_id, frame.result.status()).second) << "two results for one frame";
    }
    return statuses;
  }

  int num_going_away() const {
    absl::MutexLock lock(&mutex_);
    return num_going_away_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<FrameOutcome> results_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  int num_going_away_ ABSL_GUARDED_BY(mutex_) = 0;
};

class StreamTest : public testing::Test {
 protected:
  StreamTest() : client_(*Client::Create({.address = server_->address()})) {}

  std::unique_ptr<Stream> Open(const StreamOptions& options) {
    auto stream = client_->OpenStream(options, log_.Callbacks());
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *std::move(stream);
  }

  std::unique_ptr<FakeServer> server_ = std::make_unique<FakeServer>();
  std::unique_ptr<Client> client_;
  Log log_;
};

TEST_F(StreamTest, AnswersEveryFrameAndEndsWithTheSends) {
  const auto stream = Open({.model = "segmenter", .policy = StreamPolicy::kQueue});
  for (uint64_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(stream->Send(100 + i, Cloud({static_cast<float>(i), 1})).ok());
    log_.AwaitResults(i + 1);
  }
  stream->CloseSends();
  EXPECT_TRUE(log_.AwaitEnd().ok()) << log_.AwaitEnd();
  const std::vector<FrameOutcome> results = log_.results();
  ASSERT_EQ(results.size(), 8u);
  for (uint64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(results[i].frame_id, 100 + i);
    ASSERT_TRUE(results[i].result.ok()) << results[i].result.status();
    EXPECT_THAT(results[i].result->labels, ElementsAre(i % 3, 1));
    EXPECT_EQ(results[i].result->version, 2);
    EXPECT_GT(results[i].result->round_trip, absl::ZeroDuration());
    EXPECT_EQ(results[i].num_sweeps, 0);
  }
  EXPECT_EQ(log_.num_going_away(), 0);
}

TEST_F(StreamTest, SamplesEveryFrame) {
  const auto stream = Open({.model = "segmenter", .sample = FarthestPoints{.num_points = 2, .seed = 9}});
  ASSERT_TRUE(stream->Send(1, Cloud({0, 1, 2})).ok());
  stream->CloseSends();
  EXPECT_TRUE(log_.AwaitEnd().ok());
  EXPECT_EQ(server_->last_stream_config().sample().seed(), 9u);
  const std::vector<FrameOutcome> results = log_.results();
  ASSERT_EQ(results.size(), 1u);
  ASSERT_TRUE(results[0].result.ok()) << results[0].result.status();
  EXPECT_THAT(results[0].result->sampled_points, ElementsAre(1, 2));
}

TEST_F(StreamTest, SendsItsOptionsAndTheFramesAsTheyAre) {
  const auto stream = Open({.model = "segmenter",
                            .version = 1,
                            .return_scores = true,
                            .priority = 3,
                            .policy = StreamPolicy::kQueue,
                            .frame_timeout = absl::Milliseconds(1500),
                            .max_queued_frames = 7,
                            .sweeps = SweepOptions{5, "age", absl::Milliseconds(750)}});
  PointCloud cloud = Cloud({1, 2});
  cloud.set_frame_id("lidar");
  cloud.mutable_stamp()->set_seconds(1700000000);
  ASSERT_TRUE(stream->Send(~uint64_t{0}, cloud, {.pose = Pose{1, -2, 3, 0.5, 0.5, -0.5, 0.5}}).ok());
  log_.AwaitResults(1);
  ASSERT_TRUE(stream->Send(8, cloud, {.pose = Pose{}, .reset_sweeps = true}).ok());
  stream->CloseSends();
  EXPECT_TRUE(log_.AwaitEnd().ok());
  const v1::StreamConfig config = server_->last_stream_config();
  EXPECT_EQ(config.model(), "segmenter");
  EXPECT_EQ(config.version(), 1);
  EXPECT_TRUE(config.return_scores());
  EXPECT_EQ(config.priority(), 3u);
  EXPECT_EQ(config.policy(), v1::STREAM_POLICY_QUEUE);
  EXPECT_EQ(config.frame_timeout().seconds(), 1);
  EXPECT_EQ(config.frame_timeout().nanos(), 500'000'000);
  EXPECT_EQ(config.max_queued_frames(), 7u);
  EXPECT_EQ(config.sweeps().num_sweeps(), 5u);
  EXPECT_EQ(config.sweeps().age_feature(), "age");
  EXPECT_EQ(config.sweeps().max_age().nanos(), 750'000'000);
  const std::vector<v1::StreamFrame> frames = server_->frames();
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0].frame_id(), ~uint64_t{0});
  EXPECT_EQ(frames[0].cloud().SerializeAsString(), cloud.SerializeAsString());
  EXPECT_FALSE(frames[0].reset_sweeps());
  EXPECT_EQ(frames[0].pose().y(), -2);
  EXPECT_EQ(frames[0].pose().qw(), 0.5);
  EXPECT_EQ(frames[0].pose().qz(), 0.5);
  EXPECT_TRUE(frames[1].reset_sweeps());
  const std::vector<FrameOutcome> results = log_.results();
  ASSERT_EQ(results.size(), 2u);
  EXPECT_THAT(results[0].result->scores, ElementsAre(-1, 1, -1, -1, -1, 1));
  EXPECT_EQ(results[0].num_sweeps, 1);
  EXPECT_EQ(results[1].num_sweeps, 1);
}

TEST_F(StreamTest, AFrameThatFailsEndsNothingButItself) {
  const auto stream = Open({.model = "full"});
  for (uint64_t i = 1; i <= 2; ++i) {
    ASSERT_TRUE(stream->Send(i, Cloud({1})).ok());
    log_.AwaitResults(i);
  }
  for (const FrameOutcome& frame : log_.results()) {
    EXPECT_EQ(frame.result.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(ErrorReason(frame.result.status()), "QUEUE_FULL");
    EXPECT_EQ(RetryDelay(frame.result.status()), absl::Milliseconds(250));
  }
  stream->CloseSends();
  EXPECT_TRUE(log_.AwaitEnd().ok());
}

TEST_F(StreamTest, LatestKeepsTheNewestOfTheFramesThatWaitToBeSent) {
  const auto stream = Open({.model = "held", .sweeps = SweepOptions{2, "", std::nullopt}});
  PointCloud large = CloudOf(kLargeCloud), cloud = Cloud({1, 2});
  large.mutable_stamp();
  cloud.mutable_stamp();
  const FrameOptions options = {.pose = Pose{}};
  ASSERT_TRUE(stream->Send(1, large, options).ok());
  ASSERT_TRUE(stream->Send(2, large, options).ok());
  ASSERT_TRUE(stream->Send(3, cloud, {.pose = Pose{}, .reset_sweeps = true}).ok());
  ASSERT_TRUE(stream->Send(4, cloud, options).ok());
  ASSERT_TRUE(stream->Send(5, cloud, options).ok());
  server_->ReleaseStreams();
  stream->CloseSends();
  EXPECT_TRUE(log_.AwaitEnd().ok()) << log_.AwaitEnd();
  // Which frames are sent depends on when the config left the client. The newest frame is always sent, and at least two
  // of the five are never sent.
  std::vector<uint64_t> sent;
  bool is_reset = false;
  for (const v1::StreamFrame& frame : server_->frames()) {
    sent.push_back(frame.frame_id());
    is_reset = is_reset || (frame.frame_id() >= 3 && frame.reset_sweeps());
    EXPECT_EQ(frame.cloud().data(), frame.frame_id() < 3 ? large.data() : cloud.data());
  }
  EXPECT_TRUE(is_reset) << "frame 3's reset was lost";
  EXPECT_TRUE(std::is_sorted(sent.begin(), sent.end()));
  EXPECT_LE(sent.size(), 3u);
  EXPECT_THAT(sent, testing::Contains(5));
  const auto statuses = log_.StatusByFrame();
  ASSERT_EQ(statuses.size(), 5u);
  for (const auto& [frame_id, status] : statuses) {
    if (std::binary_search(sent.begin(), sent.end(), frame_id)) {
      EXPECT_TRUE(status.ok()) << frame_id << status;
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << frame_id << status;
      EXPECT_EQ(ErrorReason(status), kSuperseded);
    }
  }
}

TEST_F(StreamTest, AFrameInPartsGetsOneResult) {
  const auto stream = Open({.model = "segmenter", .policy = StreamPolicy::kQueue});
  PointCloud second = Cloud({2});
  second.mutable_stamp()->set_seconds(5);
  ASSERT_TRUE(stream->SendPart(7, Cloud({0, 1}), /*is_last=*/false).ok());
  ASSERT_TRUE(stream->SendPart(7, second, false, {.pose = Pose{.x = 3}, .reset_sweeps = true}).ok());
  ASSERT_TRUE(stream->SendPart(7, Cloud({}), /*is_last=*/true).ok());
  ASSERT_TRUE(stream->Send(8, Cloud({1})).ok());
  ASSERT_TRUE(stream->SendPart(9, Cloud({2, 2}), /*is_last=*/true).ok());
  stream->CloseSends();
  EXPECT_TRUE(log_.AwaitEnd().ok()) << log_.AwaitEnd();
  const std::vector<FrameOutcome> results = log_.results();
  ASSERT_EQ(results.size(), 3u);
  ASSERT_TRUE(results[0].result.ok()) << results[0].result.status();
  EXPECT_EQ(results[0].frame_id, 7u);
  EXPECT_THAT(results[0].result->labels, ElementsAre(0, 1, 2));
  EXPECT_GT(results[0].result->round_trip, absl::ZeroDuration());
  EXPECT_TRUE(results[1].result.ok());
  EXPECT_THAT(results[2].result->labels, ElementsAre(2, 2));
  const std::vector<v1::FramePart> parts = server_->parts();
  ASSERT_EQ(parts.size(), 4u);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(parts[i].frame_id(), 7u);
    EXPECT_EQ(parts[i].index(), i);
    EXPECT_EQ(parts[i].is_last(), i == 2);
    EXPECT_EQ(parts[i].cloud().fields_size(), 4);
  }
  EXPECT_EQ(parts[1].cloud().SerializeAsString(), second.SerializeAsString());
  EXPECT_EQ(parts[1].pose().x(), 3);
  EXPECT_TRUE(parts[1].reset_sweeps());
}

TEST_F(StreamTest, PartsOfAFrameWithAResultAreDropped) {
  size_t num_sent = 0;
  for (const absl::Duration reopen_for : {absl::ZeroDuration(), absl::Seconds(10)}) {
    SCOPED_TRACE(reopen_for);
    Log log;
    const auto stream = client_->OpenStream({.model = "hasty", .reopen_for = reopen_for}, log.Callbacks());
    ASSERT_TRUE(stream.ok()) << stream.status();
    ASSERT_TRUE((*stream)->SendPart(1, Cloud({1}), /*is_last=*/false).ok());
    log.AwaitResults(1);
    ASSERT_TRUE((*stream)->SendPart(1, Cloud({2}), /*is_last=*/false).ok());
    ASSERT_TRUE((*stream)->SendPart(1, Cloud({2}), /*is_last=*/true).ok());
    ASSERT_TRUE((*stream)->SendPart(2, Cloud({2}), /*is_last=*/true).ok()) << "the next frame";
    (*stream)->CloseSends();
    EXPECT_TRUE(log.AwaitEnd().ok()) << log.AwaitEnd();
    const std::vector<FrameOutcome> results = log.results();
    ASSERT_EQ(results.size(), 2u);
    for (const FrameOutcome& frame : results) ASSERT_TRUE(frame.result.ok()) << frame.result.status();
    EXPECT_THAT(results[0].result->labels, ElementsAre(1));
    EXPECT_THAT(results[1].result->labels, ElementsAre(2));
    const std::vector<v1::FramePart> parts = server_->parts();
    num_sent += 2;
    ASSERT_EQ(parts.size(), num_sent) << "the late parts were not sent";
    EXPECT_EQ(parts[num_sent - 2].frame_id(), 1u);
    EXPECT_EQ(parts[num_sent - 1].frame_id(), 2u);
  }
}

TEST_F(StreamTest, AFrameInPartsMayNotHaveTheIdOfTheLastOne) {
  const auto stream = Open({.model = "segmenter"});
  ASSERT_TRUE(stream->SendPart(1, Cloud({1}), /*is_last=*/false).ok());
  ASSERT_TRUE(stream->SendPart(1, Cloud({1}), /*is_last=*/true).ok());
  log_.AwaitResults(1);
  EXPECT_EQ(ErrorReason(stream->SendPart(1, Cloud({1}), /*is_last=*/false)), kDuplicateFrame);
  ASSERT_TRUE(stream->SendPart(2, Cloud({1}), /*is_last=*/true).ok());
  stream->CloseSends();
  EXPECT_TRUE(log_.AwaitEnd().ok());
  EXPECT_EQ(log_.StatusByFrame().size(), 2u);
}

TEST_F(StreamTest, NoPartIsTakenAfterTheEnd) {
  const auto stream = Open({.model = "stranger"});
  ASSERT_TRUE(stream->SendPart(1, Cloud({1}), /*is_last=*/true).ok());
  EXPECT_EQ(ErrorReason(log_.AwaitEnd()), kMalformedResponse);
  EXPECT_EQ(ErrorReason(stream->SendPart(2, Cloud({1}), /*is_last=*/true)), kStreamEnded);
}

TEST_F(StreamTest, AServerThatGoesAwayStillGetsTheRestOfAFrame) {
  const auto stream = Open({.model = "departing"});
  ASSERT_TRUE(stream->SendPart(1, Cloud({1}), /*is_last=*/false).ok());
  log_.AwaitGoingAway();
  ASSERT_TRUE(stream->SendPart(1, Cloud({2}), /*is_last=*/false).ok());
  EXPECT_EQ(ErrorReason(stream->Send(2, Cloud({1}))), "DRAINING");
  ASSERT_TRUE(stream->SendPart(1, Cloud({0}), /*is_last=*/true).ok()) << "the refused frame has not begun";
  EXPECT_EQ(ErrorReason(log_.AwaitEnd()), "DRAINING");
  const std::vector<FrameOutcome> results = log_.results();
  ASSERT_EQ(results.size(), 1u);
  ASSERT_TRUE(results[0].result.ok()) << results[0].result.status();
  EXPECT_THAT(results[0].result->labels, ElementsAre(1, 2, 0));
}

TEST_F(StreamTest, LatestKeepsTheNewestOfTheFramesInPartsThatWait) {
  const auto stream = Open({.model = "held"});
  const PointCloud large = CloudOf(kLargeCloud);
  constexpr uint64_t kNumFrames = 5;
  for (uint64_t frame = 1; frame <= kNumFrames; ++frame) {
    for (int part = 0; part < 3; ++part) {
      ASSERT_TRUE(
          stream->SendPart(frame, frame < 3 ? large : Cloud({1}), part == 2, {.reset_sweeps = frame == 3}).ok());
    }
  }
  server_->ReleaseStreams();
  stream->CloseSends();
  EXPECT_TRUE(log_.AwaitEnd().ok()) << log_.AwaitEnd();
  std::map<uint64_t, uint32_t> sent;  // parts by frame
  bool is_reset = false;
  for (const v1::FramePart& part : server_->parts()) {
    EXPECT_EQ(part.index(), sent[part.frame_id()]++) << "of frame " << part.frame_id();
    is_reset = is_reset || (part.frame_id() >= 3 && part.reset_sweeps());
  }
  EXPECT_TRUE(is_reset) << "frame 3's reset was lost";
  EXPECT_LE(sent.size(), 3u);
  EXPECT_EQ(sent[kNumFrames], 3u);
  const auto statuses = log_.StatusByFrame();
  ASSERT_EQ(statuses.size(), kNumFrames);
  for (const auto& [frame_id, status] : statuses) {
    if (sent.count(frame_id) > 0) {
      EXPECT_EQ(sent[frame_id], 3u) << "a frame whose first part was sent is sent whole";
      EXPECT_TRUE(status.ok()) << frame_id << status;
    } else {
      EXPECT_EQ(ErrorReason(status), kSuperseded);
    }
  }
}

TEST_F(StreamTest, AQueueCountsFramesAndNotTheirParts) {
  const auto stream = Open({.model = "held", .policy = StreamPolicy::kQueue, .max_unsent_frames = 2});
  const PointCloud large = CloudOf(kLargeCloud);
  uint64_t num_accepted = 0;
  absl::Status refusal;
  while (refusal.ok() && num_accepted < 10) {
    refusal = stream->SendPart(num_accepted, large, /*is_last=*/false);
    if (!refusal.ok()) break;
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(stream->SendPart(num_accepted, Cloud({1}), i == 4).ok());
    ++num_accepted;
  }
  EXPECT_EQ(ErrorReason(refusal), kTooManyUnsent);
  EXPECT_GE(num_accepted, 2u);
  server_->ReleaseStreams();
  stream->CloseSends();
  EXPECT_TRUE(log_.AwaitEnd().ok());
  EXPECT_EQ(server_->parts().size(), 6 * num_accepted);
  for (const auto& [frame_id, status] : log_.StatusByFrame()) EXPECT_TRUE(status.ok()) << frame_id << status;
}

TEST_F(StreamTest, QueueRefusesMoreThanMayWaitUnsentAndLosesNone) {
  const auto stream = Open({.model = "held", .policy = StreamPolicy::kQueue, .max_unsent_frames = 2});
  const PointCloud large = CloudOf(kLargeCloud);
  uint64_t num_accepted = 0;
  absl::Status refusal;
  while (refusal.ok() && num_accepted < 10) {
    refusal = stream->Send(num_accepted, large);
    num_accepted += refusal.ok();
  }
  EXPECT_GE(num_accepted, 2u);
  EXPECT_LE(num_accepted, 4u);  // two frames wait, one is being written, one may be in gRPC's buffers
  EXPECT_EQ(refusal.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(refusal), kTooManyUnsent);
  server_->ReleaseStreams();
  log_.AwaitResults(num_accepted);
  ASSERT_TRUE(stream->Send(77, Cloud({1})).ok());
  stream->CloseSends();
  EXPECT_TRUE(log_.AwaitEnd().ok());
  const std::vector<FrameOutcome> results = log_.results();
  ASSERT_EQ(results.size(), num_accepted + 1);
  for (uint64_t i = 0; i < num_accepted; ++i) {
    EXPECT_EQ(results[i].frame_id, i);
    ASSERT_TRUE(results[i].result.ok()) << results[i].result.status();
    EXPECT_EQ(results[i].result->labels.size(), kLargeCloud);
  }
  EXPECT_EQ(results.back().frame_id, 77u);
}

TEST_F(StreamTest, LabelsOfAnotherLengthAreThatFramesError) {
  const auto stream = Open({.model = "liar"});
  ASSERT_TRUE(stream->Send(1, Cloud({1, 2, 3})).ok());
  log_.AwaitResults(1);
  ASSERT_TRUE(stream->Send(2, Cloud({})).ok());  // the model "liar" leaves out a label, but of an empty cloud it cannot
  stream->CloseSends();
  EXPECT_TRUE(log_.AwaitEnd().ok());
  const auto statuses = log_.StatusByFrame();
  EXPECT_EQ(ErrorReason(statuses.at(1)), kMalformedResponse);
  EXPECT_THAT(std::string(statuses.at(1).message()), HasSubstr("2 bytes of labels for 3 points"));
  EXPECT_TRUE(statuses.at(2).ok());
}

TEST_F(StreamTest, AResultForAFrameThatWaitsForNoneEndsTheStream) {
  const auto stream = Open({.model = "stranger"});
  ASSERT_TRUE(stream->Send(5, Cloud({1})).ok());
  const absl::Status end = log_.AwaitEnd();
  EXPECT_EQ(end.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ErrorReason(end), kMalformedResponse);
  EXPECT_THAT(std::string(end.message()), HasSubstr("frame 1005"));
  EXPECT_EQ(ErrorReason(log_.StatusByFrame().at(5)), kMalformedResponse);
}

TEST_F(StreamTest, AnEndWithoutAllResultsIsMalformed) {
  const auto stream = Open({.model = "forgetful", .policy = StreamPolicy::kQueue});
  ASSERT_TRUE(stream->Send(1, Cloud({1})).ok());
  ASSERT_TRUE(stream->Send(2, Cloud({1})).ok());
  stream->CloseSends();
  const absl::Status end = log_.AwaitEnd();
  EXPECT_EQ(ErrorReason(end), kMalformedResponse);
  EXPECT_THAT(std::string(end.message()), HasSubstr("2 frames"));
  EXPECT_EQ(log_.StatusByFrame().size(), 2u);
}

TEST_F(StreamTest, TellsThatTheServerGoesAway) {
  const auto stream = Open({.model = "leaving"});
  ASSERT_TRUE(stream->Send(1, Cloud({1})).ok());
  log_.AwaitGoingAway();
  const absl::Status refusal = stream->Send(2, Cloud({1}));
  EXPECT_TRUE(absl::IsUnavailable(refusal) || absl::IsFailedPrecondition(refusal)) << refusal;
  const absl::Status end = log_.AwaitEnd();
  EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(end), "DRAINING");
  EXPECT_EQ(log_.num_going_away(), 1);
  EXPECT_TRUE(log_.StatusByFrame().at(1).ok());
  EXPECT_EQ(log_.StatusByFrame().count(2), 0u);
}

TEST_F(StreamTest, TheEndTellsEveryFrameThatWaited) {
  const auto stream = Open({.model = "slow", .policy = StreamPolicy::kQueue, .timeout = absl::Milliseconds(500)});
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(stream->Send(i, Cloud({1})).ok());
  const absl::Status end = log_.AwaitEnd();
  EXPECT_EQ(end.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ErrorReason(end), kClientTimeout);
  const auto statuses = log_.StatusByFrame();
  ASSERT_EQ(statuses.size(), 3u);
  for (const auto& [frame_id, status] : statuses) EXPECT_EQ(status, end) << frame_id;
  EXPECT_EQ(ErrorReason(stream->Send(9, Cloud({1}))), kStreamEnded);
}

TEST_F(StreamTest, CancelEndsItAndSoDoesItsDestruction) {
  {
    const auto stream = Open({.model = "slow"});
    ASSERT_TRUE(stream->Send(1, Cloud({1})).ok());
    stream->Cancel();
    EXPECT_EQ(log_.AwaitEnd().code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(log_.StatusByFrame().at(1).code(), absl::StatusCode::kCancelled);
    stream->Cancel();      // does nothing
    stream->CloseSends();  // does nothing
  }
  Log other;
  {
    auto stream = client_->OpenStream({.model = "slow"}, other.Callbacks());
    ASSERT_TRUE(stream.ok());
    client_.reset();  // a stream may outlive its client
    ASSERT_TRUE((*stream)->Send(1, Cloud({1})).ok());
  }
  EXPECT_EQ(other.AwaitEnd().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(other.StatusByFrame().size(), 1u);
}

TEST_F(StreamTest, EndsAsInferWouldFail) {
  Open({.model = "missing"});  // the returned stream is destroyed before the server answers
  EXPECT_FALSE(log_.AwaitEnd().ok());
  Log missing;
  const auto stream = client_->OpenStream({.model = "missing"}, missing.Callbacks());
  ASSERT_TRUE(stream.ok());
  EXPECT_EQ(ErrorReason(missing.AwaitEnd()), "MODEL_NOT_FOUND");
  const auto nowhere = Client::Create({.address = UnusedAddress()});
  ASSERT_TRUE(nowhere.ok());
  Log lost;
  const auto no_stream = (*nowhere)->OpenStream({.model = "segmenter"}, lost.Callbacks());
  ASSERT_TRUE(no_stream.ok());
  EXPECT_EQ(ErrorReason(lost.AwaitEnd()), kNoServer);
}

TEST_F(StreamTest, AServerThatDiesIsALostConnection) {
  const auto stream = Open({.model = "segmenter"});
  ASSERT_TRUE(stream->Send(1, Cloud({1})).ok());
  log_.AwaitResults(1);
  server_.reset();
  EXPECT_EQ(log_.AwaitEnd().code(), absl::StatusCode::kUnavailable);
}

TEST_F(StreamTest, RefusesFramesThatCannotBeMeant) {
  const auto stream = Open({.model = "slow", .sweeps = SweepOptions{3, "", std::nullopt}});
  PointCloud stamped = Cloud({1});
  stamped.mutable_stamp();
  const FrameOptions posed = {.pose = Pose{}};
  EXPECT_THAT(std::string(stream->Send(1, stamped).message()), HasSubstr("pose"));
  EXPECT_THAT(std::string(stream->Send(1, Cloud({1}), posed).message()), HasSubstr("stamp"));
  EXPECT_TRUE(stream->Send(1, stamped, posed).ok());
  const absl::Status duplicate = stream->Send(1, stamped, posed);
  EXPECT_EQ(duplicate.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReason(duplicate), kDuplicateFrame);
  PointCloud oversized = stamped;
  oversized.set_data(std::string(65 << 20, 'x'));
  EXPECT_EQ(ErrorReason(stream->Send(2, oversized, posed)), kMessageTooLarge);
  stream->CloseSends();
  EXPECT_EQ(ErrorReason(stream->Send(3, stamped, posed)), kStreamEnded);
}

TEST(StreamOptionsTest, NamesTheOptionThatIsWrong) {
  const auto client = Client::Create({});
  ASSERT_TRUE(client.ok());
  const absl::Duration none = absl::ZeroDuration();
  for (const auto& [options, name] : std::vector<std::pair<StreamOptions, std::string>>{
           {{}, "no model"},
           {{.model = "m", .frame_timeout = none}, "frame_timeout"},
           {{.model = "m", .frame_timeout = absl::InfiniteDuration()}, "frame_timeout"},
           {{.model = "m", .max_queued_frames = 65}, "max_queued_frames"},
           {{.model = "m", .max_queued_frames = -1}, "max_queued_frames"},
           {{.model = "m", .max_unsent_frames = 0}, "max_unsent_frames"},
           {{.model = "m", .sweeps = SweepOptions{0, "", std::nullopt}}, "num_sweeps"},
           {{.model = "m", .sweeps = SweepOptions{65, "", std::nullopt}}, "num_sweeps"},
           {{.model = "m", .sweeps = SweepOptions{2, "", none}}, "max_age"},
           {{.model = "m", .timeout = none}, "timeout"}}) {
    const auto stream = (*client)->OpenStream(options, {});
    EXPECT_EQ(stream.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(stream.status().message()), HasSubstr(name));
  }
}

TEST_F(StreamTest, ManyThreadsMaySend) {
  const auto stream = Open({.model = "segmenter", .policy = StreamPolicy::kLatest});
  constexpr uint64_t kThreads = 4, kFrames = 100;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < kFrames; ++i) EXPECT_TRUE(stream->Send(t * kFrames + i, Cloud({1, 2})).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  stream->CloseSends();
  EXPECT_TRUE(log_.AwaitEnd().ok());
  const auto statuses = log_.StatusByFrame();
  EXPECT_EQ(statuses.size(), kThreads * kFrames);
  for (const auto& [frame_id, status] : statuses) {
    EXPECT_TRUE(status.ok() || ErrorReason(status) == kSuperseded) << frame_id << status;
  }
}

}  // namespace
}  // namespace voxserve::client::stream_test
