#include "kernels/core/thread_pool.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace voxserve::kernels {
namespace {

// One ParallelFor call. It lives on the caller's stack. A worker may only touch it while num_joined counts the worker.
struct Job {
  const std::function<void(int64_t, int64_t)>* body;
  int64_t count;
  int64_t grain;
  std::atomic<int64_t> next{0};
  std::atomic<bool> has_failed{false};
  std::exception_ptr error;  // written by the thread that set has_failed
  // Written with State::mutex held. Once the job is no longer listed, it only falls; at 0 no worker touches the job.
  std::atomic<int> num_joined{0};

  bool HasWork() const { return next.load(std::memory_order_relaxed) < count; }

  // Runs parts of the loop until none is left, and calls `between` after each. Keeps an exception of the body for the
  // caller's thread, the only one that may rethrow it.
  template <typename Between>
  void Run(const Between& between) {
    try {
      for (;;) {
        const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= count) return;
        (*body)(begin, std::min(begin + grain, count));
        between();
      }
    } catch (...) {
      next.store(count, std::memory_order_relaxed);
      if (!has_failed.exchange(true)) error = std::current_exception();
    }
  }
};

// A thread that is woken up takes some 50 microseconds to run again. The last workers of a job mostly end sooner, so
// its caller first offers the CPU to others this many times, at 0.3 microseconds each where no other wants it.
constexpr int kYieldsBeforeSleep = 100;

// oneDNN takes its thread count from the calling thread's OpenMP setting.
void KeepLibrariesSingleThreaded() { omp_set_num_threads(1); }

}  // namespace

struct ThreadPool::State {
  std::mutex mutex;
  std::condition_variable work_ready;
  std::condition_variable job_left;
  std::vector<Job*> jobs;  // guarded by mutex, like stopping
  bool stopping = false;
  std::vector<std::thread> threads;

  void WorkerLoop() {
    KeepLibrariesSingleThreaded();
    std::unique_lock lock(mutex);
    for (;;) {
      Job* job = nullptr;
      work_ready.wait(lock, [&] {
        auto found = std::find_if(jobs.begin(), jobs.end(), [](const Job* j) { return j->HasWork(); });
        job = found == jobs.end() ? nullptr : *found;
        return stopping || job != nullptr;
      });
      if (job == nullptr) return;
      ++job->num_joined;
      lock.unlock();
      job->Run([] {});
      lock.lock();
      if (--job->num_joined == 0) job_left.notify_all();
    }
  }
};

ThreadPool::ThreadPool(int num_threads) : num_threads_(std::max(1, num_threads)), state_(std::make_unique<State>()) {
  for (int i = 1; i < num_threads_; ++i) state_->threads.emplace_back([this] { state_->WorkerLoop(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->work_ready.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

void ThreadPool::ParallelFor(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body,
                             const std::function<void()>& meanwhile) {
  if (count <= 0) return;
  // An exception would end this call, and with it the job, while workers still use both.
  const auto call_meanwhile = [&]() noexcept {
    if (meanwhile) meanwhile();
  };
  KeepLibrariesSingleThreaded();
  Job job{.body = &body, .count = count, .grain = std::max<int64_t>(1, grain)};
  const bool is_shared = num_threads_ > 1 && count > job.grain;
  if (is_shared) {
    {
      std::lock_guard lock(state_->mutex);
      state_->jobs.push_back(&job);
    }
    state_->work_ready.notify_all();
  }
  job.Run(call_meanwhile);
  if (is_shared) {
    std::unique_lock lock(state_->mutex);
    std::erase(state_->jobs, &job);
    lock.unlock();
    for (int i = 0; i < kYieldsBeforeSleep && job.num_joined.load(std::memory_order_acquire) > 0; ++i) {
      call_meanwhile();
      std::this_thread::yield();
    }
    lock.lock();
    state_->job_left.wait(lock, [&] { return job.num_joined == 0; });
  }
  if (job.error) std::rethrow_exception(job.error);
  call_meanwhile();
}

int ThreadPool::AvailableCpus() {
  int cpus = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cpus = CPU_COUNT(&set);
  // The quota of cgroup v2 is in one file, "max 100000" or "<quota> <period>"; that of v1 is in two files.
  double quota = 0, period = 0;
  std::string quota_word;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2 >> quota_word >> period) {
    if (quota_word != "max") quota = std::stod(quota_word);
  } else {
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") >> quota;
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period;
  }
  if (quota > 0 && period > 0) cpus = std::min(cpus, static_cast<int>(std::ceil(quota / period)));
  return std::max(1, cpus);
}

}  // namespace voxserve::kernels
