#pragma once

// SweepCacheTrimmer gives a GPU's memory back that holds sweeps of streams which have ended or fallen silent. New
// copies reuse that memory while frames come; without frames no other part would look for it.
//
// - Threads: one thread of its own, which looks once a second; none without a GPU.

#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/runtime/devices.h"
#include "engine/serving/admission/engine_observer.h"

namespace voxserve {

class SweepCacheTrimmer {
 public:
  // Both outlive it; observer may be null.
  SweepCacheTrimmer(const std::vector<Device>* devices, EngineObserver* observer);
  ~SweepCacheTrimmer();
  SweepCacheTrimmer(const SweepCacheTrimmer&) = delete;
  SweepCacheTrimmer& operator=(const SweepCacheTrimmer&) = delete;

 private:
  void Loop();
  // False where a GPU does not answer any more, which others will notice too.
  bool Trim(const Device& device);

  const std::vector<Device>& devices_;
  EngineObserver* const observer_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace voxserve
