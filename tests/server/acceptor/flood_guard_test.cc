#include "server/acceptor/flood_guard.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace voxserve::flood_guard_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kMiB = 1 << 20;

class FloodGuardTest : public testing::Test {
 protected:
  FloodGuard::Options Small() {
    return {.trigger_bytes = 100 * kMiB,
            .max_unseen_calls = 10,
            .interval = absl::Milliseconds(1),
            .resident_bytes = [this] { return resident_.load(); },
            .accounted_bytes = [this] { return accounted_.load(); },
            .streams_started =
                [this] {
                  absl::MutexLock lock(&mutex_);
                  ++num_looks_;
                  return started_;
                },
            .on_flood =
                [this](const std::string& peer) {
                  absl::MutexLock lock(&mutex_);
                  floods_.insert(peer);
                }};
  }

  void Start(const std::string& peer, int64_t streams) {
    absl::MutexLock lock(&mutex_);
    started_[peer] += streams;
  }
  // Blocks until the guard has looked `count` more times. Returns false after ten seconds.
  bool AwaitLooks(int count) {
    absl::MutexLock lock(&mutex_);
    const int wanted = num_looks_ + count;
    const auto has_looked = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_looks_ >= wanted; };
    return mutex_.AwaitWithTimeout(absl::Condition(&has_looked), absl::Seconds(10));
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
  absl::Mutex mutex_;
  std::map<std::string, int64_t> started_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> floods_ ABSL_GUARDED_BY(mutex_);
  int num_looks_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST_F(FloodGuardTest, FindsTheConnectionWhoseCallsNobodySees) {
  Start("flood", 100);
  Start("busy", 100'000);
  FloodGuard guard(Small());
  absl::SleepFor(absl::Milliseconds(20));
  resident_ += 200 * kMiB;
  ASSERT_TRUE(AwaitLooks(1));
  for (int i = 0; i < 6; ++i) {
    for (int call = 0; call < 3; ++call) guard.OnCall("busy");
    Start("busy", 3);
    Start("flood", 3);
    ASSERT_TRUE(AwaitLooks(2));
    EXPECT_EQ(floods().contains("flood"), i > 2) << "after " << 3 * (i + 1) << " calls that nobody saw";
  }
  EXPECT_THAT(floods(), ElementsAre("flood"));
}

TEST_F(FloodGuardTest, AConnectionThatComesLaterHasBegunFromNothing) {
  FloodGuard guard(Small());
  absl::SleepFor(absl::Milliseconds(20));
  resident_ += 200 * kMiB;
  ASSERT_TRUE(AwaitLooks(1));
  Start("late", 11);
  ASSERT_TRUE(AwaitLooks(2));
  EXPECT_THAT(floods(), ElementsAre("late"));
}

TEST_F(FloodGuardTest, LooksAtNothingWhileTheMemoryIsAccountedForOrGrowsSlowly) {
  FloodGuard guard(Small());
  absl::SleepFor(absl::Milliseconds(20));
  resident_ += 1000 * kMiB;
  accounted_ += 1000 * kMiB;
  for (int i = 0; i < 20; ++i) {
    Start("flood", 1000);
    resident_ += 4 * kMiB;
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_THAT(floods(), IsEmpty());
  // resident_ and accounted_ do not change at the same moment, so one look may fall between the two changes. A first
  // look reports nothing, since it has no earlier counts to compare with.
  EXPECT_LE(num_looks(), 1);
}

TEST_F(FloodGuardTest, GrowthThatHasEndedIsTheNewMeasure) {
  FloodGuard guard(Small());
  absl::SleepFor(absl::Milliseconds(20));
  resident_ += 200 * kMiB;
  ASSERT_TRUE(AwaitLooks(1));
  bool is_calm = false;
  for (int i = 0; i < 100 && !is_calm; ++i) {
    const int before = num_looks();
    absl::SleepFor(absl::Milliseconds(100));
    is_calm = num_looks() == before;
  }
  EXPECT_TRUE(is_calm);
}

TEST(StreamsStartedTest, CountsTheCallsOfEachConnectionAsPeersAreNamed) {
  class Answering : public grpc::CallbackGenericService {
   public:
    grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
      {
        absl::MutexLock lock(&mutex);
        peers.push_back(context->peer());
      }
      class Reactor : public grpc::ServerGenericBidiReactor {
       public:
        Reactor() { Finish(grpc::Status::OK); }
        void OnDone() override { delete this; }
      };
      return new Reactor;
    }
    absl::Mutex mutex;
    std::vector<std::string> peers;
  };
  Answering service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  grpc::GenericStub stub(grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
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
  ASSERT_EQ(service.peers.size(), 5u);
  const std::map<std::string, int64_t> started = StreamsStarted();
  EXPECT_EQ(started.at(service.peers[0]), 5);
  server->Shutdown();
}

}  // namespace
}  // namespace voxserve::flood_guard_test
