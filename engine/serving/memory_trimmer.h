#pragma once

// MemoryTrimmer gives memory back to the system that nobody uses any more and no other part would look for:
// - what contexts, a GPU's too, keep of the host's memory from batch to batch, once they have run none for 5 seconds;
// - free pages of the heap: every 5 seconds while the engine is idle, and every 30 seconds while batches run, which
//   will want many of them again;
// - on a GPU, the copies of sweeps of streams that have ended or fallen silent;
// - page-locked memory that clouds needed no more for a while. It also sees to it that there is as much as they need
//   (PinnedPool::Adjust).
//
// - Threads: one thread of its own, which looks once a second. No request waits for it, but for the moments in which
//   the heap's free pages are listed.

#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/runtime/devices.h"
#include "engine/runtime/pinned_pool.h"
#include "engine/serving/admission/engine_observer.h"
#include "engine/serving/worker.h"

namespace voxserve {

class MemoryTrimmer {
 public:
  // All outlive it, and the workers stay the same; pinned_pool and observer may be null.
  MemoryTrimmer(const std::vector<Device>* devices, const std::vector<std::unique_ptr<Worker>>* workers,
                PinnedPool* pinned_pool, EngineObserver* observer);
  ~MemoryTrimmer();
  MemoryTrimmer(const MemoryTrimmer&) = delete;
  MemoryTrimmer& operator=(const MemoryTrimmer&) = delete;

 private:
  void Loop();
  // True while no worker has anything to do.
  bool TrimContexts();
  void TrimHeap(bool is_idle);
  void TrimSweeps();

  const std::vector<Device>& devices_;
  const std::vector<std::unique_ptr<Worker>>& workers_;
  PinnedPool* const pinned_pool_;
  EngineObserver* const observer_;
  std::vector<bool> is_broken_;  // by device: it does not answer any more, which others will notice too
  absl::Time trimmed_heap_ = absl::InfinitePast();

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace voxserve
