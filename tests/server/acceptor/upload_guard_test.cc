#include "server/acceptor/upload_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <new>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace voxserve::upload_guard_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kMessage = 60 * kMiB;
constexpr char kOne[] = "ipv4:10.0.0.1:1000";
constexpr char kSame[] = "ipv4:10.0.0.1:2000";  // another connection of the same client
constexpr char kOther[] = "ipv4:10.0.0.2:1000";

class UploadGuardTest : public testing::Test {
 protected:
  UploadGuard::Options Small() {
    return {.max_bytes = 150 * kMiB,
            .max_client_bytes = 100 * kMiB,
            .max_call_bytes = kMessage,
            .forget_time = absl::Hours(1),
            .interval = absl::Milliseconds(1),
            .traffic =
                [this] {
                  absl::MutexLock lock(&mutex_);
                  ++num_looks_;
                  if (has_no_memory_) throw std::bad_alloc();
                  return traffic_;
                },
            .num_reading =
                [this](const std::string& peer) {
                  absl::MutexLock lock(&mutex_);
                  const auto found = num_reading_.find(peer);
                  return found == num_reading_.end() ? 100 : found->second;
                },
            .on_flood =
                [this](const std::string& peer) {
                  absl::MutexLock lock(&mutex_);
                  floods_.insert(peer);
                }};
  }

  void Receive(const std::string& peer, int64_t bytes) {
    absl::MutexLock lock(&mutex_);
    traffic_[peer].received += bytes;
  }
  void SetMemory(bool has_memory) {
    absl::MutexLock lock(&mutex_);
    has_no_memory_ = !has_memory;
  }
  void SetReading(const std::string& peer, int64_t number) {
    absl::MutexLock lock(&mutex_);
    num_reading_[peer] = number;
  }
  // Waits until the guard has looked at the present bytes once.
  void AwaitLook() {
    absl::MutexLock lock(&mutex_);
    const int wanted = num_looks_ + 1;
    const auto has_looked = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_looks_ >= wanted; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&has_looked), absl::Seconds(10)));
  }
  // Lets the guard look at the present state, and returns the peers (connections) that it has reported so far.
  std::set<std::string> Floods() {
    AwaitLook();
    AwaitLook();  // The first look has been judged when the second begins.
    absl::MutexLock lock(&mutex_);
    return floods_;
  }

  absl::Mutex mutex_;
  std::map<std::string, SocketTraffic> traffic_ ABSL_GUARDED_BY(mutex_);
  // The number of calls that still read, by peer. A peer without an entry has 100.
  std::map<std::string, int64_t> num_reading_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> floods_ ABSL_GUARDED_BY(mutex_);
  bool has_no_memory_ ABSL_GUARDED_BY(mutex_) = false;
  int num_looks_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST_F(UploadGuardTest, FindsTheLargestConnectionOfTheLargestClient) {
  UploadGuard::Options options = Small();
  options.max_client_bytes = 50 * kMiB;
  UploadGuard guard(options);
  Receive(kOne, 40 * kMiB);
  Receive(kSame, 41 * kMiB);
  Receive(kOther, 60 * kMiB);
  EXPECT_THAT(Floods(), IsEmpty());
  Receive(kOne, 10 * kMiB);
  EXPECT_THAT(Floods(), ElementsAre(kOne));
}

TEST_F(UploadGuardTest, AClientMayHaveAllThatThereIsRoomFor) {
  UploadGuard guard(Small());
  Receive(kOne, 149 * kMiB);
  EXPECT_THAT(Floods(), IsEmpty());
  Receive(kOther, 2 * kMiB);
  EXPECT_THAT(Floods(), ElementsAre(kOne));
}

TEST_F(UploadGuardTest, MessagesThatALookWithoutMemoryHasLostAreFinished) {
  UploadGuard guard(Small());
  Receive(kOne, 1000);
  Floods();
  SetMemory(false);
  for (int i = 0; i < 10; ++i) {
    Receive(kOne, 50 * kMiB);
    guard.OnMessage(kOne, 50 * kMiB, /*is_first=*/true);
  }
  AwaitLook();
  SetMemory(true);
  EXPECT_THAT(Floods(), IsEmpty());
  Receive(kOne, 151 * kMiB);
  EXPECT_THAT(Floods(), ElementsAre(kOne)) << "later bytes count";
}

TEST_F(UploadGuardTest, NobodyIsAboveHisShare) {
  UploadGuard guard(Small());
  Receive(kOne, 99 * kMiB);
  Receive(kOther, 99 * kMiB);
  EXPECT_THAT(Floods(), IsEmpty());
  Receive(kOther, 2 * kMiB);
  EXPECT_THAT(Floods(), ElementsAre(kOther));
}

TEST_F(UploadGuardTest, ACallHoldsNoMoreThanAMessage) {
  UploadGuard guard(Small());
  SetReading(kOne, 2);
  for (int i = 0; i < 10; ++i) {
    Receive(kOne, 50 * kMiB);  // bytes of calls that are cancelled
    EXPECT_THAT(Floods(), IsEmpty()) << i;
  }
  SetReading(kOne, 3);
  Receive(kOne, 50 * kMiB);
  EXPECT_THAT(Floods(), ElementsAre(kOne));
}

TEST_F(UploadGuardTest, WhatHasBecomeAMessageIsFinished) {
  UploadGuard guard(Small());
  for (int i = 0; i < 20; ++i) {
    Receive(kOne, 50 * kMiB + 32'000);  // 32,000 bytes more than the message, for the headers of its frames
    EXPECT_THAT(Floods(), IsEmpty()) << i;
    guard.OnMessage(kOne, 50 * kMiB, /*is_first=*/false);
  }
  // 500 received bytes a call are within the credit for a message of 100 bytes and the headers of its call.
  for (int i = 0; i < 20; ++i) {
    for (int j = 0; j < 10'000; ++j) guard.OnMessage(kOther, 100, /*is_first=*/true);
    Receive(kOther, 10'000 * 500);
    EXPECT_THAT(Floods(), IsEmpty()) << i;
  }
  // The calls before leave no credit behind, so 151 MiB are reported.
  Receive(kOther, 151 * kMiB);
  EXPECT_THAT(Floods(), ElementsAre(kOther));
}

TEST_F(UploadGuardTest, SmallMessagesOfAStreamHideNoLargeOne) {
  UploadGuard guard(Small());
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 20'000; ++j) guard.OnMessage(kOne, 2, /*is_first=*/false);
    Receive(kOne, 20'000 * 16 + 10 * kMiB);  // the rest belongs to another call
    Floods();
  }
  EXPECT_THAT(Floods(), ElementsAre(kOne));
}

TEST_F(UploadGuardTest, WithoutCallsThatReadNothingIsUnfinished) {
  UploadGuard guard(Small());
  for (int i = 0; i < 5; ++i) {
    Receive(kOne, 140 * kMiB);
    EXPECT_THAT(Floods(), IsEmpty()) << i;
    guard.OnIdle(kOne);  // idle for a moment
    EXPECT_THAT(Floods(), IsEmpty()) << i;
  }
  SetReading(kOne, 0);
  Receive(kOne, 200 * kMiB);  // bytes of calls that were refused
  EXPECT_THAT(Floods(), IsEmpty());
  SetReading(kOne, 3);
  Receive(kOne, 140 * kMiB);
  EXPECT_THAT(Floods(), IsEmpty());
  Receive(kOne, 11 * kMiB);
  EXPECT_THAT(Floods(), ElementsAre(kOne));
}

TEST_F(UploadGuardTest, ForgetsItInTime) {
  UploadGuard::Options options = Small();
  options.forget_time = absl::Milliseconds(100);
  UploadGuard guard(options);
  for (int i = 0; i < 5; ++i) {
    Receive(kOne, 60 * kMiB);
    Receive(kSame, 80 * kMiB);
    EXPECT_THAT(Floods(), IsEmpty()) << i;
    absl::SleepFor(absl::Milliseconds(150));
  }
}

// A look that comes late has forgotten the old bytes before it counts new ones.
TEST_F(UploadGuardTest, ForgetsBeforeItCounts) {
  UploadGuard::Options options = Small();
  options.forget_time = absl::Milliseconds(100);
  absl::Mutex stalled;
  options.traffic = [&stalled, traffic = options.traffic] {
    absl::MutexLock lock(&stalled);
    return traffic();
  };
  UploadGuard guard(options);
  Receive(kOne, 140 * kMiB);
  AwaitLook();
  {
    absl::MutexLock lock(&stalled);
    absl::SleepFor(absl::Milliseconds(150));
    Receive(kOne, 140 * kMiB);
  }
  EXPECT_THAT(Floods(), IsEmpty());
}

TEST_F(UploadGuardTest, AConnectionThatHasGoneHoldsNothing) {
  UploadGuard guard(Small());
  Receive(kOne, 140 * kMiB);
  EXPECT_THAT(Floods(), IsEmpty());
  {
    absl::MutexLock lock(&mutex_);
    traffic_.erase(kOne);
  }
  EXPECT_THAT(Floods(), IsEmpty());
  Receive(kSame, 140 * kMiB);
  EXPECT_THAT(Floods(), IsEmpty());
}

}  // namespace
}  // namespace voxserve::upload_guard_test
