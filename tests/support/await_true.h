#pragma once

// Polls until another thread or process has done something, but only up to a limit: a test that hangs does not say why.

#include "absl/functional/function_ref.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace voxserve::support {

// This limit is long enough for a busy machine, and far below the time after which run_programs.py ends a silent test.
inline constexpr absl::Duration kAwaitLimit = absl::Minutes(1);

// Calls `condition` every `pause` until it returns true. Returns true then, or false once `limit` has passed. Use it in
// an expectation, so that the failure message shows the condition:
//
//   EXPECT_TRUE(AwaitTrue([&] { return num_answers == 10; }));
inline bool AwaitTrue(absl::FunctionRef<bool()> condition, absl::Duration limit = kAwaitLimit,
                      absl::Duration pause = absl::Milliseconds(5)) {
  const absl::Time deadline = absl::Now() + limit;
  while (!condition()) {
    if (absl::Now() >= deadline) return false;
    absl::SleepFor(pause);
  }
  return true;
}

}  // namespace voxserve::support
