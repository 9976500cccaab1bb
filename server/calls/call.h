#pragma once

// Call is one RPC of any method, from the arrival of its headers; it sends and receives bytes. RequestCall is a call
// with one request and one or several response messages.
//
// Every method is served by gRPC's generic callback API. The calls of a registered method would be invisible until
// their request has arrived, so a client could open any number of them.
//
// - Ownership: OpenCalls owns a call until gRPC has finished with it (OnDone). The engine's tasks may keep it longer.
// - Threads: gRPC, the engine and the timers call it from any thread. StartRead, StartWrite and Finish may call back
//   at once, so no lock is held around them. Nothing blocks.
// - Errors: no exception leaves a call. A failed allocation ends it with RESOURCE_EXHAUSTED, reason OUT_OF_MEMORY.

#include <google/protobuf/message.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/steady_time.h"
#include "server/calls/byte_limits.h"
#include "server/calls/open_calls.h"
#include "server/calls/service_parts.h"
#include "server/calls/timers.h"
#include "server/calls/trace_context.h"
#include "server/identity/authoriser.h"

namespace voxserve {

class Call : public grpc::ServerGenericBidiReactor, public std::enable_shared_from_this<Call> {
 public:
  Call(const ServiceParts* parts, grpc::CallbackServerContext* context, CallKind kind);

  // Who makes the call: set once, before OpenCalls has it. Without it the client is the peer's address.
  void SetCaller(Caller caller) { caller_ = std::move(caller); }

  // OpenCalls has the call now.
  virtual void Start() = 0;
  // Tells that the server drains: accepted work is finished and answered, and nothing new begins.
  virtual void Drain() = 0;

  CallKind kind() const { return kind_; }
  const std::string& peer() const { return peer_; }      // gRPC's name of the connection
  const std::string& source() const { return source_; }  // the address that it stands for; for logs and limits
  const TraceContext& trace() const { return trace_; }
  const Caller& caller() const { return caller_; }
  const std::string& client() const { return caller_.client; }  // whose share the call takes

  void OnDone() final;

 protected:
  // Runs the function. Returns false if an allocation failed in it, and counts that.
  template <typename Run>
  bool Guard(const Run& run) {
    try {
      run();
      return true;
    } catch (const std::bad_alloc&) {
      OnOutOfMemory();
      return false;
    }
  }

  // Tells that the call reads no more of its client's messages.
  void EndReading();

  // Called last, before OpenCalls releases the call.
  virtual void OnClosed() {}

  const ServiceParts& parts() const { return *parts_; }
  grpc::CallbackServerContext* context() const { return context_; }
  absl::Time deadline() const { return deadline_; }
  absl::Time began() const { return began_; }

  // Sets a timer that calls the function on this call, unless the call is gone by then. Returns 0 if an allocation
  // failed: then the function is never called.
  template <typename Self>
  Timers::Id SetTimer(absl::Time when, void (Self::*on_due)()) {
    Timers::Id id = 0;
    Guard([&] {
      id = parts_->timers->Set(when, [weak = weak_from_this(), on_due] {
        if (const auto self = weak.lock()) (static_cast<Self&>(*self).*on_due)();
      });
    });
    return id;
  }

  // Starts the timer for an answer of this many bytes that is handed to gRPC. If the client does not read it in time,
  // the call is cut off.
  void StartAnswerTimer(int64_t bytes) ABSL_LOCKS_EXCLUDED(answer_mutex_);
  void StopAnswerTimer() ABSL_LOCKS_EXCLUDED(answer_mutex_);
  // Gives the current and later answers less time, one limit for all together, since the server drains.
  void ShortenAnswerTimer() ABSL_LOCKS_EXCLUDED(answer_mutex_);
  bool was_cut() const ABSL_LOCKS_EXCLUDED(answer_mutex_);

  // Count a call that the client cancelled or left, or that ended without its request. Only a call that has just begun
  // counts. A longer call takes a part of the client's share, which bounds the number of such calls. And a vehicle
  // whose deadline passes while it still sends has done nothing wrong.
  void CountCancel() const;
  void CountUseless() const;
  // Returns the reason for the end of a call that gRPC reports as cancelled.
  absl::Status WhyCancelled() const;

 private:
  void SetAnswerTimer(absl::Time limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(answer_mutex_);
  void CutUnread() ABSL_LOCKS_EXCLUDED(answer_mutex_);
  void OnOutOfMemory() const;

  const ServiceParts* const parts_;
  grpc::CallbackServerContext* const context_;
  const CallKind kind_;
  const std::string peer_;
  const std::string source_;
  const TraceContext trace_;
  Caller caller_;
  const absl::Time deadline_;
  const absl::Time began_ = SteadyNow();

  mutable absl::Mutex answer_mutex_;
  Timers::Id answer_timer_ ABSL_GUARDED_BY(answer_mutex_) = 0;  // 0: no answer is being sent
  absl::Time answer_limit_ ABSL_GUARDED_BY(answer_mutex_);
  absl::Time answer_began_ ABSL_GUARDED_BY(answer_mutex_);
  std::optional<absl::Duration> drain_left_ ABSL_GUARDED_BY(answer_mutex_);  // time left for answers during a drain
  bool was_cut_ ABSL_GUARDED_BY(answer_mutex_) = false;

  absl::Mutex context_mutex_;  // held to use gRPC's context, which ends after OnDone
  bool is_done_ ABSL_GUARDED_BY(context_mutex_) = false;
};

class RequestCall : public Call {
 public:
  using Call::Call;

  void Start() final;
  void Drain() override;
  void OnReadDone(bool ok) final;
  void OnWriteDone(bool ok) final;
  void OnCancel() final;

 protected:
  // The call calls it once, with the request. A failed allocation ends the call.
  virtual void OnRequest(const grpc::ByteBuffer& bytes) = 0;
  // Called if the client cancels, or its deadline passes, after the request arrived: no client waits for the answer.
  virtual void OnAbandoned(const absl::Status& why) { End(why); }
  // Called with the status that gRPC is given; before OnClosed.
  virtual void OnEnded(const absl::Status& /*status*/) {}

  // Sends a message before the last one. While another is being sent only the newest message waits, so a client that
  // reads slowly gets the latest one.
  void Update(grpc::ByteBuffer message);
  // Sends the last message, if there is one, and the status. Returns false, without effect, if the call had ended.
  // `held` is given back when the answer is sent.
  bool End(const absl::Status& status, std::optional<grpc::ByteBuffer> last = std::nullopt, HeldBytes held = {});
  // Ends the call with this message, or with the error if it cannot be serialized.
  void EndWith(const google::protobuf::Message& last, HeldBytes held = {});
  bool has_ended() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void OnIncomplete();
  // Stops waiting for the request. Returns false if it had arrived or the wait had been stopped.
  bool StopReading() ABSL_LOCKS_EXCLUDED(mutex_);
  void Advance() ABSL_LOCKS_EXCLUDED(mutex_);

  grpc::ByteBuffer request_;  // until OnReadDone

  mutable absl::Mutex mutex_;
  bool is_drained_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  Timers::Id request_timer_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<grpc::ByteBuffer> next_ ABSL_GUARDED_BY(mutex_);  // sent after the current message
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
  // Set under mutex_, and then constant.
  std::optional<absl::Status> end_;
  std::optional<grpc::ByteBuffer> last_;
  HeldBytes held_;
  grpc::ByteBuffer message_;  // being sent: owned by the thread that set is_writing_
};

// Answers a call that is refused, and owns itself.
class RefusedCall final : public grpc::ServerGenericBidiReactor {
 public:
  RefusedCall(grpc::CallbackServerContext* context, const absl::Status& status);
  void OnDone() override { delete this; }
};

// Returns the deadline of a call by SteadyNow; InfiniteFuture if it has none.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context);

}  // namespace voxserve
