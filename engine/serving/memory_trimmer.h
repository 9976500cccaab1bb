#pragma once

// MemoryTrimmer returns unused memory to the system where no other part does. The engine owns one. It returns:
// - the host memory that the workers' contexts (of the CPU and of GPUs) keep between batches, when a context has run no
//   batch for 5 seconds;
// - free pages of the heap: every 5 seconds while the engine is idle, and every 30 seconds while batches run, since
//   batches need many of these pages again;
// - on a GPU, copies of the sweeps of streams that have ended or no longer send frames;
// - page-locked memory that clouds have not needed for a while. In the same step it allocates the page-locked memory
//   that clouds need (PinnedPool::Adjust), so that no request waits for that.
//
// - Threads: the trimmer has one thread, which wakes once a second. Requests wait for it only briefly, while it holds
//   the heap's lock to return free pages.

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "engine/base/periodic_thread.h"
#include "engine/runtime/devices.h"
#include "engine/runtime/pinned_pool.h"
#include "engine/serving/admission/engine_observer.h"
#include "engine/serving/worker.h"

namespace voxserve {

class MemoryTrimmer {
 public:
  // All objects that the arguments point to must outlive the trimmer, and the list of workers must not change.
  // pinned_pool and observer may be null.
  MemoryTrimmer(const std::vector<Device>* devices, const std::vector<std::unique_ptr<Worker>>* workers,
                PinnedPool* pinned_pool, EngineObserver* observer);

 private:
  // Frees the host memory of idle contexts. Returns true if all contexts are idle.
  bool TrimContexts();
  void TrimHeap(bool is_idle);
  void TrimSweeps();

  const std::vector<Device>& devices_;
  const std::vector<std::unique_ptr<Worker>>& workers_;
  PinnedPool* const pinned_pool_;
  EngineObserver* const observer_;
  // By device: true after a call to the device failed here. The trimmer then leaves the device alone; a worker reports
  // the failure.
  std::vector<bool> is_broken_;
  absl::Time trimmed_heap_ = absl::InfinitePast();
  PeriodicThread thread_;
};

}  // namespace voxserve
