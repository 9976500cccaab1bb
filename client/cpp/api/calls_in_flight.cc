#include "client/cpp/api/calls_in_flight.h"

#include <utility>

namespace voxserve::client {

CallContext* CallsInFlight::Begin(const Channels& channels, absl::Duration timeout, int64_t max_calls) {
  {
    absl::MutexLock lock(&mutex_);
    if (number_ >= max_calls) return nullptr;
    ++number_;
  }
  auto context = std::make_unique<CallContext>(channels, timeout);
  CallContext* const key = context.get();
  absl::MutexLock lock(&mutex_);
  contexts_.emplace(key, std::move(context));
  return key;
}

void CallsInFlight::End(CallContext* context) {
  {
    // Not destroyed under the lock: gRPC may run other calls' callbacks meanwhile.
    std::unique_ptr<CallContext> ended;
    absl::MutexLock lock(&mutex_);
    const auto found = contexts_.find(context);
    ended.swap(found->second);
    contexts_.erase(found);
  }
  absl::MutexLock lock(&mutex_);
  --number_;
}

void CallsInFlight::CancelAll() {
  absl::MutexLock lock(&mutex_);
  for (const auto& [context, owned] : contexts_) context->TryCancel();
}

void CallsInFlight::AwaitNone() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](int64_t* number) { return *number == 0; }, &number_));
}

int64_t CallsInFlight::number() const {
  absl::MutexLock lock(&mutex_);
  return number_;
}

}  // namespace voxserve::client
