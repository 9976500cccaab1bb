#pragma once

// CallEnvironment has pointers to the parts of the server that calls use, and settings and hooks for calls. Services
// owns the one CallEnvironment of a server, which outlives the calls, as do the parts. It is constant, so any thread
// may read it.

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
  OpenCalls* calls = nullptr;
  ByteLimits* bytes = nullptr;
  Timers* timers = nullptr;
  SharedMemory* shared_memory = nullptr;
  LogLimiter* log_limiter = nullptr;  // limits log lines that clients can cause without end
  int num_devices = 1;                // the engine's devices
  // Returns true if the health service says SERVING for the whole server. Any thread may call it.
  std::function<bool()> is_ready = [] { return false; };
  std::string version = {};                // the server's version
  const Authoriser* authoriser = nullptr;  // null: the server has no tokens, and everybody may do everything
  // The largest answer to a request or frame (a larger one becomes RESOURCE_EXHAUSTED, reason RESPONSE_TOO_LARGE), and
  // the largest input from shared memory.
  int64_t max_message_bytes = int64_t{64} << 20;
  CallTimes times;
  // The functions below are called from any thread and must not block. peer: as grpc::ServerContext::peer() names a
  // connection.
  //
  // Returns the address for which a connection counts: the peer itself, or the address that a trusted proxy has named
  // for the connection (server/sockets/proxied_peers.h).
  std::function<std::string(const std::string& peer)> source_of = [](const std::string& peer) { return peer; };
  // Called when a call of this peer begins.
  std::function<void(const std::string& peer)> on_call = [](const std::string&) {};
  // Called when a message of this many bytes has arrived from this peer. is_first: it is the first message of its call.
  std::function<void(const std::string& peer, int64_t bytes, bool is_first)> on_message = [](const std::string&,
                                                                                             int64_t, bool) {};
  // Called when no call of this peer reads its messages any more.
  std::function<void(const std::string& peer)> on_idle = [](const std::string&) {};
  // Called when a call of this peer is refused. has_work: it is refused because the server drains, while the peer still
  // has an open request or stream.
  std::function<void(const std::string& peer, bool has_work)> on_refused_call = [](const std::string&, bool) {};
  // Called when a call of this peer ended without its request soon after it began.
  std::function<void(const std::string& peer)> on_useless_call = [](const std::string&) {};
  // Called when this peer cancelled a stream, or another call whose request had arrived, soon after the call began.
  std::function<void(const std::string& peer)> on_cancelled_call = [](const std::string&) {};
};

}  // namespace voxserve
