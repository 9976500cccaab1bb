#include "server/calls/timers.h"

#include <new>

#include "engine/base/logging.h"
#include "engine/base/steady_time.h"

namespace voxserve {

Timers::~Timers() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.Signal();
  }
  thread_.join();
}

Timers::Id Timers::Set(absl::Time when, std::function<void()> on_due) {
  absl::MutexLock lock(&mutex_);
  const Id id = next_id_++;
  waiting_.emplace(std::make_pair(when, id), std::move(on_due));
  times_[id] = when;
  if (when < wakes_) changed_.Signal();
  return id;
}

void Timers::Clear(Id id) {
  std::function<void()> cleared;  // destroyed after the lock is released, since it may own an object that calls back
  absl::MutexLock lock(&mutex_);
  const auto time = times_.find(id);
  if (time == times_.end()) return;
  const auto it = waiting_.find({time->second, id});
  cleared = std::move(it->second);
  waiting_.erase(it);
  times_.erase(time);
}

absl::Time Timers::wakes() const {
  absl::MutexLock lock(&mutex_);
  return wakes_;
}

void Timers::Run() {
  for (;;) {
    std::function<void()> on_due;
    {
      absl::MutexLock lock(&mutex_);
      while (!stopping_ && (waiting_.empty() || waiting_.begin()->first.first > SteadyNow())) {
        wakes_ = waiting_.empty() ? absl::InfiniteFuture() : waiting_.begin()->first.first;
        changed_.WaitUntil(&mutex_, wakes_);
        wakes_ = absl::InfinitePast();
      }
      if (stopping_) return;
      const auto first = waiting_.begin();
      on_due = std::move(first->second);
      times_.erase(first->first.second);
      waiting_.erase(first);
    }
    try {
      on_due();
    } catch (const std::bad_alloc&) {
      Log(LogLevel::kError, "no memory for what was due");
    }
  }
}

}  // namespace voxserve
