#pragma once

// The CPU threads of the process. One pool, the engine's, shared by everything that computes.
//
// ParallelFor may be called from several threads at once; the caller works too, so a pool of n threads owns n - 1.
// oneDNN is told to run single-threaded on every one of them, so that the two never oversubscribe.

#include <cstdint>
#include <functional>
#include <memory>

namespace voxserve::kernels {

class ThreadPool {
 public:
  // num_threads >= 1, the caller of ParallelFor included.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls body(begin, end) over disjoint ranges of at most `grain` that cover [0, count), and returns when all are
  // done. Ranges are handed out as threads become free. body must not call ParallelFor. If it throws (std::bad_alloc),
  // no further ranges begin, and the first exception reaches the caller once every thread has left body.
  void ParallelFor(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

  // CPUs that this process may use: the cgroup's quota where there is one, else its affinity mask. At least 1.
  static int AvailableCpus();

 private:
  struct State;
  int num_threads_;
  std::unique_ptr<State> state_;
};

}  // namespace voxserve::kernels
