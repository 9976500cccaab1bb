#pragma once

// ThreadPool holds the process's CPU threads for computations. There is one pool, which the engine owns and all
// computations share.
//
// Several threads may call ParallelFor at once. The caller works too, so a pool of n threads owns n - 1 threads. oneDNN
// is told to use only the thread that calls it, so that the pool and oneDNN together never use more threads than there
// are CPUs.

#include <cstdint>
#include <functional>
#include <memory>

namespace voxserve::kernels {

class ThreadPool {
 public:
  // num_threads >= 1: the number of threads that work on a call, its caller included.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls body(begin, end) for disjoint ranges of at most `grain` indices, which together cover [0, count). Returns
  // when all calls have ended. A thread takes the next range when it is free. body must not call ParallelFor. If body
  // throws (std::bad_alloc), no further ranges begin. Once every thread has left body, ParallelFor throws the first
  // exception to the caller.
  void ParallelFor(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body) {
    ParallelFor(count, grain, body, /*meanwhile=*/nullptr);
  }
  // As above. Besides, the calling thread calls `meanwhile` after each of its ranges, again and again for the first
  // microseconds in which it only waits for other threads, and once in the end if no range threw. So it can use what is
  // finished already. meanwhile must not call ParallelFor; if it throws, the process ends.
  void ParallelFor(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body,
                   const std::function<void()>& meanwhile);

  // Returns the number of CPUs that this process may use, at least 1: the CPUs in its affinity mask, but not more than
  // the cgroup's quota (rounded up), if there is one.
  static int AvailableCpus();

 private:
  struct State;
  int num_threads_;
  std::unique_ptr<State> state_;
};

}  // namespace voxserve::kernels
