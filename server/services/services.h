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
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "engine/base/log_limiter.h"
#include "engine/serving/engine.h"
#include "server/calls/byte_limits.h"
#include "server/calls/call.h"
#include "server/calls/call_environment.h"
#include "server/calls/client_connections.h"
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
    const ClientCertificates* client_certificates = nullptr;  // likewise; null: clients need no certificate
  };

  Services(const Options& options, Engine* engine, Metrics* metrics, ConnectionObserver* connections);

  grpc::CallbackGenericService* generic_service() { return &router_; }
  grpc::CallbackGenericService* admin_service() { return &admin_router_; }
  HealthService& health() { return health_; }

  // Refuses new requests and streams from now on with UNAVAILABLE, reason DRAINING. Open requests are still answered.
  void StartDraining() { calls_.StartDraining(); }
  // Ends the calls whose caller may not make them any more (Call::LookAtIdentity). Called by one thread at a time.
  void LookAtIdentities() { calls_.LookAtIdentities(); }
  // These two return the same as the functions of this name in OpenCalls.
  absl::Time IdleSince(const std::string& peer) const { return calls_.IdleSince(peer); }
  ReadingCalls Reading(const std::string& peer) const { return calls_.Reading(peer); }
  // Tells that a connection has ended. Its client's regions of shared memory end CallTimes::silence later, unless the
  // client has another connection, or gets one until then.
  void OnConnectionGone(const std::string& peer);
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
  ClientConnections client_connections_;
  const CallEnvironment environment_;
  HealthService health_;
  RpcRouter router_;
  RpcRouter admin_router_;
  Timers timers_;  // destroyed first, since its functions use the other members
};

// The parts of the services follow, each implemented by the source file that the heading names. `environment` must
// outlive the router or the call.

// ---- inference_service.cc: voxserve.v1.InferenceService

inline constexpr char kInferenceServiceName[] = "voxserve.v1.InferenceService";

// Adds Infer, InferStream, ListModels and GetModel. An Infer call is an InferCall, whose UnaryRequest
// (server/calls/unary_request.h) hands the request to the engine. ListModels and GetModel are LookupCalls, and show a
// caller only the models that it may see.
void AddInferenceService(const CallEnvironment* environment, RpcRouter* router);

// ---- infer_stream.cc: voxserve.v1.InferenceService.InferStream

// Makes the call for one stream. The call receives a client's frames, hands them to a StreamSession, and sends the
// answers.
//
// - The call is a StreamCall (server/calls/stream_call.h): one message at a time is sent in each direction. The
// client's
//   first message is the config, and all others are frames.
// - End: after the client has half-closed, the call ends with OK as soon as every accepted frame has been answered. It
//   ends with an error if a message breaks the protocol (such as a wrong config, a second config, or a frame before the
//   config), if the client has been silent for too long, or if the server drains (shuts down). Then too the call first
//   answers the frames that it has accepted.
// - Back-pressure: the call reads no message while its session has no room for a frame. ByteLimits bounds the bytes of
//   clouds, sweeps and answers.
// - A frame whose bytes are malformed is answered with an error, and the stream goes on. A malformed message before the
//   config ends the stream.
std::shared_ptr<Call> MakeInferStream(const CallEnvironment* environment, grpc::CallbackServerContext* context);

// ---- admin_service.cc: voxserve.v1.AdminService

inline constexpr char kAdminServiceName[] = "voxserve.v1.AdminService";

// Adds LoadModel and UnloadModel (server/calls/model_call.h) and TunePlan to the router of the operators' port.
// - Every call that is admitted writes a line to the audit log when it ends (server/calls/audit.h).
// - When the server drains (shuts down), every call ends at once with UNAVAILABLE, reason DRAINING.
void AddAdminService(const CallEnvironment* environment, RpcRouter* router);

// ---- tune_plan_call.cc: voxserve.v1.AdminService.TunePlan

// Makes the call of one RPC. The call starts the engine's search for a plan (the settings by which a model's
// convolutions run fastest), sends the progress that the engine reports, and at last the result.
//
// - While a message is being sent, only the newest progress waits, so a client that reads slowly takes no more memory.
// - The call and its search end at once when the client cancels or when the server drains (UNAVAILABLE, reason
//   DRAINING).
// - Errors: INVALID_ARGUMENT if a number in the request is out of range, and the errors of Engine::Tune.
std::shared_ptr<Call> MakeTunePlanCall(const CallEnvironment* environment, grpc::CallbackServerContext* context);

// ---- load_reports.cc: xds.service.orca.v3.OpenRcaService

// Adds the method StreamCoreMetrics, a stream of load reports by ORCA (server/calls/load_report.h). It sends a report
// at once, and then one at each interval until the client cancels. The interval is the request's, limited to 1 s to 1
// h. INVALID_ARGUMENT (MALFORMED_MESSAGE) if the interval is negative or not a valid google.protobuf.Duration.
//
// gRPC's own implementation is not used: gRPC shows the calls of its registered methods only after their request has
// arrived (see call.h), and the gRPC of Debian 12 lacks this service.
void AddLoadReportService(const CallEnvironment* environment, RpcRouter* router);

// ---- reflection_service.cc: gRPC server reflection

// Adds the methods of versions 1 and 1alpha. Tools such as grpcurl use them to list services and read their messages.
// They answer from the compiled-in descriptors. They have no extensions to report, since proto3 has none.
void AddReflectionService(const CallEnvironment* environment, RpcRouter* router);

}  // namespace voxserve
