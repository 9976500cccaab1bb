#include "server/acceptor/flood_guard.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "tests/server/answering_server.h"
#include "tests/support/await_true.h"

namespace voxserve::flood_guard_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kMiB = 1 << 20;

// The guard has the clock of the test, and the test waits for what the guard does. So no time passes by itself.
class FloodGuardTest : public testing::Test {
 protected:
  void StartGuard() {
    guard_ =
        std::make_unique<FloodGuard>(FloodGuard::Options{.trigger_bytes = 100 * kMiB,
                                                         .max_unseen_calls = 10,
                                                         .interval = absl::Milliseconds(1),
                                                         .resident_bytes =
                                                             [this] {
                                                               ++num_measures_;
                                                               return resident_.load();
                                                             },
                                                         .accounted_bytes = [this] { return accounted_.load(); },
                                                         .streams_started =
                                                             [this] {
                                                               absl::MutexLock lock(&mutex_);
                                                               ++num_looks_;
                                                               if (has_no_memory_) throw std::bad_alloc();
                                                               return started_;
                                                             },
                                                         .on_flood =
                                                             [this](const std::string& peer) {
                                                               absl::MutexLock lock(&mutex_);
                                                               floods_.insert(peer);
                                                             },
                                                         .now = [this] { return absl::FromUnixSeconds(seconds_); }});
    ASSERT_TRUE(AwaitMeasures());
  }

  void Start(const std::string& peer, int64_t streams) {
    absl::MutexLock lock(&mutex_);
    started_[peer] += streams;
  }
  // Blocks until the guard has taken a whole measure of the memory, at the present time, and done what follows from it.
  bool AwaitMeasures() {
    const int64_t wanted = num_measures_ + 3;
    return support::AwaitTrue([&] { return num_measures_ >= wanted; });
  }
  // Blocks until the guard has looked `count` more times.
  bool AwaitLooks(int count) {
    const int wanted = num_looks() + count;
    return support::AwaitTrue([&] { return num_looks() >= wanted; });
  }
  // Lets a second pass in which the memory grows by so much.
  void PassSecond(int64_t grown_bytes) {
    resident_ += grown_bytes;
    ASSERT_TRUE(AwaitMeasures());
    ++seconds_;
    ASSERT_TRUE(AwaitMeasures());
  }
  void SetMemory(bool has_memory) {
    absl::MutexLock lock(&mutex_);
    has_no_memory_ = !has_memory;
  }
  std::set<std::string> floods() {
    absl::MutexLock lock(&mutex_);
    return floods_;
  }
  int num_looks() {
    absl::MutexLock lock(&mutex_);
    return num_looks_;
  }

  std::atomic<int64_t> resident_{500 * kMiB};
  std::atomic<int64_t> accounted_{0};
  std::atomic<int64_t> seconds_{1'000'000};
  std::atomic<int64_t> num_measures_{0};
  absl::Mutex mutex_;
  std::map<std::string, int64_t> started_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> floods_ ABSL_GUARDED_BY(mutex_);
  int num_looks_ ABSL_GUARDED_BY(mutex_) = 0;
  bool has_no_memory_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<FloodGuard> guard_;  // destroyed first: its thread uses the other members
};

TEST_F(FloodGuardTest, FindsTheConnectionWhoseCallsNobodySees) {
  Start("flood", 100);
  Start("busy", 100'000);
  StartGuard();
  resident_ += 200 * kMiB;
  ASSERT_TRUE(AwaitLooks(1));
  for (int i = 0; i < 6; ++i) {
    for (int call = 0; call < 3; ++call) guard_->OnCall("busy");
    Start("busy", 3);
    Start("flood", 3);
    ASSERT_TRUE(AwaitLooks(2));
    EXPECT_EQ(floods().contains("flood"), i > 2) << "after " << 3 * (i + 1) << " calls that nobody saw";
  }
  EXPECT_THAT(floods(), ElementsAre("flood"));
}

TEST_F(FloodGuardTest, CallsThatALookWithoutMemoryHasLostWereSeen) {
  Start("busy", 100);
  StartGuard();
  resident_ += 200 * kMiB;
  ASSERT_TRUE(AwaitLooks(1));
  SetMemory(false);
  ASSERT_TRUE(AwaitLooks(2));
  Start("busy", 1000);
  for (int call = 0; call < 1000; ++call) guard_->OnCall("busy");
  ASSERT_TRUE(AwaitLooks(2));
  SetMemory(true);
  ASSERT_TRUE(AwaitLooks(2));
  EXPECT_THAT(floods(), IsEmpty());
  Start("busy", 11);
  ASSERT_TRUE(AwaitLooks(2));
  EXPECT_THAT(floods(), ElementsAre("busy")) << "later calls count";
}

TEST_F(FloodGuardTest, AConnectionThatComesLaterHasBegunFromNothing) {
  StartGuard();
  resident_ += 200 * kMiB;
  ASSERT_TRUE(AwaitLooks(1));
  Start("late", 11);
  ASSERT_TRUE(AwaitLooks(2));
  EXPECT_THAT(floods(), ElementsAre("late"));
}

TEST_F(FloodGuardTest, LooksAtNothingWhileTheMemoryIsAccountedFor) {
  StartGuard();
  for (int i = 0; i < 20; ++i) {
    Start("flood", 1000);
    resident_ += 50 * kMiB;
    ASSERT_TRUE(AwaitMeasures());
    accounted_ += 50 * kMiB;
    ASSERT_TRUE(AwaitMeasures());
  }
  EXPECT_EQ(num_looks(), 0);
}

TEST_F(FloodGuardTest, LooksAtNothingWhileTheMemoryGrowsSlowly) {
  StartGuard();
  for (int i = 0; i < 20; ++i) {
    Start("flood", 1000);
    PassSecond(15 * kMiB);
  }
  EXPECT_EQ(num_looks(), 0);
  for (int i = 0; i < 6; ++i) PassSecond(16 * kMiB);
  EXPECT_EQ(num_looks(), 0) << "96 MiB since the last calm second";
  PassSecond(16 * kMiB);
  EXPECT_GT(num_looks(), 0);
  EXPECT_THAT(floods(), IsEmpty()) << "of streams before the first look";
}

TEST_F(FloodGuardTest, GrowthThatHasEndedIsTheNewMeasure) {
  StartGuard();
  PassSecond(200 * kMiB);
  ASSERT_TRUE(AwaitLooks(1));
  PassSecond(0);
  const int before = num_looks();
  ASSERT_TRUE(AwaitMeasures());
  EXPECT_EQ(num_looks(), before);
}

TEST(StreamsStartedTest, CountsTheCallsOfEachConnectionAsPeersAreNamed) {
  AnsweringServer server([](const grpc::CallbackServerContext& context) { return context.peer(); });
  ASSERT_TRUE(server.has_started());
  grpc::GenericStub stub(server.Connect());
  for (int i = 0; i < 5; ++i) {
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, "/any/Method", &queue);
    void* tag = nullptr;
    bool ok = false;
    call->StartCall(nullptr);
    queue.Next(&tag, &ok);
    grpc::Status status;
    call->Finish(&status, nullptr);
    queue.Next(&tag, &ok);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  const std::vector<std::string> peers = server.notes();
  ASSERT_EQ(peers.size(), 5u);
  const std::map<std::string, int64_t> started = StreamsStarted();
  EXPECT_EQ(started.at(peers[0]), 5);
}

}  // namespace
}  // namespace voxserve::flood_guard_test
