// Tests which log lines LogLimiter admits, and the number of left-out lines that it reports.

#include "engine/base/log_limiter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace voxserve::log_limiter_test {
namespace {

class LogLimiterTest : public testing::Test {
 protected:
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  LogLimiter limiter_{[this] { return now_; }};
};

TEST_F(LogLimiterTest, ASecondHasAFewLinesOfEachKey) {
  for (int i = 0; i < LogLimiter::kLinesPerSecond; ++i) EXPECT_EQ(limiter_.Admit("full"), 0);
  EXPECT_EQ(limiter_.Admit("full"), std::nullopt);
  EXPECT_EQ(limiter_.Admit("late"), 0) << "each key has its own";
}

TEST_F(LogLimiterTest, TheNextLineSaysHowManyWereLeftOut) {
  for (int i = 0; i < LogLimiter::kLinesPerSecond + 1000; ++i) limiter_.Admit("full");
  now_ += absl::Seconds(1) - absl::Nanoseconds(1);
  EXPECT_EQ(limiter_.Admit("full"), std::nullopt);
  now_ += absl::Nanoseconds(1);
  EXPECT_EQ(limiter_.Admit("late"), 0);
  EXPECT_EQ(limiter_.Admit("full"), 1001);
  EXPECT_EQ(limiter_.Admit("full"), 0) << "said once";
}

TEST_F(LogLimiterTest, APeriodHasOneLineOfEachKey) {
  constexpr absl::Duration kPeriod = absl::Minutes(10);
  EXPECT_EQ(limiter_.AdmitEvery(kPeriod, "unit"), 0);
  EXPECT_EQ(limiter_.AdmitEvery(kPeriod, "unit"), std::nullopt);
  EXPECT_EQ(limiter_.AdmitEvery(kPeriod, "other"), 0) << "each key has its own";
  now_ += kPeriod - absl::Nanoseconds(1);
  EXPECT_EQ(limiter_.AdmitEvery(kPeriod, "unit"), std::nullopt);
  now_ += absl::Nanoseconds(1);
  EXPECT_EQ(limiter_.AdmitEvery(kPeriod, "unit"), 2);
  now_ -= absl::Hours(1);
  EXPECT_EQ(limiter_.AdmitEvery(kPeriod, "unit"), 0) << "the clock was set back";
}

TEST_F(LogLimiterTest, WhatIsRareIsAlwaysWritten) {
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(limiter_.Admit("full"), 0);
    now_ += absl::Seconds(1.0 / LogLimiter::kLinesPerSecond);
  }
}

TEST_F(LogLimiterTest, AClockThatIsSetBackSilencesNothing) {
  for (int i = 0; i < LogLimiter::kLinesPerSecond + 7; ++i) limiter_.Admit("full");
  now_ -= absl::Hours(1);
  EXPECT_EQ(limiter_.Admit("full"), 7);
}

TEST_F(LogLimiterTest, ThreadsLoseNoCount) {
  constexpr int kThreads = 4, kCalls = 1000;
  std::atomic<int64_t> num_written{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kCalls; ++i) num_written += limiter_.Admit("full").has_value() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_written, LogLimiter::kLinesPerSecond);
  now_ += absl::Seconds(1);
  EXPECT_EQ(limiter_.Admit("full"), kThreads * kCalls - LogLimiter::kLinesPerSecond);
}

}  // namespace
}  // namespace voxserve::log_limiter_test
