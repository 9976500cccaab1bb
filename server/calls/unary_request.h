#pragma once

// UnaryRequest takes one request from its bytes through the engine to the bytes of its answer. Infer, ModelInfer and
// each request of ModelStreamInfer use a UnaryRequest, so that identity, limits, fair shares, deadlines and metrics
// are the same for all. An InferFormat parses and writes the messages, which differ.
//
// - Ownership: the caller of Start keeps a shared_ptr to the request as long as the caller may call Abandon. The engine
//   keeps another until it has answered the request's task.
// - Threads: Start is called once. Abandon may be called from any thread, also while Start runs. `done` is called
//   exactly once, from Start or from one of the engine's threads, and no lock is held meanwhile. Nothing blocks.
// - Errors: `done` gets the errors of the parser, of CheckMayInfer, of the format and of Engine::Submit. It gets
//   RESOURCE_EXHAUSTED, reason OUT_OF_MEMORY, if an allocation failed. No function throws an exception.

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/runtime/host_buffer.h"
#include "engine/tensor/infer_result.h"
#include "server/calls/byte_limits.h"
#include "server/calls/call_environment.h"
#include "server/calls/request_codec.h"
#include "server/calls/request_telemetry.h"
#include "server/calls/trace_context.h"
#include "server/codec/message_parser.h"
#include "server/identity/authoriser.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve {

// An answer as a message. `held` counts its bytes in ByteLimits until the answer has been sent.
struct EncodedAnswer {
  std::unique_ptr<google::protobuf::Message> message;
  HeldBytes held;
};
// The same answer, serialized as it is sent.
struct InferAnswer {
  grpc::ByteBuffer message;
  HeldBytes held;
};

// InferFormat reads one request and writes its answer. One UnaryRequest uses it, with one call at a time.
class InferFormat {
 public:
  virtual ~InferFormat() = default;

  // Parses the bytes. `request` gets at least the model's name, version and priority and the request's id; `data` gets
  // the cloud's bytes. The errors say nothing about the server's models, since it is not known yet whether the caller
  // may see them.
  virtual absl::Status Parse(const grpc::ByteBuffer& bytes, CloudAllocator allocate, v1::InferRequest* request,
                             HostBuffer* data) = 0;
  // Completes the request with all that Parse has left open. Called after Parse, when CheckMayInfer has shown that the
  // caller may use the model, so the errors may describe the model.
  virtual absl::Status Complete(const Engine& /*engine*/, v1::InferRequest* /*request*/) { return absl::OkStatus(); }
  // Fetches the cloud's bytes if they did not come with the message but lie in shared memory. Called after Complete.
  virtual absl::Status Fetch(const CallEnvironment& /*environment*/, const std::string& /*client*/,
                             CloudAllocator /*allocate*/, HostBuffer* /*data*/) {
    return absl::OkStatus();
  }
  // Returns how many bytes of memory the format itself keeps for the request.
  virtual int64_t HeldSpace() const { return 0; }
  // Returns the time that the request itself allows for its answer. The call's deadline holds as well.
  virtual absl::Duration timeout() const { return absl::InfiniteDuration(); }
  // Writes the answer. Returns the errors of RequestCodec::Hold, which holds its bytes. Boxes stay in the result.
  virtual absl::StatusOr<EncodedAnswer> Encode(InferResult* result, RequestCodec* codec) = 0;
};

class UnaryRequest : public std::enable_shared_from_this<UnaryRequest> {
 public:
  using Done = std::function<void(absl::StatusOr<InferAnswer>)>;
  // The caller of the request, and the deadline of its answer.
  struct RequestOrigin {
    std::string peer;
    Caller caller;
    absl::Time deadline;
    TraceContext trace = {};
  };

  // `environment` must outlive the request.
  UnaryRequest(const CallEnvironment* environment, std::unique_ptr<InferFormat> format)
      : environment_(*environment), format_(std::move(format)) {}

  void Start(RequestOrigin origin, const grpc::ByteBuffer& bytes, Done done) ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells the request that nobody waits for its answer any more, and cancels its task. `done` gets the status `why`,
  // unless the request has ended already or fails with an error of its own.
  void Abandon(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the request's id, or "" if it could not be read. Only `done` may call it.
  std::string request_id() const { return telemetry_.has_value() ? telemetry_->request_id() : ""; }

 private:
  // Hands the request to the engine, or returns why it is refused. The engine may also refuse it, by a call of `done`.
  absl::Status Submit(const grpc::ByteBuffer& bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Holds this many bytes for the request, in place of those held before.
  absl::Status HoldRequest(int64_t bytes);
  void SetTelemetry(const v1::InferRequest& request);
  absl::StatusOr<InferAnswer> AnswerOf(absl::StatusOr<InferResult> result) ABSL_LOCKS_EXCLUDED(mutex_);
  void Finish(absl::StatusOr<InferAnswer> answer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs the function and returns its result. If an allocation fails in it (std::bad_alloc), counts the failure in the
  // metrics and returns RESOURCE_EXHAUSTED, reason OUT_OF_MEMORY.
  template <typename Run>
  auto Guarded(const Run& run) -> decltype(run());

  const CallEnvironment& environment_;
  const std::unique_ptr<InferFormat> format_;
  // Start sets these before the engine gets the task.
  RequestOrigin origin_;
  std::optional<RequestTelemetry> telemetry_;
  std::optional<RequestCodec> codec_;
  HeldBytes request_bytes_;

  absl::Mutex mutex_;
  Done done_ ABSL_GUARDED_BY(mutex_);
  bool is_submitting_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<uint64_t> ticket_ ABSL_GUARDED_BY(mutex_);  // the task's, set when Engine::Submit has returned
  // The reason why no client waits for the answer; nullopt while a client waits.
  std::optional<absl::Status> abandoned_ ABSL_GUARDED_BY(mutex_);
};

// Checks that the caller may run this model at this priority. Returns PERMISSION_DENIED if not, and UNAUTHENTICATED if
// models need a token and the caller has shown none. May also return the error of Engine::GetModel.
absl::Status CheckMayInfer(const Caller& caller, const Engine& engine, const std::string& model, int64_t version,
                           int priority);

}  // namespace voxserve
