#pragma once

// The process's CPU threads. There is one pool, owned by the engine and shared by all computations.
//
// Several threads may call ParallelFor at once. The caller works too, so a pool of n threads owns n - 1. oneDNN is told
// to use a single thread on each of them, so that the two together never use more threads than there are CPUs.

#include <cstdint>
#include <functional>
#include <memory>

namespace voxserve::kernels {

class ThreadPool {
 public:
  // num_threads >= 1 includes the caller of ParallelFor.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls body(begin, end) over disjoint ranges of at most `grain` indices that cover [0, count), and returns when all
  // are done. A thread takes the next range when it is free. body must not call ParallelFor. If body throws
  // (std::bad_alloc), no further ranges begin, and the first exception reaches the caller after every thread has left
  // body.
  void ParallelFor(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

  // Returns the number of CPUs that this process may use, at least 1: the cgroup's quota if it has one, else its
  // affinity mask.
  static int AvailableCpus();

 private:
  struct State;
  int num_threads_;
  std::unique_ptr<State> state_;
};

}  // namespace voxserve::kernels
