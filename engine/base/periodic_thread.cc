#include "engine/base/periodic_thread.h"

#include <algorithm>
#include <new>
#include <utility>

#include "engine/base/logging.h"

namespace voxserve {
namespace {

constexpr absl::Duration kLogPeriod = absl::Minutes(1);

}  // namespace

PeriodicThread::PeriodicThread(absl::Duration pause, std::function<absl::Duration()> function)
    : thread_([this, pause, function = std::move(function)] { Run(pause, function); }) {}

PeriodicThread::~PeriodicThread() {
  stopping_.Notify();
  thread_.join();
}

void PeriodicThread::Run(absl::Duration pause, const std::function<absl::Duration()>& function) {
  absl::Time logs_again = absl::InfinitePast();
  while (pause != absl::InfiniteDuration() && !stopping_.WaitFor(pause)) {
    try {
      pause = function();
    } catch (const std::bad_alloc&) {
      pause = std::max(pause, kPauseWithoutMemory);
      if (const absl::Time now = SteadyNow(); now >= logs_again) {
        Log(LogLevel::kError, "no memory for periodic work: it is tried again");
        logs_again = now + kLogPeriod;
      }
    }
  }
}

}  // namespace voxserve
