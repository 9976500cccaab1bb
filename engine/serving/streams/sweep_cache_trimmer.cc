#include "engine/serving/streams/sweep_cache_trimmer.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/base/logging.h"

namespace voxserve {
namespace {

constexpr absl::Duration kPeriod = absl::Seconds(1);

}  // namespace

SweepCacheTrimmer::SweepCacheTrimmer(const std::vector<Device>* devices, EngineObserver* observer)
    : devices_(*devices), observer_(observer) {
  const auto has_copies = [](const Device& device) { return device.copies != nullptr; };
  if (std::any_of(devices_.begin(), devices_.end(), has_copies)) thread_ = std::thread([this] { Loop(); });
}

SweepCacheTrimmer::~SweepCacheTrimmer() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void SweepCacheTrimmer::Loop() {
  std::vector<bool> is_broken(devices_.size());
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kPeriod)) return;
    }
    for (size_t i = 0; i < devices_.size(); ++i) {
      if (devices_[i].copies != nullptr && !is_broken[i]) is_broken[i] = !Trim(devices_[i]);
    }
  }
}

bool SweepCacheTrimmer::Trim([[maybe_unused]] const Device& device) {
  if constexpr (kernels::kHasCuda) {
    absl::Status status = device.pool->MakeCurrent();
    if (status.ok()) status = device.copies->Trim();
    if (!status.ok()) {
      Log(LogLevel::kError, "memory of sweeps could not be given back",
          {{"device", device.id}, {"error", std::string(status.message())}});
      return false;
    }
    if (observer_ != nullptr) observer_->OnDeviceMemory(device.id, "sweeps", device.copies->allocated_bytes());
  }
  return true;
}

}  // namespace voxserve
