#include "server/services/call_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "engine/base/error_reason.h"

namespace voxserve {
namespace {

using testing::HasSubstr;

void ExpectQueueFull(const absl::Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), "QUEUE_FULL");
  EXPECT_EQ(RetryDelayOf(status), absl::Milliseconds(100));
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

TEST(CallLimitsTest, BoundsAnswersAndStreamsApart) {
  CallLimits limits({.max_answers = 2, .max_streams = 1});
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(limits.AcceptCall().ok()) << "what waits and runs is the engine's to bound";
  limits.StartAnswer();
  EXPECT_TRUE(limits.AcceptCall().ok());
  limits.StartAnswer();
  ExpectQueueFull(limits.AcceptCall(), "2 answers wait for their clients to read them; the server's limit is 2");
  EXPECT_TRUE(limits.AcceptStream().ok());
  ExpectQueueFull(limits.AcceptStream(), "1 streams; its limit is 1");
  EXPECT_EQ(limits.held().calls, 11);
  EXPECT_EQ(limits.held().streams, 1);
  limits.ReleaseCall();
  EXPECT_TRUE(limits.AcceptCall().ok());
  limits.ReleaseStream();
  EXPECT_TRUE(limits.AcceptStream().ok());
}

TEST(CallLimitsTest, BoundsBytesButNotOfOneAlone) {
  CallLimits limits({.max_unsent_bytes = 100, .max_frame_bytes = 200, .max_sweep_bytes = 300});
  EXPECT_TRUE(limits.HoldAnswer(1000).ok());
  ExpectQueueFull(limits.HoldAnswer(1), "100 (--grpc_memory_bytes)");
  EXPECT_TRUE(limits.HoldFrame(150).ok()) << "each has its own bound";
  EXPECT_TRUE(limits.HoldFrame(50).ok());
  ExpectQueueFull(limits.HoldFrame(1), "200 (--max_queue_bytes)");
  auto sweep = limits.HoldSweep(250);
  EXPECT_TRUE(sweep.ok());
  ExpectQueueFull(limits.HoldSweep(51).status(), "limit of 300");
  limits.ReleaseAnswer(1000);
  EXPECT_TRUE(limits.HoldAnswer(1).ok());
  limits.ReleaseFrame(150);
  EXPECT_TRUE(limits.HoldFrame(1).ok());
  EXPECT_TRUE(limits.HoldSweep(50).ok()) << "given back at once, as nobody keeps the reservation";
  const std::shared_ptr<const void> shared = *sweep;
  sweep = absl::UnknownError("");
  ExpectQueueFull(limits.HoldSweep(51).status(), "limit of 300");
  EXPECT_EQ(limits.held().unsent_bytes, 1);
  EXPECT_EQ(limits.held().frame_bytes, 51);
  EXPECT_EQ(limits.held().sweep_bytes, 250);
}

TEST(CallLimitsTest, AFrameMayTakeThePlaceOfAnother) {
  CallLimits limits({.max_frame_bytes = 200, .max_sweep_bytes = 200});
  ASSERT_TRUE(limits.HoldFrame(100).ok());
  ASSERT_TRUE(limits.HoldFrame(100).ok());
  ExpectQueueFull(limits.HoldFrame(101, 100), "200 (--max_queue_bytes)");
  EXPECT_TRUE(limits.HoldFrame(100, 100).ok());
  ExpectQueueFull(limits.HoldFrame(1), "200 (--max_queue_bytes)");
  limits.ReleaseFrame(100);  // the one that gave way
  ExpectQueueFull(limits.HoldFrame(1), "200 (--max_queue_bytes)");
  limits.ReleaseFrame(100);
  EXPECT_TRUE(limits.HoldFrame(100).ok());

  const auto sweep = limits.HoldSweep(150);
  ExpectQueueFull(limits.HoldSweep(100).status(), "limit of 200");
  EXPECT_TRUE(limits.HoldSweep(100, 150).ok());
}

TEST(CallLimitsTest, ASweepMayOutliveTheService) {
  auto limits = std::make_unique<CallLimits>(CallLimits::Options{});
  absl::StatusOr<std::shared_ptr<const void>> sweep = limits->HoldSweep(100);
  ASSERT_TRUE(sweep.ok());
  limits.reset();
  sweep->reset();
}

TEST(CallLimitsTest, TakesNothingWhileItDrains) {
  CallLimits limits({});
  ASSERT_TRUE(limits.AcceptCall().ok());
  ASSERT_TRUE(limits.AcceptStream().ok());
  limits.StartDraining();
  EXPECT_EQ(ReasonOf(limits.AcceptCall()), "DRAINING");
  EXPECT_EQ(limits.AcceptStream().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(limits.HoldAnswer(1).ok()) << "what was accepted is answered";
  EXPECT_EQ(limits.AwaitReleases(absl::Now()), 2);
  limits.StartAnswer();
  EXPECT_EQ(limits.AwaitReleases(absl::Now()), 2);
  limits.ReleaseCall();
  EXPECT_EQ(limits.AwaitReleases(absl::Now()), 1);
  limits.ReleaseStream();
  EXPECT_EQ(limits.AwaitReleases(absl::InfiniteFuture()), 0);
}

}  // namespace
}  // namespace voxserve
