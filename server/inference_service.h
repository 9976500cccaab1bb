#pragma once

// voxserve.v1.InferenceService over the engine, with gRPC's callback API: nobody waits in a callback.
//
// Infer makes a reactor that owns its call: it decodes, submits to the engine, and finishes from the engine's thread.
// A cancelled call (client gone, deadline passed) takes its task out of the engine's queue.

#include <grpcpp/grpcpp.h>

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/serving/engine.h"
#include "server/metrics.h"
#include "voxserve/v1/inference.grpc.pb.h"

namespace voxserve {

class InferenceService final : public v1::InferenceService::CallbackService {
 public:
  struct Options {
    int64_t max_response_bytes = int64_t{64} << 20;  // a larger response becomes RESOURCE_EXHAUSTED
  };

  // engine and metrics outlive the service; the service outlives the gRPC server.
  InferenceService(Options options, Engine* engine, Metrics* metrics)
      : options_(options), engine_(engine), metrics_(metrics) {}

  grpc::ServerUnaryReactor* Infer(grpc::CallbackServerContext* context, const v1::InferRequest* request,
                                  v1::InferResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context, const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context, const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;

  // From now on Infer answers UNAVAILABLE, reason DRAINING. Calls that were accepted before go on.
  void StartDraining();

  // Blocks until every accepted call's answer has left, or until the deadline. Returns how many have not.
  int64_t AwaitAnswers(absl::Time deadline);

 private:
  class InferCall;

  bool Accept();
  void Release();

  const Options options_;
  Engine* const engine_;
  Metrics* const metrics_;

  absl::Mutex mutex_;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t num_accepted_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace voxserve
