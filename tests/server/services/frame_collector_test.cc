// Tests FrameCollector: who has a stream's frame in parts, and what becomes of it.

#include "server/services/frame_collector.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "engine/base/error_reason.h"

namespace voxserve::frame_collector_test {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1000);
const absl::Time kExpiry = kNow + absl::Seconds(10);

class FrameCollectorTest : public testing::Test {
 protected:
  static std::unique_ptr<FrameParts> FrameOf(uint64_t id) {
    return std::make_unique<FrameParts>(id, FrameParts::Options{.max_points = 10, .max_bytes = 1000});
  }
  static std::unique_ptr<FrameParts> CompleteFrameOf(uint64_t id) {
    std::unique_ptr<FrameParts> frame = FrameOf(id);
    v1::FramePart part;
    part.set_is_last(true);
    EXPECT_TRUE(frame->Add(part, PointCloud(), HeldBytes()).ok());
    return frame;
  }

  std::unique_ptr<FrameParts> Begin(uint64_t id, std::optional<absl::Status> end = std::nullopt) {
    collector_.Begin(id, kExpiry, std::move(end));
    return FrameOf(id);
  }
  // Gives a frame back that is not complete, and expects that it is kept.
  void Keep(std::unique_ptr<FrameParts> frame) {
    EXPECT_TRUE(collector_.GiveBack(&frame, absl::OkStatus()).ok());
    EXPECT_EQ(frame, nullptr);
  }

  FrameCollector collector_;
};

TEST_F(FrameCollectorTest, AFrameIsKeptBetweenItsParts) {
  EXPECT_EQ(collector_.Resume(7), nullptr);
  EXPECT_EQ(collector_.NextExpiry(), absl::InfiniteFuture());
  Keep(Begin(7));
  EXPECT_EQ(collector_.NextExpiry(), kExpiry);
  EXPECT_EQ(collector_.Resume(8), nullptr) << "another frame";
  std::unique_ptr<FrameParts> frame = collector_.Resume(7);
  ASSERT_NE(frame, nullptr);
  EXPECT_EQ(collector_.NextExpiry(), absl::InfiniteFuture()) << "it cannot expire while a thread has it";
  EXPECT_EQ(collector_.Resume(7), nullptr);
  Keep(std::move(frame));
  EXPECT_EQ(collector_.NextExpiry(), kExpiry);
}

TEST_F(FrameCollectorTest, ACompleteOrBadFrameIsNotKept) {
  std::unique_ptr<FrameParts> complete = CompleteFrameOf(1);
  collector_.Begin(1, kExpiry, std::nullopt);
  EXPECT_TRUE(collector_.GiveBack(&complete, absl::OkStatus()).ok());
  EXPECT_NE(complete, nullptr);
  std::unique_ptr<FrameParts> bad = Begin(2);
  EXPECT_EQ(collector_.GiveBack(&bad, OutOfMemoryError()), OutOfMemoryError());
  EXPECT_NE(bad, nullptr);
  EXPECT_EQ(collector_.Take(), nullptr);
}

TEST_F(FrameCollectorTest, WhoeverTakesItHasItAlone) {
  Keep(Begin(1));
  EXPECT_EQ(collector_.TakeExpired(kExpiry - absl::Nanoseconds(1)), nullptr);
  EXPECT_NE(collector_.TakeExpired(kExpiry), nullptr);
  EXPECT_EQ(collector_.TakeExpired(absl::InfiniteFuture()), nullptr) << "there is none";
  EXPECT_EQ(collector_.Resume(1), nullptr);
  Keep(Begin(2));
  EXPECT_NE(collector_.Take(), nullptr);
  Keep(Begin(3));
  EXPECT_NE(collector_.TakeOrEnd(OutOfMemoryError()), nullptr);
  Keep(Begin(4));
  EXPECT_NE(collector_.Take(), nullptr) << "the error was that of frame 3";
}

TEST_F(FrameCollectorTest, AnErrorWaitsForTheThreadThatHasTheFrame) {
  std::unique_ptr<FrameParts> frame = Begin(1);
  EXPECT_EQ(collector_.Take(), nullptr);
  EXPECT_EQ(collector_.TakeExpired(absl::InfiniteFuture()), nullptr);
  EXPECT_EQ(collector_.TakeOrEnd(absl::CancelledError("first")), nullptr);
  EXPECT_EQ(collector_.TakeOrEnd(absl::CancelledError("second")), nullptr);
  EXPECT_EQ(collector_.GiveBack(&frame, absl::OkStatus()), absl::CancelledError("first"));
  EXPECT_NE(frame, nullptr);

  frame = Begin(2, absl::UnavailableError("ends"));
  EXPECT_EQ(collector_.GiveBack(&frame, absl::OkStatus()), absl::UnavailableError("ends"));
  frame = Begin(3, absl::UnavailableError("ends"));
  EXPECT_EQ(collector_.GiveBack(&frame, absl::DataLossError("its own")), absl::DataLossError("its own"));
  Keep(Begin(4));
}

TEST_F(FrameCollectorTest, ADrainShortensTheTime) {
  std::unique_ptr<FrameParts> frame = Begin(1);
  collector_.ExpireBy(kNow + absl::Seconds(1));
  collector_.ExpireBy(kNow + absl::Seconds(5));
  Keep(std::move(frame));
  EXPECT_EQ(collector_.NextExpiry(), kNow + absl::Seconds(1));
  EXPECT_NE(collector_.Take(), nullptr);
  Keep(Begin(2));
  EXPECT_EQ(collector_.NextExpiry(), kExpiry) << "of another frame";
}

TEST_F(FrameCollectorTest, RemembersTheLast64Frames) {
  for (uint64_t id = 0; id < 64; ++id) {
    EXPECT_FALSE(collector_.IsRecent(id));
    Keep(Begin(id));
    EXPECT_NE(collector_.Take(), nullptr);
  }
  for (uint64_t id = 0; id < 64; ++id) EXPECT_TRUE(collector_.IsRecent(id));
  Begin(64);
  EXPECT_FALSE(collector_.IsRecent(0));
  EXPECT_TRUE(collector_.IsRecent(1));
  EXPECT_TRUE(collector_.IsRecent(64));
}

}  // namespace
}  // namespace voxserve::frame_collector_test
