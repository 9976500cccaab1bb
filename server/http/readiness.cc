#include "server/http/readiness.h"

#include <algorithm>
#include <utility>

#include "engine/base/error_reason.h"

namespace voxserve {

absl::Status Readiness::Get() const {
  absl::ReaderMutexLock lock(&mutex_);
  return GetLocked();
}

void Readiness::OnModelState(std::string_view model, int64_t version, bool ready) {
  absl::MutexLock lock(&mutex_);
  std::set<int64_t>& versions = ready_versions_[std::string(model)];
  if (ready) {
    versions.insert(version);
  } else {
    versions.erase(version);
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

void Readiness::SetListener(Listener listener) {
  absl::MutexLock lock(&mutex_);
  listener_ = std::move(listener);
  told_.clear();
  Tell();
}

absl::Status Readiness::GetLocked() const {
  if (draining_) return WithReason(absl::UnavailableError("draining"), error_reason::kDraining);
  if (!loaded_) return WithReason(absl::UnavailableError("loading models"), error_reason::kModelLoading);
  const bool is_any_ready = std::any_of(ready_versions_.begin(), ready_versions_.end(),
                                        [](const auto& model) { return !model.second.empty(); });
  if (!is_any_ready) {
    return WithReason(absl::UnavailableError("no model is ready"), error_reason::kModelFailed);
  }
  return absl::OkStatus();
}

void Readiness::Tell() {
  TellOf("", GetLocked().ok());
  for (const auto& [model, versions] : ready_versions_) TellOf(model, !draining_ && !versions.empty());
}

void Readiness::TellOf(const std::string& model, bool ready) {
  if (!listener_) return;
  const auto told = told_.find(model);
  if (told != told_.end() && told->second == ready) return;
  told_[model] = ready;
  listener_(model, ready);
}

}  // namespace voxserve
