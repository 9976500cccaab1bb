#pragma once

// InferRun takes one request from its bytes through the engine to the bytes of its answer. Infer, ModelInfer and each
// request of ModelStreamInfer are such runs, so that identity, limits, fair shares, deadlines and metrics are the same
// for all. They differ in the InferFormat, which knows the messages.
//
// - Ownership: whoever starts a run keeps a shared_ptr as long as it may abandon it; the engine keeps another.
// - Threads: Start is called once. Abandon may be called from any thread, during Start too. `done` is called exactly
//   once, from Start or from one of the engine's threads, without a lock. Nothing blocks.
// - Errors: those of the parser, of CheckMayInfer, of the format and of Engine::Submit. RESOURCE_EXHAUSTED, reason
//   OUT_OF_MEMORY, if an allocation failed; no exception leaves a run.

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
#include "server/calls/request_telemetry.h"
#include "server/calls/service_parts.h"
#include "server/calls/trace_context.h"
#include "server/codec/message_parser.h"
#include "server/identity/authoriser.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve {

// An answer as it is sent, and the hold on its bytes until that is done.
struct InferAnswer {
  grpc::ByteBuffer message;
  HeldBytes held;
};

// Reads one request and writes its answer. Used by one run, one call at a time.
class InferFormat {
 public:
  virtual ~InferFormat() = default;

  // Parses the bytes. request: gets at least the model's name, version and priority and the request's id; data: the
  // cloud's bytes. Nothing is said about models here, since the caller may not know them.
  virtual absl::Status Parse(const grpc::ByteBuffer& bytes, CloudAllocator allocate, v1::InferRequest* request,
                             HostBuffer* data) = 0;
  // Completes the request for a caller who may use the model.
  virtual absl::Status Complete(const Engine& /*engine*/, v1::InferRequest* /*request*/) { return absl::OkStatus(); }
  // Fetches the cloud's bytes where they did not come with the message. Called after Complete.
  virtual absl::Status Fetch(const ServiceParts& /*parts*/, const std::string& /*client*/, CloudAllocator /*allocate*/,
                             HostBuffer* /*data*/) {
    return absl::OkStatus();
  }
  // Returns the memory of what the format keeps of the request, in bytes.
  virtual int64_t HeldSpace() const { return 0; }
  // Returns the time that the request itself allows for its answer, beside the call's deadline.
  virtual absl::Duration timeout() const { return absl::InfiniteDuration(); }
  virtual absl::StatusOr<InferAnswer> Encode(InferResult result, RequestTelemetry* telemetry) = 0;
};

class InferRun : public std::enable_shared_from_this<InferRun> {
 public:
  using Done = std::function<void(absl::StatusOr<InferAnswer>)>;
  // Who asks, and until when an answer is of use.
  struct Asker {
    std::string peer;
    Caller caller;
    absl::Time deadline;
    TraceContext trace = {};
  };

  // parts outlive the run.
  InferRun(const ServiceParts* parts, std::unique_ptr<InferFormat> format)
      : parts_(*parts), format_(std::move(format)) {}

  void Start(Asker asker, const grpc::ByteBuffer& bytes, Done done) ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells that nobody waits for the answer any more. `done` gets this status, unless the run has ended otherwise.
  void Abandon(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the request's id, or "" if it could not be read. For `done` alone.
  std::string request_id() const { return telemetry_.has_value() ? telemetry_->request_id() : ""; }

 private:
  // Hands the request to the engine, or returns why it is refused. The engine may also refuse it, by a call of `done`.
  absl::Status Submit(const grpc::ByteBuffer& bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Holds this many bytes for the request, in place of those held before.
  absl::Status HoldRequest(int64_t bytes);
  void SetTelemetry(const v1::InferRequest& request);
  absl::StatusOr<InferAnswer> AnswerOf(absl::StatusOr<InferResult> result) ABSL_LOCKS_EXCLUDED(mutex_);
  void Finish(absl::StatusOr<InferAnswer> answer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs the function; returns OUT_OF_MEMORY, which is counted, if an allocation failed in it.
  template <typename Run>
  auto Guarded(const Run& run) -> decltype(run());

  const ServiceParts& parts_;
  const std::unique_ptr<InferFormat> format_;
  // Set before the engine has the task.
  Asker asker_;
  std::optional<RequestTelemetry> telemetry_;
  HeldBytes request_bytes_;

  absl::Mutex mutex_;
  Done done_ ABSL_GUARDED_BY(mutex_);
  bool is_submitting_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<uint64_t> ticket_ ABSL_GUARDED_BY(mutex_);  // set when Submit has returned
  // Set when no client waits for the answer: the reason.
  std::optional<absl::Status> abandoned_ ABSL_GUARDED_BY(mutex_);
};

// Whether the caller may run this model at this priority: PERMISSION_DENIED.
absl::Status CheckMayInfer(const Caller& caller, const Engine& engine, const std::string& model, int64_t version,
                           int priority);

}  // namespace voxserve
