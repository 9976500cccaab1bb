#pragma once

// ModelPlans holds the plans of one version of a model, one PlanTable per device. Plans may be replaced while batches
// run: a batch keeps the table with which it began.
//
// Thread-safe.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/compiler/plan_table.h"

namespace voxserve {

class ModelPlans {
 public:
  explicit ModelPlans(size_t num_devices) : tables_(num_devices), sources_(num_devices, "default") {}

  // Returns null if nothing was set: the program's default plans are then used.
  std::shared_ptr<const PlanTable> Get(size_t device) const {
    absl::MutexLock lock(&mutex_);
    return tables_[device];
  }
  // Returns "default", or the source given to Set.
  std::string source(size_t device) const {
    absl::MutexLock lock(&mutex_);
    return sources_[device];
  }
  void Set(size_t device, std::shared_ptr<const PlanTable> table, std::string source) {
    absl::MutexLock lock(&mutex_);
    tables_[device] = std::move(table);
    sources_[device] = std::move(source);
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<std::shared_ptr<const PlanTable>> tables_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> sources_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve
