#pragma once

// TellDone calls the function that waits for a result, on one of the engine's threads. The function belongs to a call
// of a client, and may need memory for its answer. If it throws std::bad_alloc, that call gets no answer and ends at
// its deadline; the thread goes on with the work of others.

#include <new>
#include <utility>

#include "engine/base/logging.h"

namespace voxserve {

template <typename Done, typename Result>
void TellDone(const Done& done, Result&& result) {
  if (!done) return;
  try {
    done(std::forward<Result>(result));
  } catch (const std::bad_alloc&) {
    Log(LogLevel::kError, "no memory for an answer: its call ends at its deadline");
  }
}

}  // namespace voxserve
