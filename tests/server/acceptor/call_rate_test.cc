#include "server/acceptor/call_rate.h"

#include <gtest/gtest.h>

#include <latch>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/failing_heap.h"

namespace voxserve::call_rate_test {
namespace {

class CallRateTest : public testing::Test {
 protected:
  CallRate::Options Small() {
    return {.burst = 10, .per_second = 2, .max_clients = 3, .now = [this] { return now_; }};
  }

  static int64_t SpendUntilRefused(CallRate& rate, const std::string& client) {
    int64_t num_spent = 0;
    while (num_spent < 100'000 && rate.Spend(client)) ++num_spent;
    return num_spent;
  }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
};

TEST_F(CallRateTest, AClientHasItsBurstAndThenItsRate) {
  CallRate rate(Small());
  EXPECT_EQ(SpendUntilRefused(rate, "127.0.0.1"), 10);
  EXPECT_FALSE(rate.Spend("127.0.0.1"));
  now_ += absl::Milliseconds(500);
  EXPECT_EQ(SpendUntilRefused(rate, "127.0.0.1"), 1);
  now_ += absl::Seconds(2);
  EXPECT_EQ(SpendUntilRefused(rate, "127.0.0.1"), 4);
  now_ += absl::Hours(1);
  EXPECT_EQ(SpendUntilRefused(rate, "127.0.0.1"), 10);
}

TEST_F(CallRateTest, NoBucketIsFilledByAFailedAllocation) {
  int num_failed = 0;
  for (int64_t i = 0; i < 50; ++i) {
    CallRate rate(Small());
    for (const char* client : {"a client with a long name", "another client with a long name"}) rate.Spend(client, 9);
    const std::string client = "a client with a long name";
    const std::string newcomer = "one more client with a long name";
    bool has_failed = true;
    support::FailAllocation(i);
    try {
      rate.Spend(client, 1);
      rate.Spend(newcomer, 10);
      rate.Spend("the last client with a long name", 1);
      has_failed = false;
    } catch (const std::bad_alloc&) {
    }
    support::FailAllocation(-1);
    num_failed += has_failed ? 1 : 0;
    EXPECT_LE(SpendUntilRefused(rate, client), has_failed ? 1 : 10) << i;
    now_ += absl::Hours(1);
    EXPECT_TRUE(rate.Spend("somebody"));
    EXPECT_EQ(rate.num_clients(), 1) << "those whose bucket is full are forgotten";
  }
  EXPECT_GT(num_failed, 2);
  EXPECT_LT(num_failed, 50);
}

TEST_F(CallRateTest, ACallMayCostAPartOfAToken) {
  CallRate rate(Small());
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(rate.Spend("a", 0.5)) << i;
  EXPECT_FALSE(rate.Spend("a", 0.5));
  now_ += absl::Milliseconds(250);
  EXPECT_FALSE(rate.Spend("a"));
  EXPECT_TRUE(rate.Spend("a", 0.5));
  EXPECT_FALSE(rate.Spend("a", 0.5));
}

TEST_F(CallRateTest, EarnedTokensFillTheBucketAndNoMore) {
  CallRate rate(Small());
  rate.Earn("a", 100);  // its bucket is full
  EXPECT_EQ(SpendUntilRefused(rate, "a"), 10);
  rate.Earn("b", 5);
  EXPECT_FALSE(rate.Spend("a"));
  rate.Earn("a", 2.5);
  EXPECT_EQ(SpendUntilRefused(rate, "a"), 2);
  rate.Earn("a", 0.5);
  EXPECT_EQ(SpendUntilRefused(rate, "a"), 1);
  rate.Earn("a", 1e18);
  EXPECT_EQ(rate.num_clients(), 0) << "full buckets are forgotten";
  EXPECT_EQ(SpendUntilRefused(rate, "a"), 10);
}

TEST_F(CallRateTest, DefaultsAreAThousandAndAHundredASecond) {
  CallRate rate(CallRate::Options{.now = [this] { return now_; }});
  EXPECT_EQ(SpendUntilRefused(rate, "127.0.0.1"), 1000);
  now_ += absl::Seconds(1);
  EXPECT_EQ(SpendUntilRefused(rate, "127.0.0.1"), 100);
}

TEST_F(CallRateTest, ClientsHaveBucketsOfTheirOwn) {
  CallRate rate(Small());
  EXPECT_EQ(SpendUntilRefused(rate, "127.0.0.1"), 10);
  EXPECT_EQ(SpendUntilRefused(rate, "::1"), 10);
}

TEST_F(CallRateTest, WhoHasSpentAllWaitsForHalf) {
  CallRate rate(Small());
  EXPECT_TRUE(rate.HasTokens("a"));
  EXPECT_EQ(SpendUntilRefused(rate, "a"), 10);
  EXPECT_FALSE(rate.HasTokens("a"));
  EXPECT_TRUE(rate.HasTokens("b"));
  now_ += absl::Milliseconds(2400);
  EXPECT_FALSE(rate.HasTokens("a"));
  now_ += absl::Milliseconds(100);
  EXPECT_TRUE(rate.HasTokens("a"));
  rate.SpendAll("b");
  EXPECT_FALSE(rate.HasTokens("b"));
  EXPECT_FALSE(rate.Spend("b"));
}

TEST_F(CallRateTest, FullBucketsAreForgotten) {
  CallRate rate(Small());
  rate.Spend("a");
  EXPECT_EQ(SpendUntilRefused(rate, "b"), 10);
  EXPECT_EQ(rate.num_clients(), 2);
  now_ += absl::Seconds(1);
  rate.Spend("c");
  EXPECT_EQ(rate.num_clients(), 2);  // clients b and c
}

TEST_F(CallRateTest, BeyondTheBoundTheLeastSpentIsForgotten) {
  CallRate rate(Small());
  EXPECT_EQ(SpendUntilRefused(rate, "a"), 10);
  rate.Spend("b");
  EXPECT_EQ(SpendUntilRefused(rate, "c"), 10);
  for (int i = 0; i < 100; ++i) rate.Spend(absl::StrCat("client", i));
  EXPECT_EQ(rate.num_clients(), 3);
  EXPECT_FALSE(rate.Spend("a"));
  EXPECT_FALSE(rate.Spend("c"));
}

TEST_F(CallRateTest, AClockThatIsSetBackAddsNoDebt) {
  CallRate rate(Small());
  EXPECT_EQ(SpendUntilRefused(rate, "a"), 10);
  now_ -= absl::Hours(1);
  EXPECT_FALSE(rate.Spend("a"));
  now_ += absl::Seconds(5);
  EXPECT_EQ(SpendUntilRefused(rate, "a"), 10);
}

TEST_F(CallRateTest, AClockThatIsSetBackKeepsNobodyOut) {
  CallRate rate(Small());
  EXPECT_TRUE(rate.Spend("a"));
  EXPECT_EQ(SpendUntilRefused(rate, "b"), 10);
  now_ -= absl::Hours(1);
  EXPECT_TRUE(rate.HasTokens("a"));
  EXPECT_TRUE(rate.HasTokens("b"));
  rate.SpendAll("b");
  EXPECT_FALSE(rate.HasTokens("b"));
}

TEST_F(CallRateTest, ThreadsShareABucket) {
  constexpr int kThreads = 4, kCalls = 25'000;  // for tens of milliseconds, so that they run side by side
  CallRate rate(CallRate::Options{.burst = kThreads * kCalls / 2, .per_second = 1, .now = [this] { return now_; }});
  std::atomic<int64_t> num_spent{0};
  std::latch begin(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      begin.arrive_and_wait();
      for (int j = 0; j < kCalls; ++j) num_spent += rate.Spend("a") ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_spent, kThreads * kCalls / 2);
}

}  // namespace
}  // namespace voxserve::call_rate_test
