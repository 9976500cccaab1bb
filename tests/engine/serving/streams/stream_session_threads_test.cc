// Tests StreamSession when several threads push, run and cancel frames at once.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/serving/streams/stream_session.h"
#include "tests/support/await_true.h"

namespace voxserve::stream_session_threads_test {
namespace {

PointCloud CloudOf(uint64_t num_points) {
  const std::vector<float> points(num_points * 3, 1.0f);
  return *PointCloud::FromFloats({"x", "y", "z"}, points.data(), num_points);
}

// An engine with several threads that run tasks in any order.
class ThreadedEngine {
 public:
  ThreadedEngine() {
    for (int i = 0; i < 3; ++i) threads_.emplace_back([this, i] { Run(i); });
  }
  ~ThreadedEngine() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    for (std::thread& thread : threads_) thread.join();
  }

  uint64_t Submit(InferTask task) {
    absl::MutexLock lock(&mutex_);
    tasks_.emplace(++last_ticket_, std::move(task));
    return last_ticket_;
  }
  bool Cancel(uint64_t ticket) {
    InferTask task;
    {
      absl::MutexLock lock(&mutex_);
      const auto found = tasks_.find(ticket);
      if (found == tasks_.end()) return false;
      task = std::move(found->second);
      tasks_.erase(found);
    }
    task.done(absl::CancelledError("cancelled"));
    return true;
  }

 private:
  void Run(int seed) {
    std::mt19937 random(seed);
    for (;;) {
      InferTask task;
      {
        absl::MutexLock lock(&mutex_);
        const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !tasks_.empty(); };
        mutex_.Await(absl::Condition(&has_work));
        if (tasks_.empty()) return;
        const auto chosen = std::next(tasks_.begin(), static_cast<std::ptrdiff_t>(random() % tasks_.size()));
        task = std::move(chosen->second);
        tasks_.erase(chosen);
      }
      InferResult result;
      result.version = static_cast<int64_t>(task.cloud.num_points());
      task.done(std::move(result));
    }
  }

  absl::Mutex mutex_;
  std::map<uint64_t, InferTask> tasks_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

TEST(StreamSessionThreadsTest, EveryFrameOfEveryStreamGetsItsOneAnswer) {
  constexpr int kNumFrames = 500;
  ThreadedEngine engine;
  std::vector<std::thread> vehicles;
  for (int v = 0; v < 4; ++v) {
    vehicles.emplace_back([&engine, v] {
      const bool is_queue = v % 2 == 0;
      const bool is_cut_off = v >= 2;
      StreamSession::Config config;
      config.policy = is_queue ? StreamPolicy::kQueue : StreamPolicy::kLatest;
      const std::shared_ptr<StreamSession> session = StreamSession::Create(
          std::move(config), {.submit = [&](InferTask task) { return engine.Submit(std::move(task)); },
                              .cancel = [&](uint64_t ticket, DropReason) { return engine.Cancel(ticket); }});
      absl::Mutex mutex;
      std::vector<int> order;
      std::vector<int> num_answers(kNumFrames);
      for (int i = 0; i < kNumFrames; ++i) {
        {
          absl::MutexLock lock(&mutex);
          const auto may_push = [&] { return session->HasRoom(); };
          mutex.Await(absl::Condition(&may_push));
        }
        StreamFrame frame;
        frame.cloud = CloudOf(i);
        frame.done = [&, i](const absl::StatusOr<InferResult>& result, int) {
          if (result.ok()) {
            EXPECT_EQ(result->version, i);
          }
          absl::MutexLock lock(&mutex);
          ++num_answers[i];
          order.push_back(i);
        };
        session->Push(std::move(frame));
        if (is_cut_off && i == kNumFrames - 3) session->Cancel(absl::CancelledError("gone"));
      }
      absl::MutexLock lock(&mutex);
      const auto is_done = [&] { return order.size() == kNumFrames; };
      mutex.Await(absl::Condition(&is_done));
      EXPECT_EQ(num_answers, std::vector<int>(kNumFrames, 1));
      if (is_queue) {
        EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
      }
    });
  }
  for (std::thread& vehicle : vehicles) vehicle.join();
}

// The clock advances by a second each time it is read, so the sweeps have expired whenever the timer looks.
TEST(StreamSessionThreadsTest, SweepsAreForgottenWhileFramesComeAndRun) {
  constexpr int kNumFrames = 500;
  std::atomic<int64_t> seconds{1'700'000'000};
  std::vector<std::weak_ptr<const void>> reservations;
  {
    ThreadedEngine engine;
    StreamSession::Config config;
    config.sweeps = SweepHistory::Options{.num_sweeps = 3};
    std::shared_ptr<StreamSession> session = StreamSession::Create(
        std::move(config), {.submit = [&](InferTask task) { return engine.Submit(std::move(task)); },
                            .cancel = [&](uint64_t t, DropReason) { return engine.Cancel(t); },
                            .now = [&] { return absl::FromUnixSeconds(seconds.fetch_add(1)); }});
    std::atomic<bool> is_over{false};
    std::thread timer([&] {
      while (!is_over) {
        session->ExpireDue();
        EXPECT_GT(session->NextExpiry(), absl::UnixEpoch());
        EXPECT_GE(session->SweepBytes(), 0);
        EXPECT_GE(session->BytesAheadOfNext(), 0);
      }
    });
    std::atomic<int> num_answers{0};
    for (int i = 0; i < kNumFrames; ++i) {
      StreamFrame frame;
      frame.cloud = CloudOf(static_cast<uint64_t>(i));
      frame.pose = Pose();
      frame.stamp = absl::UnixEpoch() + absl::Milliseconds(i);
      const auto reservation = std::make_shared<const int>(i);
      reservations.push_back(reservation);
      frame.reservation = reservation;
      frame.done = [&, i](const absl::StatusOr<InferResult>& result, int num_sweeps) {
        if (result.ok()) {
          EXPECT_EQ(result->version, i);
          EXPECT_GE(num_sweeps, 1);
          EXPECT_LE(num_sweeps, 3);
        }
        ++num_answers;
      };
      session->Push(std::move(frame));
      if (i % 10 == 9) session->ForgetSweeps();
    }
    EXPECT_TRUE(support::AwaitTrue([&] { return num_answers == kNumFrames; })) << num_answers << " answers";
    is_over = true;
    timer.join();
    session.reset();
  }
  for (const std::weak_ptr<const void>& reservation : reservations) EXPECT_TRUE(reservation.expired());
}

}  // namespace
}  // namespace voxserve::stream_session_threads_test
