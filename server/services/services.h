#pragma once

// Services owns all services of the gRPC API, and the limits that the calls of all services share. It serves two ports,
// with one generic gRPC service (an RpcRouter) for each:
//
// - generic_service(), for clients: InferenceService, load reports (ORCA) and the open inference protocol.
// - admin_service(), for operators: AdminService, and the load, unload and lookup methods of the open inference
//   protocol.
// - Both: health and reflection.
//
// Threads: thread-safe. Only AwaitAnswers and AwaitUpdates wait.
// Lifetime: engine, metrics, connections and the budget in Options::bytes must outlive the Services, and the Services
// must outlive the gRPC servers.

#include <grpcpp/generic/async_generic_service.h>

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "engine/base/log_limiter.h"
#include "engine/serving/engine.h"
#include "server/calls/byte_limits.h"
#include "server/calls/call_environment.h"
#include "server/calls/open_calls.h"
#include "server/calls/rpc_router.h"
#include "server/calls/timers.h"
#include "server/metrics/metrics.h"
#include "server/services/health_service.h"

namespace voxserve {

class Services {
 public:
  struct Options {
    OpenCalls::Options calls;
    ByteLimits::Options bytes;
    CallTimes times;
    int64_t max_message_bytes = int64_t{64} << 20;
    std::string shared_memory_prefix;        // the prefix that SharedMemory's constructor takes
    std::string version;                     // the server's version
    const Authoriser* authoriser = nullptr;  // must outlive the services; null: everybody may do everything
  };

  Services(const Options& options, Engine* engine, Metrics* metrics, ConnectionObserver* connections);

  grpc::CallbackGenericService* generic_service() { return &router_; }
  grpc::CallbackGenericService* admin_service() { return &admin_router_; }
  HealthService& health() { return health_; }

  // Refuses new requests and streams from now on with UNAVAILABLE, reason DRAINING. Open requests are still answered.
  void StartDraining() { calls_.StartDraining(); }
  // These two return the same as the functions of this name in OpenCalls.
  bool HasWork(const std::string& peer) const { return calls_.HasWork(peer); }
  int64_t NumReading(const std::string& peer) const { return calls_.NumReading(peer); }
  // Blocks until every request's answer is sent and every stream has ended, or until the deadline. Returns the number
  // of requests and streams that are still open.
  int64_t AwaitAnswers(absl::Time deadline) { return calls_.AwaitClosed(deadline); }
  // Blocks until health streams (Watch) have been sent their last status, or until the deadline (by SteadyNow).
  void AwaitUpdates(absl::Time deadline) const { calls_.AwaitUpdated(deadline); }

  // The open calls, and the bytes that ByteLimits counts for them.
  struct Held {
    int64_t calls = 0;  // requests, including those whose answer is being sent
    int64_t streams = 0;
    int64_t unsent_bytes = 0;
    int64_t frame_bytes = 0;
    int64_t sweep_bytes = 0;
  };
  Held held() const;

 private:
  LogLimiter log_limiter_;
  OpenCalls calls_;
  ByteLimits bytes_;
  SharedMemory shared_memory_;
  const CallEnvironment parts_;
  HealthService health_;
  RpcRouter router_;
  RpcRouter admin_router_;
  Timers timers_;  // destroyed first, since its functions use the other members
};

}  // namespace voxserve
