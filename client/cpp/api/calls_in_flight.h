#pragma once

// CallsInFlight, private to the library, counts asynchronous unary calls and owns their contexts. A context shares its
// channel's ownership, and gRPC ends the process if one of its own threads destroys the last channel: that waits for
// all of gRPC's callback threads, so also for itself. Hence a call counts until its context is destroyed, and whoever
// waits for the calls can destroy the channels. Thread-safe.

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/api/channels.h"

namespace voxserve::client {

class CallsInFlight {
 public:
  CallsInFlight() = default;
  CallsInFlight(const CallsInFlight&) = delete;
  CallsInFlight& operator=(const CallsInFlight&) = delete;
  ~CallsInFlight() { AwaitNone(); }

  // Counts a call and returns its context, which lives until End. Returns null if max_calls are in flight.
  CallContext* Begin(const Channels& channels, absl::Duration timeout,
                     int64_t max_calls = std::numeric_limits<int64_t>::max()) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (number() >= max_calls) return nullptr;  // looked at before the context costs anything
    auto context = std::make_unique<CallContext>(channels, timeout);
    CallContext* const key = context.get();
    absl::MutexLock lock(&mutex_);
    if (number_ >= max_calls) return nullptr;
    contexts_.emplace(key, std::move(context));
    ++number_;
    return key;
  }

  // Destroys the context. A call's callback calls it last, since its owner may be gone afterwards.
  void End(CallContext* context) ABSL_LOCKS_EXCLUDED(mutex_) {
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

  void CancelAll() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    for (const auto& [context, owned] : contexts_) context->TryCancel();
  }

  void AwaitNone() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](int64_t* number) { return *number == 0; }, &number_));
  }

  int64_t number() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return number_;
  }

 private:
  mutable absl::Mutex mutex_;
  int64_t number_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<CallContext*, std::unique_ptr<CallContext>> contexts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve::client
