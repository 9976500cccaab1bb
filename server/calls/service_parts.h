#pragma once

// ServiceParts are the parts of the server that every call needs. All of them outlive the calls.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "engine/base/log_limiter.h"
#include "engine/serving/engine.h"
#include "server/calls/byte_limits.h"
#include "server/calls/open_calls.h"
#include "server/calls/shared_memory.h"
#include "server/calls/timers.h"
#include "server/identity/authoriser.h"
#include "server/metrics/metrics.h"

namespace voxserve {

// The times that a client may take. A call that exceeds one is ended with the reason named here.
struct CallTimes {
  absl::Duration request = absl::Seconds(30);        // from the headers to the whole request: REQUEST_INCOMPLETE
  absl::Duration config = absl::Seconds(10);         // to a stream's config: STREAM_IDLE
  absl::Duration silence = absl::Seconds(60);        // between frames of a stream without unanswered ones: STREAM_IDLE
  absl::Duration answer = absl::Seconds(10);         // to read an answer, plus the time of its bytes: ANSWER_UNREAD
  double answer_bytes_per_second = 1 << 20;          // the slowest link that is served
  absl::Duration drained_answer = absl::Seconds(4);  // for all answers together once the server drains
};

// The largest request of a method that sends no cloud.
inline constexpr int64_t kMaxSmallMessageBytes = 64 << 10;

struct ServiceParts {
  Engine* engine = nullptr;
  Metrics* metrics = nullptr;
  OpenCalls* calls = nullptr;
  ByteLimits* bytes = nullptr;
  Timers* timers = nullptr;
  SharedMemory* shared_memory = nullptr;
  LogLimiter* log_limiter = nullptr;                      // of every line that a client can cause
  int num_devices = 1;                                    // that the engine computes on
  std::function<bool()> is_ready = [] { return false; };  // as health says for the whole server; from any thread
  std::string version = {};                               // of the server
  const Authoriser* authoriser = nullptr;                 // null: no tokens, and everybody may do everything
  int64_t max_message_bytes = int64_t{64} << 20;          // of an answer; a larger one becomes RESOURCE_EXHAUSTED
  CallTimes times;
  // Returns the address that a peer stands for: its own, or what a trusted proxy says (server/sockets/proxied_peers.h).
  std::function<std::string(const std::string& peer)> source_of = [](const std::string& peer) { return peer; };
  // Called when a call of this peer begins. These functions are called from any thread and must not block.
  std::function<void(const std::string& peer)> on_call = [](const std::string&) {};
  // Called when a message of this many bytes has arrived from this peer. is_first: it is the first of its call.
  std::function<void(const std::string& peer, int64_t bytes, bool is_first)> on_message = [](const std::string&,
                                                                                             int64_t, bool) {};
  // Called when no call of this peer reads its messages any more.
  std::function<void(const std::string& peer)> on_idle = [](const std::string&) {};
  // Called when a call of this peer is refused, except for a drain.
  std::function<void(const std::string& peer)> on_refused_call = [](const std::string&) {};
  // Called when a call of this peer ended without its request soon after it began.
  std::function<void(const std::string& peer)> on_useless_call = [](const std::string&) {};
  // Called when this peer cancelled a call soon after it began, with its request.
  std::function<void(const std::string& peer)> on_cancelled_call = [](const std::string&) {};
};

}  // namespace voxserve
