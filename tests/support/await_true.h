#pragma once

// Waits in a test for what another thread or process does, with a limit: a test that hangs says nothing.

#include "absl/functional/function_ref.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace voxserve::support {

// Ample for a busy machine, and far below ctest's time limit for a test.
inline constexpr absl::Duration kAwaitLimit = absl::Minutes(1);

// Asks `condition` every `pause` until it is true, and returns true then; false once `limit` has passed. Use it in an
// expectation, so that its failure names the condition:
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
