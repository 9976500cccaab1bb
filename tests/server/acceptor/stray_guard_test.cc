// Tests which connections StrayGuard reports. The test gives it the traffic and the time, so nothing waits.

#include "server/acceptor/stray_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace voxserve::stray_guard_test {
namespace {

using testing::_;
using testing::ElementsAre;
using testing::Ge;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

constexpr int64_t kKiB = 1 << 10;
constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kMessage = 64 * kMiB;
constexpr char kOne[] = "ipv4:10.0.0.1:1000";
constexpr char kSame[] = "ipv4:10.0.0.1:2000";  // another connection of the same client
constexpr char kOther[] = "ipv4:10.0.0.2:1000";

class StrayGuardTest : public testing::Test {
 protected:
  StrayGuardTest()
      : guard_({.max_call_bytes = kMessage,
                .max_upload_bytes = 16 * kMessage,
                .max_client_bytes = 16 * kMessage,
                .reading =
                    [this](const std::string& peer) {
                      if (has_no_memory_) throw std::bad_alloc();
                      return reading_[peer];
                    },
                .threads = [this] { return use_; },
                .on_flood =
                    [this](const std::string& peer, int64_t bytes) {
                      if (throws_) throw std::bad_alloc();
                      floods_.emplace_back(peer, bytes);
                    }}) {}

  void Receive(const std::string& peer, int64_t bytes) {
    traffic_[peer].received += bytes;
    traffic_[peer].read += bytes;
  }
  // Looks at the present traffic after `after`.
  void Look(absl::Duration after = absl::Milliseconds(50)) {
    now_ += after;
    guard_.BeginLook();
    guard_.Look(traffic_, now_);
  }
  // Looks as often as it takes until all bytes of before are old.
  void Settle() {
    for (int i = 0; i <= StrayGuard::kLooksToWait; ++i) Look();
  }
  void Call(const std::string& peer) {
    Receive(peer, 500);
    guard_.OnCall(peer);
  }
  void Message(const std::string& peer, int64_t bytes) {
    Receive(peer, bytes + 100);
    guard_.OnMessage(peer, bytes);
  }

  std::map<std::string, SocketTraffic> traffic_;
  std::map<std::string, StrayGuard::Reading> reading_;
  PollerThreads::Use use_;
  bool has_no_memory_ = false;
  bool throws_ = false;
  std::vector<std::pair<std::string, int64_t>> floods_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  StrayGuard guard_;
};

TEST_F(StrayGuardTest, AConnectionMayBringWhatHeadersTakeAndNoMore) {
  Receive(kOther, 64 * kKiB);
  Receive(kOne, 80 * kKiB);
  Settle();
  EXPECT_THAT(floods_, ElementsAre(Pair(kOne, Ge(15 * kKiB))));
}

TEST_F(StrayGuardTest, CallsThatALookWithoutMemoryHasLostAreNotStrayBytes) {
  for (const char* peer : {kOne, kOther}) Receive(peer, 100);
  Settle();
  for (const char* peer : {kOne, kOther}) {
    Call(peer);
    Message(peer, 100 * kMiB);
  }
  has_no_memory_ = true;
  EXPECT_THROW(Look(), std::bad_alloc);
  has_no_memory_ = false;
  for (const char* peer : {kOne, kOther}) Message(peer, kMiB);
  Settle();
  EXPECT_THAT(floods_, IsEmpty());
  Receive(kOne, kMiB);
  Settle();
  EXPECT_THAT(floods_, ElementsAre(Pair(kOne, _))) << "later bytes count";
}

TEST_F(StrayGuardTest, ReportsAgainWhoFoundNoMemoryToBeReported) {
  Receive(kOne, kMiB);
  throws_ = true;
  for (int i = 0; i < StrayGuard::kLooksToWait; ++i) Look();
  EXPECT_THROW(Look(), std::bad_alloc);
  throws_ = false;
  Settle();
  EXPECT_THAT(floods_, ElementsAre(Pair(kOne, _)));
}

TEST_F(StrayGuardTest, ReportsAConnectionOnce) {
  Receive(kOne, kMiB);
  Settle();
  Settle();
  EXPECT_EQ(floods_.size(), 1);
}

TEST_F(StrayGuardTest, WaitsForCallsThatGrpcTellsOfLate) {
  Receive(kOne, 40 * kMiB);
  for (int i = 0; i < StrayGuard::kLooksToWait; ++i) Look();
  EXPECT_THAT(floods_, IsEmpty());
  guard_.OnCall(kOne);
  guard_.OnMessage(kOne, 40 * kMiB - 500);
  Settle();
  EXPECT_THAT(floods_, IsEmpty());
}

TEST_F(StrayGuardTest, DoesNotWaitBeyondAMessage) {
  Receive(kOne, kMessage + 65 * kKiB);
  Look();
  EXPECT_THAT(floods_, ElementsAre(Pair(kOne, Ge(kMessage))));
}

TEST_F(StrayGuardTest, BytesThatGrpcHasNotReadDoNotCount) {
  traffic_[kOne].received = 6 * kMiB;
  Settle();
  EXPECT_THAT(floods_, IsEmpty());
  traffic_[kOne].read = 6 * kMiB;
  Settle();
  EXPECT_THAT(floods_, ElementsAre(Pair(kOne, _)));
}

TEST_F(StrayGuardTest, SlowBytesAreFoundToo) {
  for (int i = 0; i < 100 && floods_.empty(); ++i) {
    Receive(kOne, kKiB);
    Look();
  }
  EXPECT_THAT(floods_, ElementsAre(Pair(kOne, _)));
  EXPECT_LE(traffic_[kOne].read, 80 * kKiB);
}

TEST_F(StrayGuardTest, PingsGoOnForEver) {
  for (int i = 0; i < 24 * 3600; ++i) {
    Receive(kOne, 46);
    Look(absl::Seconds(1));
  }
  EXPECT_THAT(floods_, IsEmpty());
}

TEST_F(StrayGuardTest, CallsAndSmallMessagesAccountForTheirBytes) {
  for (int i = 0; i < 1000; ++i) {
    for (int k = 0; k < 20; ++k) Call(kOne);
    for (int k = 0; k < 200; ++k) {
      Receive(kOther, 10 + 64);  // a DATA frame of its own, over TLS
      guard_.OnMessage(kOther, 10);
    }
    Look();
  }
  EXPECT_THAT(floods_, IsEmpty());
}

TEST_F(StrayGuardTest, NobodyPaysInAdvance) {
  for (int i = 0; i < 1000; ++i) Call(kOne);
  Look();
  Receive(kOne, 70 * kKiB);
  Settle();
  Look();
  // The calls themselves could have left these bytes, so no flood is told, but they are taken from the client's share.
  Receive(kOne, 70 * kKiB);
  Settle();
  EXPECT_THAT(floods_, ElementsAre(Pair(kOne, Ge(kKiB))));
}

TEST_F(StrayGuardTest, AnswersAccountForWindowUpdates) {
  for (int i = 0; i < 100; ++i) {
    traffic_[kOne].sent += kMiB;
    Receive(kOne, kMiB / 1024 * 55);  // two WINDOW_UPDATE frames over TLS for each KiB
    traffic_[kOther].sent += 15 * kKiB;
    Receive(kOther, 16 * kKiB);  // SETTINGS, which are acknowledged
    Look();
  }
  EXPECT_THAT(floods_, ElementsAre(Pair(kOther, _)));
}

TEST_F(StrayGuardTest, AnUploadMayDripAndIsBoundedByItsMessage) {
  Call(kOne);
  Call(kOther);
  reading_[kOne].uploads = reading_[kOther].uploads = 1;
  for (int i = 0; i < 60; ++i) {
    Receive(kOne, kMiB);
    Receive(kOther, kMiB);
    Look(absl::Seconds(1));
  }
  guard_.OnMessage(kOne, 60 * kMiB);
  reading_[kOne].uploads = 0;
  Receive(kOther, 6 * kMiB);
  Settle();
  EXPECT_THAT(floods_, IsEmpty()) << "the bytes that the call may have left are forgiven";
  Receive(kOther, 66 * kMiB);
  Settle();
  EXPECT_THAT(floods_, ElementsAre(Pair(kOther, _)));
}

TEST_F(StrayGuardTest, SmallCallsAllowLittle) {
  reading_[kOne].small = 2;
  Receive(kOne, 190 * kKiB);
  Settle();
  EXPECT_THAT(floods_, IsEmpty());
  Receive(kOne, 10 * kKiB);
  Settle();
  EXPECT_THAT(floods_, ElementsAre(Pair(kOne, _)));
}

TEST_F(StrayGuardTest, UploadsThatEndEarlyAreForgiven) {
  for (int i = 0; i < 100; ++i) {
    Call(kOne);
    reading_[kOne].uploads = 1;
    Look();
    Receive(kOne, 2 * kMiB);  // and then the deadline passes
    reading_[kOne].uploads = 0;
    for (int k = 0; k < 10; ++k) Look();
  }
  EXPECT_THAT(floods_, IsEmpty());
}

TEST_F(StrayGuardTest, UploadsThatEndEarlyWithoutEndAreNot) {
  for (int i = 0; i < 1000 && floods_.empty(); ++i) {
    Call(kOne);
    Receive(kOne, 30 * kMiB);
    Settle();
  }
  EXPECT_THAT(floods_, ElementsAre(Pair(kOne, 0))) << "all of the bytes may be of calls";
  // 16 messages are free, and 8 MiB a second.
  EXPECT_GE(traffic_[kOne].read, 16 * kMessage);
  EXPECT_LE(traffic_[kOne].read, 20 * kMessage);
}

TEST_F(StrayGuardTest, FinishedMessagesPayForUploadsThatEndEarly) {
  for (int i = 0; i < 1000; ++i) {
    Call(kOne);
    Receive(kOne, 5 * kMiB);
    Call(kOne);
    Message(kOne, 5 * kMiB);
    Settle();
  }
  EXPECT_THAT(floods_, IsEmpty());
}

TEST_F(StrayGuardTest, AFleetBehindOneAddressConnectsAtOnce) {
  for (int i = 0; i < 2500; ++i) Receive(absl::StrCat("ipv4:10.0.0.3:", i + 1), 6 * kKiB);  // handshakes of TLS
  Settle();
  traffic_.clear();
  Settle();
  for (int i = 0; i < 2500; ++i) Receive(absl::StrCat("ipv4:10.0.0.3:", i + 10'000), 6 * kKiB);
  Settle();
  EXPECT_THAT(floods_, IsEmpty());
}

TEST_F(StrayGuardTest, ManyShortConnectionsOfOneClientCountTogether) {
  int64_t num_connections = 0;
  while (floods_.empty() && num_connections < 100'000) {
    for (int i = 0; i < 100; ++i) Receive(absl::StrCat("ipv4:10.0.0.3:", ++num_connections), 60 * kKiB);
    Look(absl::Milliseconds(50));
    traffic_.clear();  // each is closed before it has too many
    Look(absl::Milliseconds(50));
  }
  ASSERT_FALSE(floods_.empty());
  EXPECT_EQ(floods_.front().second, 0);
  EXPECT_LE(num_connections * 60 * kKiB, 10 * kMessage);
}

TEST_F(StrayGuardTest, OneClosedConnectionIsNeverReported) {
  Call(kOne);
  reading_[kOne].uploads = 300;
  Receive(kOne, 900 * kMiB);  // a program with 300 uploads is ended
  Look();
  traffic_.clear();
  reading_.clear();
  Settle();
  EXPECT_THAT(floods_, IsEmpty());
}

TEST_F(StrayGuardTest, ConnectionsOfAllClientsAreJudged) {
  for (const char* peer : {kOne, kSame, kOther}) Receive(peer, 2 * kMiB);
  Settle();
  EXPECT_THAT(floods_, UnorderedElementsAre(Pair(kOne, _), Pair(kSame, _), Pair(kOther, _)));
}

TEST_F(StrayGuardTest, WhoKeepsAllThreadsBusyIsEndedBesideAnUpload) {
  for (const char* peer : {kOne, kOther}) {
    Call(peer);
    reading_[peer].uploads = 1;
    Receive(peer, 2 * kMiB);
  }
  Settle();
  use_ = {.busy_share = 0.9, .cpu_seconds = 1};
  for (int i = 0; i < 5; ++i) {
    Receive(kOne, kMiB);  // kOther waits, as everybody else
    Look();
  }
  EXPECT_THAT(floods_, IsEmpty());
  for (int i = 0; i < 15 && floods_.empty(); ++i) {
    Receive(kOne, kMiB);
    Look();
  }
  EXPECT_THAT(floods_, ElementsAre(Pair(kOne, Ge(2 * kMiB))));
}

TEST_F(StrayGuardTest, ALongHeaderIsEndedThoughItBringsNothingMeanwhile) {
  for (const char* peer : {kOne, kOther}) {
    Call(peer);
    reading_[peer].uploads = 1;
  }
  Receive(kOne, 3 * kMiB);
  Receive(kOther, 2 * kMiB);
  Settle();
  use_ = {.busy_share = 0.9, .cpu_seconds = 1};
  for (int i = 0; i < 13; ++i) Look();
  EXPECT_THAT(floods_, ElementsAre(Pair(kOne, 0)));
}

TEST_F(StrayGuardTest, BusyThreadsThatTellOfCallsAreAtWork) {
  reading_[kOne].uploads = 1;
  use_ = {.busy_share = 0.9, .cpu_seconds = 1};
  for (int i = 0; i < 60; ++i) {
    Receive(kOne, kMiB);
    Call(kOther);
    Look();
  }
  EXPECT_THAT(floods_, IsEmpty());
}

TEST_F(StrayGuardTest, LargeUploadsMayKeepAllThreadsBusy) {
  reading_[kOne].uploads = reading_[kOther].uploads = 1;
  use_ = {.busy_share = 1, .cpu_seconds = 0.175};
  for (int i = 0; i < 30; ++i) {
    Receive(kOne, 3 * kMiB);  // in 350 ms both bring 42 MiB
    Receive(kOther, 3 * kMiB);
    if (i == 18) guard_.OnMessage(kOne, 56 * kMiB), guard_.OnMessage(kOther, 56 * kMiB);
    Look();
  }
  EXPECT_THAT(floods_, IsEmpty());
}

TEST_F(StrayGuardTest, LargeAnswersMayKeepThreadsBusy) {
  reading_[kOne].uploads = 1;
  use_ = {.busy_share = 1, .cpu_seconds = 0.175};
  for (int i = 0; i < 30; ++i) {
    Receive(kOne, 32 * kKiB);
    traffic_[kOther].sent += 6 * kMiB;  // 42 MiB in 350 ms
    Look();
  }
  EXPECT_THAT(floods_, IsEmpty());
}

TEST_F(StrayGuardTest, ThreadsThatPauseHaveTimeForAll) {
  reading_[kOne].uploads = 1;
  use_ = {.busy_share = 0.7, .cpu_seconds = 1};
  for (int i = 0; i < 60; ++i) {
    Receive(kOne, kMiB);
    Look();
  }
  EXPECT_THAT(floods_, IsEmpty());
}

}  // namespace
}  // namespace voxserve::stray_guard_test
