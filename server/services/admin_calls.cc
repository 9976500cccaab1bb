#include "server/services/admin_calls.h"

#include <utility>
#include <vector>

namespace voxserve {

bool AdminCalls::Hold(std::shared_ptr<AdminCall> call) {
  absl::MutexLock lock(&mutex_);
  calls_.insert(std::move(call));
  return !draining_;
}

void AdminCalls::Release(const std::shared_ptr<AdminCall>& call) {
  absl::MutexLock lock(&mutex_);
  calls_.erase(call);
}

void AdminCalls::StartDraining() {
  std::vector<std::shared_ptr<AdminCall>> calls;
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    calls.assign(calls_.begin(), calls_.end());
  }
  for (const std::shared_ptr<AdminCall>& call : calls) call->Drain();
}

}  // namespace voxserve
