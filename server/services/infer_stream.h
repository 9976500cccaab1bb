#pragma once

// The streams of voxserve.v1.InferenceService.InferStream: gRPC's side of StreamSession, with the callback API, so that
// nobody waits in a callback.
//
// Each stream has one message on its way in each direction. What it keeps is bounded: it reads no further while answers
// that the client does not read pile up, or while its session has no room; clouds, sweeps and answers of all streams
// together are bounded by CallLimits. A stream ends when every frame that it took has been answered: with OK when the
// client has half-closed, with an error when it broke the protocol or the server drains. A client that is gone has its
// frames cancelled.

#include <grpcpp/grpcpp.h>

#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/serving/engine.h"
#include "server/services/request_telemetry.h"
#include "voxserve/v1/inference.grpc.pb.h"

namespace voxserve {

class InferStreams {
 public:
  using Reactor = grpc::ServerBidiReactor<v1::InferStreamRequest, v1::InferStreamResponse>;

  // engine outlives the streams, which outlive the gRPC server.
  InferStreams(const AnswerOptions& options, Engine* engine) : options_(options), engine_(engine) {}

  // A new stream. It belongs to this object until gRPC is done with it.
  Reactor* Open(grpc::CallbackServerContext* context);

  // From now on streams take no frames, say so, and end with UNAVAILABLE, reason DRAINING, when those that they took
  // are answered.
  void StartDraining();

 private:
  class Call;

  // Keeps the stream until Release. False where the server drains.
  bool Hold(std::shared_ptr<Call> call);
  void Release(const std::shared_ptr<Call>& call);

  const AnswerOptions options_;
  Engine* const engine_;

  absl::Mutex mutex_;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::shared_ptr<Call>> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve
