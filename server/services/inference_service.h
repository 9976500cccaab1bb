#pragma once

// voxserve.v1.InferenceService over the engine, with gRPC's callback API: nobody waits in a callback.
//
// Infer makes a reactor that owns its call: it decodes, submits to the engine, and finishes from the engine's thread.
// A cancelled call (client gone, deadline passed) takes its task out of the engine's queue.
//
// A call is held from its request until its answer has left. What is held for clients is bounded: what waits and runs
// by the engine, the rest by CallLimits. InferStream is server/services/infer_stream.

#include <grpcpp/grpcpp.h>

#include <cstdint>

#include "absl/time/time.h"
#include "engine/base/log_limiter.h"
#include "engine/serving/engine.h"
#include "server/metrics/metrics.h"
#include "server/services/call_limits.h"
#include "server/services/infer_stream.h"
#include "server/services/request_telemetry.h"
#include "voxserve/v1/inference.grpc.pb.h"

namespace voxserve {

class InferenceService final : public v1::InferenceService::CallbackService {
 public:
  struct Options {
    int64_t max_response_bytes = int64_t{64} << 20;  // a larger response becomes RESOURCE_EXHAUSTED
    CallLimits::Options limits;
  };

  // engine and metrics outlive the service; the service outlives the gRPC server.
  InferenceService(const Options& options, Engine* engine, Metrics* metrics);

  grpc::ServerUnaryReactor* Infer(grpc::CallbackServerContext* context, const v1::InferRequest* request,
                                  v1::InferResponse* response) override;
  InferStreams::Reactor* InferStream(grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context, const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context, const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;

  // From now on Infer answers UNAVAILABLE, reason DRAINING. Calls that were accepted before go on; streams end when the
  // frames that they took are answered.
  void StartDraining();

  // Blocks until every accepted call's answer has left and every stream has ended, or until the deadline. Returns how
  // many have not.
  int64_t AwaitAnswers(absl::Time deadline);

  CallLimits::Held held() const { return limits_.held(); }

 private:
  class InferCall;

  Engine* const engine_;
  Metrics* const metrics_;
  CallLimits limits_;
  LogLimiter failure_log_;
  const AnswerOptions answer_options_;
  InferStreams streams_;
};

}  // namespace voxserve
