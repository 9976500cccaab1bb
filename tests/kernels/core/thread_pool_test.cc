// Tests ThreadPool: ParallelFor's ranges, several callers at once, exceptions, and its number of threads.

#include "kernels/core/thread_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <vector>

namespace voxserve::kernels::thread_pool_test {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, CoversEveryIndexOnceInRangesOfAtMostTheGrain) {
  ThreadPool pool(GetParam());
  for (const int64_t count : {0, 1, 9, 10, 11, 1000}) {
    std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
    std::atomic<bool> is_too_long{false};
    pool.ParallelFor(count, 10, [&](int64_t begin, int64_t end) {
      if (end - begin > 10 || begin >= end) is_too_long = true;
      for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
    });
    EXPECT_FALSE(is_too_long);
    EXPECT_THAT(visits, testing::Each(testing::Eq(1))) << count;
  }
}

TEST_P(ThreadPoolTest, SeveralCallersAtOnce) {
  ThreadPool pool(GetParam());
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        pool.ParallelFor(37, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 4 * 200 * 37);
}

TEST_P(ThreadPoolTest, ExceptionReachesTheCallerAndThePoolGoesOn) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(pool.ParallelFor(100, 1,
                                  [&](int64_t begin, int64_t /*end*/) {
                                    if (begin >= 20) throw std::bad_alloc();
                                  }),
                 std::bad_alloc);
    std::atomic<int64_t> sum{0};
    pool.ParallelFor(100, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
    EXPECT_EQ(sum, 100);
  }
}

TEST_P(ThreadPoolTest, TheCallerUsesWhatIsFinishedMeanwhile) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 200; ++round) {
    const auto caller = std::this_thread::get_id();
    std::atomic<int> num_finished{0};
    int seen = 0, num_calls = 0;
    pool.ParallelFor(
        40, 3, [&](int64_t begin, int64_t end) { num_finished += static_cast<int>(end - begin); },
        [&] {
          EXPECT_EQ(std::this_thread::get_id(), caller);
          seen = num_finished;
          ++num_calls;
        });
    EXPECT_EQ(seen, 40);
    if (GetParam() == 1) {
      EXPECT_EQ(num_calls, 15);  // after each range, and in the end
    }
  }
}

TEST(ThreadPoolMeanwhileTest, ALateWorkersExceptionReachesTheCaller) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    const auto caller = std::this_thread::get_id();
    std::atomic<bool> worker_came{false};
    const auto body = [&](int64_t /*begin*/, int64_t /*end*/) {
      if (std::this_thread::get_id() == caller) {
        while (!worker_came) std::this_thread::yield();  // so that a worker has a range too
        return;
      }
      worker_came = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // longer than the caller yields
      throw std::bad_alloc();
    };
    EXPECT_THROW(pool.ParallelFor(2, 1, body, [] {}), std::bad_alloc);
  }
}

TEST(ThreadPoolMeanwhileTest, IsNotCalledOnceMoreAfterAnException) {
  ThreadPool pool(1);
  int num_finished = 0, num_calls = 0;
  const auto body = [&](int64_t /*begin*/, int64_t /*end*/) {
    if (num_finished == 20) throw std::bad_alloc();
    ++num_finished;
  };
  EXPECT_THROW(pool.ParallelFor(100, 1, body, [&] { ++num_calls; }), std::bad_alloc);
  EXPECT_EQ(num_calls, 20);
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1, 2, 5));

TEST(ThreadPoolSizeTest, AtLeastOneThreadAndOneCpu) {
  EXPECT_EQ(ThreadPool(0).num_threads(), 1);
  EXPECT_EQ(ThreadPool(-3).num_threads(), 1);
  EXPECT_GE(ThreadPool::AvailableCpus(), 1);
}

}  // namespace
}  // namespace voxserve::kernels::thread_pool_test
