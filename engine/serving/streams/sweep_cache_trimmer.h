#pragma once

// Gives a GPU's memory back that copies of sweeps hold whose streams have ended or fallen silent. Copies find memory
// of their like by themselves while frames come; without frames nobody else would look.
//
// One thread, which looks once a second; none without a GPU.

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
