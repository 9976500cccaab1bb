#pragma once

// CallEnvironment has pointers to the parts of the server that calls use, and settings for calls. Services owns the one
// CallEnvironment of a server, which outlives the calls, as do the parts. It is constant, so any thread may read it.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "engine/base/log_limiter.h"
#include "engine/serving/engine.h"
#include "server/calls/byte_limits.h"
#include "server/calls/client_connections.h"
#include "server/calls/connection_observer.h"
#include "server/calls/open_calls.h"
#include "server/calls/shared_memory.h"
#include "server/calls/timers.h"
#include "server/identity/authoriser.h"
#include "server/identity/client_certificates.h"
#include "server/metrics/metrics.h"

namespace voxserve {

// The times that a client may take. The server ends a call that exceeds one of them, with the reason named here.
struct CallTimes {
  // REQUEST_INCOMPLETE: from the call's headers until the whole request has arrived.
  absl::Duration request = absl::Seconds(30);
  // STREAM_IDLE: until an InferStream's config has arrived, and until each request of a reflection call has.
  absl::Duration config = absl::Seconds(10);
  // STREAM_IDLE: the longest silence of a client whose stream has no unanswered request and no unsent answer.
  absl::Duration silence = absl::Seconds(60);
  // ANSWER_UNREAD: to read an answer, plus the time that the answer's bytes take at answer_bytes_per_second.
  absl::Duration answer = absl::Seconds(10);
  double answer_bytes_per_second = 1 << 20;
  // ANSWER_UNREAD: for all answers of a call together, from the moment at which the server begins to drain (shut down).
  absl::Duration drained_answer = absl::Seconds(4);
};

// The largest request of a method that sends no cloud.
inline constexpr int64_t kMaxSmallMessageBytes = 64 << 10;

struct CallEnvironment {
  Engine* engine = nullptr;
  Metrics* metrics = nullptr;
  ConnectionObserver* connections = nullptr;
  OpenCalls* calls = nullptr;
  ByteLimits* bytes = nullptr;
  Timers* timers = nullptr;
  SharedMemory* shared_memory = nullptr;
  ClientConnections* client_connections = nullptr;  // null: nothing that calls leave ends with their connections
  LogLimiter* log_limiter = nullptr;                // limits log lines that clients can cause without end
  int num_devices = 1;                              // the engine's devices
  // Returns true if the health service says SERVING for the whole server. Any thread may call it.
  std::function<bool()> is_ready = [] { return false; };
  std::string version = {};                // the server's version
  const Authoriser* authoriser = nullptr;  // null: the server has no tokens, and everybody may do everything
  const ClientCertificates* client_certificates = nullptr;  // null: clients need no certificate
  // The largest answer to a request or frame (a larger one becomes RESOURCE_EXHAUSTED, reason RESPONSE_TOO_LARGE), and
  // the largest input from shared memory.
  int64_t max_message_bytes = int64_t{64} << 20;
  CallTimes times;
};

}  // namespace voxserve
