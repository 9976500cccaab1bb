#include "engine/serving/memory_trimmer.h"

#include <malloc.h>

#include <string>

#include "absl/status/status.h"
#include "engine/base/logging.h"
#include "engine/base/steady_time.h"

namespace voxserve {
namespace {

constexpr absl::Duration kPeriod = absl::Seconds(1);
constexpr absl::Duration kIdleTime = absl::Seconds(5);
constexpr absl::Duration kBusyTrimPeriod = absl::Seconds(30);

}  // namespace

MemoryTrimmer::MemoryTrimmer(const std::vector<Device>* devices, const std::vector<std::unique_ptr<Worker>>* workers,
                             PinnedPool* pinned_pool, EngineObserver* observer)
    : devices_(*devices),
      workers_(*workers),
      pinned_pool_(pinned_pool),
      observer_(observer),
      is_broken_(devices_.size()),
      thread_(kPeriod, [this] {
        TrimHeap(TrimContexts());
        TrimSweeps();
        if (pinned_pool_ != nullptr) pinned_pool_->Adjust();
        return kPeriod;
      }) {}

bool MemoryTrimmer::TrimContexts() {
  bool is_idle = true;
  for (const std::unique_ptr<Worker>& worker : workers_) is_idle = worker->ReleaseIdleMemory(kIdleTime) && is_idle;
  return is_idle;
}

void MemoryTrimmer::TrimHeap(bool is_idle) {
  const absl::Time now = SteadyNow();
  if (now - trimmed_heap_ < (is_idle ? kIdleTime : kBusyTrimPeriod)) return;
  trimmed_heap_ = now;
  malloc_trim(0);
}

void MemoryTrimmer::TrimSweeps() {
  if constexpr (kernels::kHasCuda) {
    for (size_t i = 0; i < devices_.size(); ++i) {
      const Device& device = devices_[i];
      if (device.copies == nullptr || is_broken_[i]) continue;
      absl::Status status = device.pool->MakeCurrent();
      if (status.ok()) status = device.copies->Trim();
      if (!status.ok()) {
        is_broken_[i] = true;
        Log(LogLevel::kError, "memory of sweeps could not be given back",
            {{"device", device.id}, {"error", std::string(status.message())}});
      } else if (observer_ != nullptr) {
        observer_->OnDeviceMemory(device.id, "sweeps", device.copies->allocated_bytes());
      }
    }
  }
}

}  // namespace voxserve
