#pragma once

// MemoryTrimmer returns unused memory to the system where no other part does:
// - host memory that contexts, also those of GPUs, keep between batches, once they have run none for 5 seconds;
// - free pages of the heap: every 5 seconds while the engine is idle, and every 30 seconds while batches run, since
//   those will need many of the pages again;
// - on a GPU, copies of the sweeps of streams that have ended or fallen silent;
// - page-locked memory that clouds have not needed for a while. It also allocates what they need (PinnedPool::Adjust).
//
// - Threads: one thread of its own, which looks once a second. No request waits for it, except during the moments in
//   which the heap's free pages are listed.

#include <memory>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "engine/base/steady_time.h"
#include "engine/runtime/devices.h"
#include "engine/runtime/pinned_pool.h"
#include "engine/serving/admission/engine_observer.h"
#include "engine/serving/worker.h"

namespace voxserve {

class MemoryTrimmer {
 public:
  // All arguments outlive it, and the list of workers does not change; pinned_pool and observer may be null.
  MemoryTrimmer(const std::vector<Device>* devices, const std::vector<std::unique_ptr<Worker>>* workers,
                PinnedPool* pinned_pool, EngineObserver* observer);
  ~MemoryTrimmer();
  MemoryTrimmer(const MemoryTrimmer&) = delete;
  MemoryTrimmer& operator=(const MemoryTrimmer&) = delete;

 private:
  void Loop();
  // Returns true if no worker has anything to do.
  bool TrimContexts();
  void TrimHeap(bool is_idle);
  void TrimSweeps();

  const std::vector<Device>& devices_;
  const std::vector<std::unique_ptr<Worker>>& workers_;
  PinnedPool* const pinned_pool_;
  EngineObserver* const observer_;
  std::vector<bool> is_broken_;  // by device: it failed here, and is left alone; its worker reports the failure
  absl::Time trimmed_heap_ = absl::InfinitePast();

  SteadyNotification stopping_;
  std::thread thread_;
};

}  // namespace voxserve
