#include "server/readiness.h"

#include "engine/base/error_reason.h"

namespace voxserve {

absl::Status Readiness::Get() const {
  absl::ReaderMutexLock lock(&mutex_);
  return GetLocked();
}

void Readiness::OnModelState(std::string_view model, int64_t version, bool ready) {
  absl::MutexLock lock(&mutex_);
  const std::pair<std::string, int64_t> key(model, version);
  if (ready) {
    ready_models_.insert(key);
  } else {
    ready_models_.erase(key);
  }
  Tell();
}

void Readiness::SetLoaded() {
  absl::MutexLock lock(&mutex_);
  loaded_ = true;
  Tell();
}

void Readiness::SetDraining() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
  Tell();
}

void Readiness::SetListener(std::function<void(bool)> listener) {
  absl::MutexLock lock(&mutex_);
  listener_ = std::move(listener);
  if (!listener_) return;
  told_ = GetLocked().ok();
  listener_(told_);
}

absl::Status Readiness::GetLocked() const {
  if (draining_) return WithReason(absl::UnavailableError("draining"), error_reason::kDraining);
  if (!loaded_) return WithReason(absl::UnavailableError("loading models"), error_reason::kModelLoading);
  if (ready_models_.empty()) {
    return WithReason(absl::UnavailableError("no model is ready"), error_reason::kModelFailed);
  }
  return absl::OkStatus();
}

void Readiness::Tell() {
  const bool ready = GetLocked().ok();
  if (ready == told_) return;
  told_ = ready;
  if (listener_) listener_(ready);
}

}  // namespace voxserve
