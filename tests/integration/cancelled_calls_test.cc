// Tests which clients lose their connection because they cancel calls. Vehicles cancel a call when its answer takes too
// long; they must keep their connection. Attackers cancel thousands of calls; they must lose theirs.

#include <gtest/gtest.h>

#include <string>

#include "absl/time/clock.h"
#include "tests/integration/fake_server.h"
#include "tests/integration/unreading_client.h"
#include "tests/support/await_true.h"

namespace voxserve::cancelled_calls_test {
namespace {

constexpr char kClosed[] = R"(voxserve_calls_ended_early_total{reason="UNFINISHED_CALLS"})";
constexpr int kBatch = 1000;  // One client may have this many calls open.

// Returns true if calls come too slowly for tests that need so many within their deadlines, or in a second.
constexpr bool IsTooSlow() {
#ifdef __SANITIZE_THREAD__
  return true;
#else
  return false;
#endif
}

class CancelledCallsTest : public FakeServerTest {
 protected:
  void StartWithLongQueue() { Start({.max_queue_requests = 2 * kBatch, .pause = FakeEngine::Pause::kBeforeStart}); }

  // Begins calls and cancels them once the engine has their requests. Returns false if the connection is gone.
  bool CancelSome(UnreadingClient& client, int number, const v1::InferRequest& request = RequestOf("fake", 1)) {
    for (int i = 0; i < number; ++i) {
      if (!client.Send(request)) return false;
    }
    const bool have_come = engine_->AwaitWaiting(number);
    client.CancelAll();
    return AwaitNoCalls() && have_come;
  }

  bool AwaitNoCalls() const {
    return support::AwaitTrue([this] { return server_->held().calls == 0; });
  }
};

TEST_F(CancelledCallsTest, VehiclesWhoseDeadlinesPassKeepTheirConnection) {
  if (IsTooSlow()) GTEST_SKIP() << "too slow under ThreadSanitizer";
  StartWithLongQueue();
  UnreadingClient vehicles(server_->grpc_port());
  // These are many more calls than one client may leave unfinished in a short time.
  for (int batch = 1; batch <= 20; ++batch) {
    // The timeout is long enough for a busy machine to take notice of a call before it is cancelled.
    for (int i = 0; i < kBatch; ++i) ASSERT_TRUE(vehicles.Send(RequestOf("fake", 1), absl::Milliseconds(250))) << batch;
    ASSERT_TRUE(AwaitNoCalls());
    vehicles.CancelAll();
  }
  EXPECT_EQ(MetricOf(kClosed), -1) << "none";
  EXPECT_GT(MetricOf(R"(voxserve_frames_dropped_total{model="fake",reason="cancelled"})"), 0);
}

TEST_F(CancelledCallsTest, VehiclesWhoseDeadlinesPassDuringTheUploadKeepTheirConnection) {
  if (IsTooSlow()) GTEST_SKIP() << "too slow under ThreadSanitizer";
  Start();
  UnreadingClient vehicles(server_->grpc_port());
  for (int batch = 1; batch <= 5; ++batch) {
    for (int i = 0; i < kBatch / 2; ++i) ASSERT_TRUE(vehicles.Begin(absl::Milliseconds(300))) << batch;
    absl::SleepFor(absl::Milliseconds(300));
    ASSERT_TRUE(AwaitNoCalls());
    vehicles.CancelAll();
  }
  EXPECT_EQ(MetricOf(kClosed), -1) << "none";
}

// A sensor of 20 Hz: the client counts from when it began a call, the server from when it took notice of it.
TEST_F(CancelledCallsTest, VehiclesWhoseDeadlinesPassAtTheNextFrameKeepTheirConnection) {
  if (IsTooSlow()) GTEST_SKIP() << "too slow under ThreadSanitizer";
  Start();
  UnreadingClient vehicles(server_->grpc_port());
  for (int batch = 1; batch <= 30; ++batch) {
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(vehicles.Begin(absl::Milliseconds(50))) << batch;
    absl::SleepFor(absl::Milliseconds(50));
    ASSERT_TRUE(AwaitNoCalls());
    vehicles.CancelAll();
  }
  EXPECT_EQ(MetricOf(kClosed), -1) << "none";
}

// Under overload many scans are cancelled right after they have come. Sending them costs the client more than the
// server.
TEST_F(CancelledCallsTest, WhoCancelsThousandsOfScansKeepsTheConnection) {
  if (IsTooSlow()) GTEST_SKIP() << "too slow under ThreadSanitizer";
  StartWithLongQueue();
  UnreadingClient vehicles(server_->grpc_port());
  const v1::InferRequest scan = RequestOf("fake", 4096);
  ASSERT_GE(scan.ByteSizeLong(), size_t{64} << 10);
  // WhoCancelsThousandsAtOnceLosesTheConnection shows that so many small requests are too many.
  for (int sent = 0; sent < 20'000; sent += 50) ASSERT_TRUE(CancelSome(vehicles, 50, scan)) << sent;
  UnreadingClient another(server_->grpc_port());
  EXPECT_TRUE(CancelSome(another, 1, scan)) << "the address may connect again";
  EXPECT_EQ(MetricOf(kClosed), -1) << "none";
}

TEST_F(CancelledCallsTest, WhoBeginsThousandsForNothingLosesTheConnection) {
  for (const char* method : {"Infer", "InferStream"}) {
    Start();
    UnreadingClient attacker(server_->grpc_port());
    int num_begun = 0;
    for (; num_begun < 200'000 && MetricOf(kClosed) < 1; num_begun += 50) {
      for (int i = 0; i < 50; ++i) attacker.Begin(absl::InfiniteDuration(), method);
      attacker.CancelAll();
    }
    EXPECT_GE(num_begun, 1'000) << method << ": a burst is allowed";
    EXPECT_LT(num_begun, 200'000) << method;
  }
}

TEST_F(CancelledCallsTest, AFewCancelledAtOnceCostNothing) {
  StartWithLongQueue();
  UnreadingClient vehicle(server_->grpc_port());
  // These are more calls than one client may begin and cancel without sending a request.
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(CancelSome(vehicle, 10)) << i;
  EXPECT_EQ(MetricOf(kClosed), -1) << "none";
}

TEST_F(CancelledCallsTest, WhoCancelsThousandsAtOnceLosesTheConnection) {
  if (IsTooSlow()) GTEST_SKIP() << "too slow under ThreadSanitizer";
  StartWithLongQueue();
  UnreadingClient attacker(server_->grpc_port());
  int num_sent = 0;
  while (num_sent < 200'000 && CancelSome(attacker, 50)) num_sent += 50;
  EXPECT_GE(num_sent, 9'900) << "a burst is allowed";
  EXPECT_LT(num_sent, 200'000);
  EXPECT_GE(MetricOf(kClosed), 1);
}

}  // namespace
}  // namespace voxserve::cancelled_calls_test
