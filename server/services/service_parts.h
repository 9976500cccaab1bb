#pragma once

// ServiceParts is what every call needs of the server around it. All of it outlives the calls.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "engine/base/log_limiter.h"
#include "engine/serving/engine.h"
#include "server/identity/authoriser.h"
#include "server/metrics/metrics.h"
#include "server/services/byte_limits.h"
#include "server/services/open_calls.h"
#include "server/services/timers.h"

namespace voxserve {

// How long a client may take. A call that takes longer is ended, with the reason that stands beside it.
struct CallTimes {
  absl::Duration request = absl::Seconds(30);        // from the headers to the whole request: REQUEST_INCOMPLETE
  absl::Duration config = absl::Seconds(10);         // to a stream's config: STREAM_IDLE
  absl::Duration silence = absl::Seconds(60);        // between a stream's frames, while it waits for none: STREAM_IDLE
  absl::Duration answer = absl::Seconds(10);         // to read an answer: ANSWER_UNREAD; and the time of its bytes:
  double answer_bytes_per_second = 1 << 20;          // the slowest link that is served
  absl::Duration drained_answer = absl::Seconds(4);  // the most that an answer gets once the server drains
};

// The largest request of a method that sends no cloud.
inline constexpr int64_t kMaxSmallMessageBytes = 64 << 10;

struct ServiceParts {
  Engine* engine = nullptr;
  Metrics* metrics = nullptr;
  OpenCalls* calls = nullptr;
  ByteLimits* bytes = nullptr;
  Timers* timers = nullptr;
  LogLimiter* log_limiter = nullptr;              // of every line that a client can cause
  const Authoriser* authoriser = nullptr;         // null: no tokens, and everybody may do everything
  int64_t max_message_bytes = int64_t{64} << 20;  // of an answer; a larger one becomes RESOURCE_EXHAUSTED
  CallTimes times;
  // A call of this peer has begun. From any thread, as are the next; none may block.
  std::function<void(const std::string& peer)> on_call = [](const std::string&) {};
  // A message of so many bytes has come whole from this peer. is_first: of its call.
  std::function<void(const std::string& peer, int64_t bytes, bool is_first)> on_message = [](const std::string&,
                                                                                             int64_t, bool) {};
  // No call of this peer takes any more of what it sends.
  std::function<void(const std::string& peer)> on_idle = [](const std::string&) {};
  // A call of this peer was not let in, for another reason than that the server drains.
  std::function<void(const std::string& peer)> on_refused_call = [](const std::string&) {};
  // A call of this peer ended without its request, as soon as it had begun.
  std::function<void(const std::string& peer)> on_useless_call = [](const std::string&) {};
  // This peer cancelled a call as soon as its request was there.
  std::function<void(const std::string& peer)> on_cancelled_call = [](const std::string&) {};
};

}  // namespace voxserve
