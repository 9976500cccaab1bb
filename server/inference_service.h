#pragma once

// voxserve.v1.InferenceService over the engine, with gRPC's callback API: nobody waits in a callback.
//
// Infer makes a reactor that owns its call: it decodes, submits to the engine, and finishes from the engine's thread.
// A cancelled call (client gone, deadline passed) takes its task out of the engine's queue.
//
// A call is held from its request until its answer has left, which a client that does not read delays for as long as
// it likes. Both the number of such calls and the bytes of their answers are bounded; beyond either, calls get
// RESOURCE_EXHAUSTED, reason QUEUE_FULL, with a retry delay.

#include <grpcpp/grpcpp.h>

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
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
    int64_t max_accepted_requests = 512;             // held at once
    int64_t max_unsent_bytes = int64_t{2} << 30;     // of answers that have not left; one alone may be larger
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

  // Holds one more call: UNAVAILABLE (DRAINING) or RESOURCE_EXHAUSTED (QUEUE_FULL) where that may not be.
  absl::Status Accept();
  // Holds an accepted call's answer: RESOURCE_EXHAUSTED (QUEUE_FULL) where others take too much.
  absl::Status HoldAnswer(int64_t bytes);
  // An accepted call is done, and its answer of so many bytes (0: none was held) with it.
  void Release(int64_t answer_bytes);

  const Options options_;
  Engine* const engine_;
  Metrics* const metrics_;

  absl::Mutex mutex_;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t num_accepted_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t unsent_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace voxserve
