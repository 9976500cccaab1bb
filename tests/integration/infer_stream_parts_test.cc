// Tests what a vehicle gets that sends its frames in parts (FramePart): one result for each frame, in every case.

#include <gmock/gmock.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/infer_stream_fixture.h"
#include "tests/support/fake_pinned_memory.h"

namespace voxserve::infer_stream_parts_test {
namespace {

using grpc::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class InferStreamPartsTest : public InferStreamTest {
 protected:
  // Expects the result number `index` of the vehicle.
  static void ExpectResult(Vehicle& vehicle, size_t index, uint64_t frame_id, StatusCode code,
                           const std::string& reason, const std::string& text) {
    ASSERT_TRUE(vehicle.AwaitResults(index + 1));
    const v1::FrameResult result = vehicle.results()[index];
    EXPECT_EQ(result.frame_id(), frame_id);
    EXPECT_EQ(result.status().code(), static_cast<int>(code));
    EXPECT_EQ(Vehicle::OutcomeOf(result), reason);
    EXPECT_THAT(result.status().message(), HasSubstr(text));
    EXPECT_FALSE(result.has_response());
  }

  // Expects that the vehicle's next frame, which comes in two parts, is the next one to be answered.
  static void ExpectNextFrameIsServed(Vehicle& vehicle, uint64_t frame_id) {
    const size_t before = vehicle.results().size();
    ASSERT_TRUE(vehicle.Send(FramePartOf(frame_id, 0, 3)));
    ASSERT_TRUE(vehicle.Send(FramePartOf(frame_id, 1, 4, /*is_last=*/true)));
    ASSERT_TRUE(vehicle.AwaitResults(before + 1));
    const v1::FrameResult result = vehicle.results()[before];
    EXPECT_EQ(result.frame_id(), frame_id);
    EXPECT_EQ(Vehicle::OutcomeOf(result), "OK");
    EXPECT_EQ(result.response().segmentation().labels().size(), 7u);
  }

  // Returns the bytes that the server holds for clients' requests and frames.
  double HeldBytes() { return MetricOf(R"(voxserve_memory_bytes{use="requests"})"); }
  bool AwaitNothingHeld() { return AwaitMetric(R"(voxserve_memory_bytes{use="requests"})", 0); }
};

TEST_F(InferStreamPartsTest, PartsInAnyOrderAreOneFrame) {
  Start({.labels_are_bytes = true});
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  const std::vector<std::vector<uint32_t>> orders = {{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}};
  for (size_t i = 0; i < orders.size(); ++i) {
    for (const uint32_t index : orders[i]) {
      EXPECT_EQ(engine_->num_started(), static_cast<int64_t>(i));
      v1::FramePart part = FramePartOf(i, index, 10 + index, index == 3);
      // The first byte of each point is its number in the whole frame.
      std::string& data = *part.mutable_cloud()->mutable_data();
      const uint32_t first = index * 10 + index * (index - 1) / 2;
      for (uint32_t point = 0; point < 10 + index; ++point) data[point * 16] = static_cast<char>(first + point);
      part.mutable_cloud()->mutable_stamp()->set_seconds(absl::ToUnixSeconds(absl::Now()) - 1);
      ASSERT_TRUE(vehicle.Send(part));
    }
    ASSERT_TRUE(vehicle.AwaitResults(i + 1));
    const v1::FrameResult result = vehicle.results()[i];
    EXPECT_EQ(Vehicle::OutcomeOf(result), "OK") << result.status().message();
    const std::string& labels = result.response().segmentation().labels();
    ASSERT_EQ(labels.size(), 46u);
    for (size_t point = 0; point < labels.size(); ++point) ASSERT_EQ(labels[point], static_cast<char>(point));
  }
  vehicle.CloseSends();
  EXPECT_TRUE(vehicle.End().ok()) << vehicle.End().error_message();
  EXPECT_EQ(vehicle.order(), (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_EQ(MetricOf(R"(voxserve_frames_total{model="fake"})"), 3);
  EXPECT_EQ(MetricOf(R"(voxserve_frame_age_seconds_count{model="fake"})"), 3);
  EXPECT_EQ(MetricOf(R"(voxserve_requests_total{code="OK",model="fake",version="2"})"), 3);
  EXPECT_TRUE(AwaitNothingHeld());
}

TEST_F(InferStreamPartsTest, WholeFramesAndPartsMix) {
  Start();
  Vehicle vehicle(client_.get(), StreamConfigOf("fake", v1::STREAM_POLICY_QUEUE));
  ASSERT_TRUE(vehicle.Send(1, 10));
  ASSERT_TRUE(vehicle.Send(FramePartOf(2, 0, 5)));
  ASSERT_TRUE(vehicle.Send(FramePartOf(2, 1, 0, /*is_last=*/true))) << "which tells only that the scan has ended";
  ASSERT_TRUE(vehicle.Send(3, 10));
  ASSERT_TRUE(vehicle.Send(FramePartOf(4, 0, 6, /*is_last=*/true)));
  vehicle.CloseSends();
  EXPECT_TRUE(vehicle.End().ok());
  EXPECT_EQ(vehicle.order(), UpTo(4));
  EXPECT_EQ(vehicle.outcomes(), (Outcomes{{1, "OK"}, {2, "OK"}, {3, "OK"}, {4, "OK"}}));
  EXPECT_EQ(vehicle.results()[1].response().segmentation().labels().size(), 5u);
}

TEST_F(InferStreamPartsTest, AFrameThatCannotBecomeWholeFailsAtOnceAndOnce) {
  Options options;
  options.max_message_bytes = 1 << 20;
  Start({}, options);
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  uint64_t frame = 0;
  size_t num_results = 0;
  const auto expect_refused = [&](v1::FramePart part, StatusCode code, const std::string& reason,
                                  const std::string& text) {
    SCOPED_TRACE(text);
    ++frame;
    ASSERT_TRUE(vehicle.Send(FramePartOf(frame, 0, 10)));
    part.set_frame_id(frame);
    ASSERT_TRUE(vehicle.Send(part));
    ExpectResult(vehicle, num_results++, frame, code, reason, text);
    ASSERT_TRUE(vehicle.Send(FramePartOf(frame, 0, 10))) << "late parts get no second result";
    ASSERT_TRUE(vehicle.Send(FramePartOf(frame, 9, 10, /*is_last=*/true)));
    ExpectNextFrameIsServed(vehicle, ++frame);
    ++num_results;
  };
  expect_refused(FramePartOf(0, 0, 10), StatusCode::INVALID_ARGUMENT, "BAD_PART", "part 0 of frame 1 came twice");
  expect_refused(FramePartOf(0, 5000, 10), StatusCode::INVALID_ARGUMENT, "BAD_PART", "at most 4096");
  v1::FramePart part = FramePartOf(0, 1, 10);
  part.mutable_cloud()->mutable_fields(3)->set_scale(0.5);
  expect_refused(part, StatusCode::INVALID_ARGUMENT, "BAD_LAYOUT", "differ in their fields");
  part = FramePartOf(0, 1, 10);
  part.mutable_cloud()->mutable_data()->pop_back();
  expect_refused(part, StatusCode::INVALID_ARGUMENT, "BAD_LAYOUT", "159");
  part = FramePartOf(0, 1, 10);
  part.clear_cloud();
  expect_refused(part, StatusCode::INVALID_ARGUMENT, "MISSING_CLOUD", "no cloud");
  part = FramePartOf(0, 1, 10);
  part.mutable_cloud()->mutable_stamp()->set_nanos(-1);
  expect_refused(part, StatusCode::INVALID_ARGUMENT, "BAD_STAMP", "stamp");
  part = FramePartOf(0, 1, 10);
  part.mutable_cloud()->set_frame_id(std::string(300, 'n'));
  expect_refused(part, StatusCode::INVALID_ARGUMENT, "MALFORMED_MESSAGE", "at most 256 are allowed");
  expect_refused(FramePartOf(0, 1, 65'530), StatusCode::RESOURCE_EXHAUSTED, "FRAME_TOO_LARGE", "--max_message_bytes");
  EXPECT_EQ(vehicle.results().size(), num_results);
  vehicle.CloseSends();
  EXPECT_TRUE(vehicle.End().ok());
  EXPECT_EQ(vehicle.results().size(), num_results);
  EXPECT_TRUE(AwaitNothingHeld());
}

TEST_F(InferStreamPartsTest, AFirstPartMayBeTheBadOne) {
  Start();
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  v1::FramePart part = FramePartOf(1, 0, 10);
  part.mutable_cloud()->set_frame_id(std::string(300, 'n'));
  ASSERT_TRUE(vehicle.Send(part));
  ExpectResult(vehicle, 0, 1, StatusCode::INVALID_ARGUMENT, "MALFORMED_MESSAGE", "at most 256");
  ASSERT_TRUE(vehicle.Send(FramePartOf(1, 1, 10)));
  ASSERT_TRUE(vehicle.Send(FramePartOf(1, 2, 10, /*is_last=*/true)));
  ExpectNextFrameIsServed(vehicle, 2);
}

TEST_F(InferStreamPartsTest, AMalformedPartWithoutAReadableIdLeavesTheFrame) {
  Start();
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  ASSERT_TRUE(vehicle.Send(FramePartOf(1, 0, 10)));
  v1::FramePart malformed = FramePartOf(0, 1, 10);  // the id 0 is not sent, and the other fields are too many to read
  for (int i = 0; i < 5000; ++i) malformed.GetReflection()->MutableUnknownFields(&malformed)->AddVarint(100, 1);
  ASSERT_TRUE(vehicle.Send(malformed));
  ExpectResult(vehicle, 0, 0, StatusCode::INVALID_ARGUMENT, "MALFORMED_MESSAGE", "values");
  ASSERT_TRUE(vehicle.Send(FramePartOf(1, 1, 10, /*is_last=*/true)));
  ASSERT_TRUE(vehicle.AwaitResults(2));
  EXPECT_EQ(vehicle.order(), (std::vector<uint64_t>{0, 1}));
  EXPECT_EQ(vehicle.outcomes()[1], "OK");
  ExpectNextFrameIsServed(vehicle, 0);
  EXPECT_TRUE(AwaitNothingHeld());
}

TEST_F(InferStreamPartsTest, AMalformedPartOfFrame0IsItsOwn) {
  Start();
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  ASSERT_TRUE(vehicle.Send(FramePartOf(0, 0, 10)));
  v1::FramePart malformed = FramePartOf(0, 1, 10);  // the id 0 is not sent, but all fields can be read
  malformed.mutable_cloud()->set_frame_id(std::string(300, 'n'));
  ASSERT_TRUE(vehicle.Send(malformed));
  ExpectResult(vehicle, 0, 0, StatusCode::INVALID_ARGUMENT, "MALFORMED_MESSAGE", "at most 256");
  ASSERT_TRUE(vehicle.Send(FramePartOf(0, 2, 10, /*is_last=*/true))) << "it is late";
  ExpectNextFrameIsServed(vehicle, 1);
  EXPECT_EQ(vehicle.results().size(), 2u);
}

TEST_F(InferStreamPartsTest, TheModelsLimitHoldsForAllPartsTogether) {
  Start();
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  const int64_t most = engine_->GetModel("fake", 0)->max_points;
  ASSERT_GT(most, 0);
  ASSERT_TRUE(vehicle.Send(FramePartOf(1, 1, most)));
  ASSERT_TRUE(vehicle.Send(FramePartOf(1, 0, 1)));
  ExpectResult(vehicle, 0, 1, StatusCode::INVALID_ARGUMENT, "TOO_MANY_POINTS",
               absl::StrCat("the limit of model \"fake\", which is ", most));
  ExpectNextFrameIsServed(vehicle, 2);
}

TEST_F(InferStreamPartsTest, TheNextFrameEndsTheOneBeforeIt) {
  Start();
  Vehicle vehicle(client_.get(), StreamConfigOf("fake", v1::STREAM_POLICY_QUEUE));
  ASSERT_TRUE(vehicle.Send(FramePartOf(1, 0, 10)));
  ASSERT_TRUE(vehicle.Send(FramePartOf(1, 2, 10, /*is_last=*/true)));
  ASSERT_TRUE(vehicle.Send(FramePartOf(2, 0, 10)));
  ExpectResult(vehicle, 0, 1, StatusCode::INVALID_ARGUMENT, "FRAME_INCOMPLETE",
               "frame 1 lacks parts 1: the next frame began");
  ASSERT_TRUE(vehicle.Send(FramePartOf(1, 1, 10))) << "it is late, and disturbs nobody";
  ASSERT_TRUE(vehicle.Send(FramePartOf(2, 1, 10, /*is_last=*/true)));
  ASSERT_TRUE(vehicle.Send(FramePartOf(3, 0, 10)));
  ASSERT_TRUE(vehicle.Send(4, 10)) << "a whole frame";
  ASSERT_TRUE(vehicle.Send(FramePartOf(5, 0, 10)));
  v1::StreamFrame malformed = StreamFrameOf(6, 10);
  malformed.mutable_cloud()->set_frame_id(std::string(300, 'n'));
  ASSERT_TRUE(vehicle.Send(malformed));
  vehicle.CloseSends();
  EXPECT_TRUE(vehicle.End().ok());
  EXPECT_EQ(vehicle.order(), UpTo(6));
  EXPECT_EQ(vehicle.outcomes(), (Outcomes{{1, "FRAME_INCOMPLETE"},
                                          {2, "OK"},
                                          {3, "FRAME_INCOMPLETE"},
                                          {4, "OK"},
                                          {5, "FRAME_INCOMPLETE"},
                                          {6, "MALFORMED_MESSAGE"}}));
  EXPECT_TRUE(AwaitNothingHeld());
}

TEST_F(InferStreamPartsTest, AHalfCloseEndsAFrameThatIsNotWhole) {
  Start();
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  ASSERT_TRUE(vehicle.Send(FramePartOf(1, 0, 10)));
  vehicle.CloseSends();
  EXPECT_TRUE(vehicle.End().ok()) << vehicle.End().error_message();
  ExpectResult(vehicle, 0, 1, StatusCode::INVALID_ARGUMENT, "FRAME_INCOMPLETE", "the client sends no more");
  EXPECT_TRUE(AwaitNothingHeld());
}

TEST_F(InferStreamPartsTest, PartsThatComeTooSlowlyEndTheFrameAndNotTheStream) {
  Options options;
  options.stream_idle_timeout = absl::Seconds(1);
  Start({}, options);
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  const absl::Time begin = absl::Now();
  uint32_t index = 0;
  // Parts that keep coming do not keep the frame: its time counts from the first.
  while (vehicle.results().empty() && absl::Now() - begin < absl::Seconds(30)) {
    ASSERT_TRUE(vehicle.Send(FramePartOf(1, index++, 1)));
    absl::SleepFor(absl::Milliseconds(100));
  }
  ExpectResult(vehicle, 0, 1, StatusCode::DEADLINE_EXCEEDED, "FRAME_INCOMPLETE", "the time for its parts is over");
  EXPECT_GE(absl::Now() - begin, absl::Seconds(1));
  ExpectNextFrameIsServed(vehicle, 2);
  ASSERT_TRUE(vehicle.Send(FramePartOf(3, 0, 1)));
  EXPECT_EQ(vehicle.End().error_code(), StatusCode::DEADLINE_EXCEEDED) << "silence ends the stream, as ever";
  EXPECT_EQ(ReasonOf(vehicle.End()), "STREAM_IDLE");
  EXPECT_EQ(vehicle.outcomes(), (Outcomes{{1, "FRAME_INCOMPLETE"}, {2, "OK"}, {3, "FRAME_INCOMPLETE"}}));
  EXPECT_TRUE(AwaitNothingHeld());
}

// The next frame comes just when the time for the parts of the one before it is over.
TEST_F(InferStreamPartsTest, AFrameThatExpiresIsAnsweredBeforeTheNext) {
  Options options;
  options.stream_idle_timeout = absl::Milliseconds(200);
  Start({}, options);
  for (int i = 0; i < 12; ++i) {
    Vehicle vehicle(client_.get(), StreamConfigOf("fake", v1::STREAM_POLICY_QUEUE));
    ASSERT_TRUE(vehicle.Send(FramePartOf(1, 0, 10)));
    absl::SleepFor(absl::Milliseconds(199) + absl::Microseconds(200 * i));
    vehicle.Send(2, 10);
    vehicle.CloseSends();
    vehicle.End();
    // On a busy machine the stream may have been silent for too long before a frame came.
    EXPECT_EQ(vehicle.order(), UpTo(vehicle.results().size())) << i;
  }
  EXPECT_TRUE(AwaitNothingHeld());
}

TEST_F(InferStreamPartsTest, OnlyAWholeFrameSupersedes) {
  Start({.pause = FakeEngine::Pause::kAfterStart});
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  ASSERT_TRUE(vehicle.Send(1, 1));
  ASSERT_TRUE(engine_->AwaitStarted(1));
  ASSERT_TRUE(vehicle.Send(FramePartOf(2, 0, 1)));
  ASSERT_TRUE(vehicle.Send(FramePartOf(2, 1, 1, /*is_last=*/true)));
  ASSERT_TRUE(vehicle.Send(FramePartOf(3, 0, 2)));
  ASSERT_TRUE(engine_->AwaitCancelCalls(1)) << "the second would supersede the first, and waits in the session";
  EXPECT_THAT(vehicle.order(), IsEmpty());
  ASSERT_TRUE(vehicle.Send(FramePartOf(3, 1, 2, /*is_last=*/true)));
  ASSERT_TRUE(vehicle.AwaitResults(1));
  EXPECT_EQ(vehicle.outcomes(), (Outcomes{{2, "SUPERSEDED"}}));
  engine_->Resume();
  ASSERT_TRUE(vehicle.AwaitResults(3));
  EXPECT_EQ(vehicle.outcomes(), (Outcomes{{1, "OK"}, {2, "SUPERSEDED"}, {3, "OK"}}));
  EXPECT_EQ(vehicle.results()[2].response().segmentation().labels().size(), 4u);
}

TEST_F(InferStreamPartsTest, AQueueHoldsBackPartsToo) {
  Start({.max_queue_requests = 2, .pause = FakeEngine::Pause::kBeforeStart});
  v1::StreamConfig config = StreamConfigOf("fake", v1::STREAM_POLICY_QUEUE);
  config.set_max_queued_frames(2);
  Vehicle vehicle(client_.get(), config);
  constexpr uint64_t kNumFrames = 40;
  std::thread sender([&] {
    for (uint64_t frame = 1; frame <= kNumFrames; ++frame) {
      for (uint32_t part = 0; part < 5; ++part) EXPECT_TRUE(vehicle.Send(FramePartOf(frame, part, 6000, part == 4)));
    }
    vehicle.CloseSends();
  });
  EXPECT_TRUE(engine_->AwaitWaiting(2));
  engine_->Resume();
  EXPECT_TRUE(vehicle.End().ok());
  sender.join();
  EXPECT_EQ(vehicle.order(), UpTo(kNumFrames));
  for (const v1::FrameResult& result : vehicle.results()) {
    EXPECT_EQ(Vehicle::OutcomeOf(result), "OK") << result.frame_id();
    EXPECT_EQ(result.response().segmentation().labels().size(), 30'000u);
  }
}

TEST_F(InferStreamPartsTest, SweepsMayComeInParts) {
  Start();
  v1::StreamConfig config = StreamConfigOf("fake", v1::STREAM_POLICY_QUEUE);
  config.mutable_sweeps()->set_num_sweeps(3);
  Vehicle vehicle(client_.get(), config);
  const auto send = [&](uint64_t id, bool has_pose, bool resets) {
    v1::FramePart first = FramePartOf(id, 0, 4);
    first.set_reset_sweeps(resets);
    v1::FramePart last = FramePartOf(id, 1, 6, /*is_last=*/true);
    last.mutable_cloud()->mutable_stamp()->set_seconds(1'700'000'000);
    if (has_pose) last.mutable_pose()->set_qw(1);
    return vehicle.Send(first) && vehicle.Send(last);
  };
  ASSERT_TRUE(send(1, true, false));
  ASSERT_TRUE(send(2, true, false));
  ASSERT_TRUE(send(3, false, false));
  ASSERT_TRUE(send(4, true, true));
  v1::FramePart resets = FramePartOf(5, 0, 4);
  resets.set_reset_sweeps(true);
  ASSERT_TRUE(vehicle.Send(resets)) << "the jump has happened, though the frame does not become whole";
  ASSERT_TRUE(send(6, true, false));
  ASSERT_TRUE(vehicle.AwaitResults(6));
  EXPECT_EQ(vehicle.outcomes(),
            (Outcomes{{1, "OK"}, {2, "OK"}, {3, "BAD_POSE"}, {4, "OK"}, {5, "FRAME_INCOMPLETE"}, {6, "OK"}}));
  std::vector<uint32_t> num_sweeps;
  for (const v1::FrameResult& result : vehicle.results()) num_sweeps.push_back(result.num_sweeps());
  EXPECT_THAT(num_sweeps, ElementsAre(1, 2, 0, 1, 0, 1));
  for (const v1::FrameResult& result : vehicle.results()) {
    EXPECT_EQ(result.response().segmentation().labels().size(), result.has_status() ? 0u : 10u);
  }
}

constexpr int64_t kBytesOfTenPoints = 160;

TEST_F(InferStreamPartsTest, ADrainTakesTheRestOfAFrame) {
  Start();
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  ASSERT_TRUE(vehicle.Send(FramePartOf(1, 0, 10)));
  // The frame has begun when its points alone are held, not the message any more, which has more bytes.
  ASSERT_TRUE(support::AwaitTrue([this] { return HeldBytes() == kBytesOfTenPoints; }));
  std::thread drain([this] { EXPECT_TRUE(server_->Drain(absl::Seconds(30)).ok()); });
  EXPECT_TRUE(vehicle.AwaitGoingAway());
  EXPECT_TRUE(vehicle.Send(FramePartOf(1, 1, 10, /*is_last=*/true)));
  EXPECT_EQ(vehicle.End().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(vehicle.End()), "DRAINING");
  EXPECT_EQ(vehicle.outcomes(), (Outcomes{{1, "OK"}}));
  drain.join();
}

TEST_F(InferStreamPartsTest, ADrainDoesNotWaitForPartsThatDoNotCome) {
  Start();
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  Vehicle next(client_.get(), StreamConfigOf("fake"));
  ASSERT_TRUE(vehicle.Send(FramePartOf(1, 0, 10)));
  ASSERT_TRUE(next.Send(FramePartOf(1, 0, 10)));
  ASSERT_TRUE(AwaitMetric(R"(voxserve_streams{model="fake"})", 2));
  ASSERT_TRUE(support::AwaitTrue([this] { return HeldBytes() == 2 * kBytesOfTenPoints; }));
  const absl::Time begin = absl::Now();
  std::thread drain([this] { EXPECT_TRUE(server_->Drain(absl::Seconds(30)).ok()); });
  EXPECT_TRUE(vehicle.AwaitGoingAway());
  EXPECT_TRUE(next.AwaitGoingAway());
  EXPECT_TRUE(next.Send(FramePartOf(2, 0, 10))) << "a new frame";
  for (Vehicle* each : {&vehicle, &next}) {
    EXPECT_EQ(each->End().error_code(), StatusCode::UNAVAILABLE);
    EXPECT_EQ(ReasonOf(each->End()), "DRAINING");
  }
  drain.join();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(25)) << "the drain's own limit is 30 s";
  EXPECT_EQ(vehicle.outcomes(), (Outcomes{{1, "FRAME_INCOMPLETE"}}));
  EXPECT_EQ(next.outcomes(), (Outcomes{{1, "FRAME_INCOMPLETE"}, {2, "DRAINING"}}));
}

TEST_F(InferStreamPartsTest, AStreamThatFailsAnswersTheFrameThatIsNotWhole) {
  Start();
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  ASSERT_TRUE(vehicle.Send(FramePartOf(1, 0, 10)));
  ASSERT_TRUE(vehicle.Send(StreamConfigOf("fake")));
  EXPECT_EQ(ReasonOf(vehicle.End()), "BAD_STREAM");
  EXPECT_EQ(vehicle.outcomes(), (Outcomes{{1, "BAD_STREAM"}}));
  Vehicle part_first(client_.get());
  part_first.Send(FramePartOf(1, 0, 10));
  EXPECT_EQ(ReasonOf(part_first.End()), "BAD_STREAM");
  EXPECT_TRUE(AwaitNoStreams());
  EXPECT_TRUE(AwaitNothingHeld());
}

TEST_F(InferStreamPartsTest, AVehicleThatVanishesLeavesNoParts) {
  Start();
  for (int i = 0; i < 20; ++i) {
    Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
    ASSERT_TRUE(vehicle.Send(FramePartOf(1, 0, 1000)));
    ASSERT_TRUE(vehicle.Send(FramePartOf(1, 7, 1000)));
    if (i % 2 == 0) {
      ASSERT_TRUE(support::AwaitTrue([this] { return HeldBytes() >= 32'000; }));
    }
    vehicle.Cancel();
    EXPECT_EQ(vehicle.End().error_code(), StatusCode::CANCELLED);
    EXPECT_TRUE(AwaitNothingHeld());
  }
  EXPECT_TRUE(AwaitNoStreams());
  EXPECT_EQ(engine_->num_started(), 0);
  ExpectServerLives();
}

// Frames that never become whole take no more memory than the client's share.
TEST_F(InferStreamPartsTest, OpenFramesStayWithinTheirClientsShare) {
  Options options;
  options.max_queue_bytes = 200'000;
  Start({}, options);
  std::vector<std::unique_ptr<Vehicle>> vehicles;
  size_t num_refused = 0;
  for (int i = 0; i < 40; ++i) {
    vehicles.push_back(std::make_unique<Vehicle>(client_.get(), StreamConfigOf("fake")));
    // 8 kB, 8 kB more that wait for part 1, and a point. A stream that is refused takes no more parts.
    for (const auto& [index, num_points] : {std::pair(0, 500), {2 + i, 500}, {100, 1}}) {
      if (!vehicles.back()->Send(FramePartOf(1, index, num_points))) break;
    }
    EXPECT_LE(HeldBytes(), 100'000 + 20'000) << "half of the limit, and the message that is being read";
  }
  for (const auto& vehicle : vehicles) {
    vehicle->CloseSends();
    if (const grpc::Status status = vehicle->End(); !status.ok()) {
      // While the share is full, as when a message is being read that will be refused, so is a new stream.
      EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
      ++num_refused;
      continue;
    }
    ASSERT_EQ(vehicle->results().size(), 1u);
    const std::string outcome = vehicle->outcomes()[1];
    num_refused += outcome == "CLIENT_LIMIT" ? 1 : 0;
    EXPECT_TRUE(outcome == "CLIENT_LIMIT" || outcome == "FRAME_INCOMPLETE") << outcome;
  }
  EXPECT_GT(num_refused, 20u) << "about 5 frames fit";
  EXPECT_TRUE(AwaitNothingHeld());
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  ExpectNextFrameIsServed(vehicle, 1);
}

// A GPU copies the frame from page-locked memory. Its parts need none.
TEST_F(InferStreamPartsTest, TheFrameLiesInPinnedMemory) {
  support::FakePinnedMemory memory;
  const auto pool = PinnedPool::Create({.source = memory.Source()});
  Start({.pinned_pool = pool});
  support::MakeReady(*pool, 2 * 160'000, 3);  // a frame may let go of its own only after its answer
  Vehicle vehicle(client_.get(), StreamConfigOf("fake"));
  for (uint64_t frame = 1; frame <= 3; ++frame) {
    ASSERT_TRUE(vehicle.Send(FramePartOf(frame, 0, 8000)));
    ASSERT_TRUE(vehicle.Send(FramePartOf(frame, 1, 8000, /*is_last=*/true)));
    ASSERT_TRUE(vehicle.AwaitResults(frame));
    EXPECT_EQ(vehicle.outcomes()[frame], "OK");
    EXPECT_TRUE(frame == 1 || engine_->last_started_was_pinned()) << frame;
  }
}

}  // namespace
}  // namespace voxserve::infer_stream_parts_test
