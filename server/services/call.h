#pragma once

// Call is one RPC of any method, from its headers on; it sends and receives bytes. RequestCall is a call with one
// request: a plain one, which gets one message, or one that gets several.
//
// Every method is served by gRPC's generic callback API, since a call of a registered method is invisible until its
// request is there: a client could open any number.
//
// - Ownership: OpenCalls owns a call until gRPC is done with it (OnDone). The engine's tasks may keep it longer.
// - Threads: gRPC, the engine and the timers call in from any thread. StartRead, StartWrite and Finish may call back
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
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/identity/authoriser.h"
#include "server/services/byte_limits.h"
#include "server/services/open_calls.h"
#include "server/services/service_parts.h"
#include "server/services/timers.h"

namespace voxserve {

class Call : public grpc::ServerGenericBidiReactor, public std::enable_shared_from_this<Call> {
 public:
  Call(const ServiceParts* parts, grpc::CallbackServerContext* context, CallKind kind);

  // Who makes the call: set once, before OpenCalls has it. Without it the client is the peer's address.
  void SetCaller(Caller caller) { caller_ = std::move(caller); }

  // OpenCalls has the call now.
  virtual void Start() = 0;
  // The server drains: what was accepted is answered, and nothing else begins.
  virtual void Drain() = 0;

  CallKind kind() const { return kind_; }
  const std::string& peer() const { return peer_; }  // gRPC's name of the connection
  const Caller& caller() const { return caller_; }
  const std::string& client() const { return caller_.client; }  // whose share the call takes

  void OnDone() final;

 protected:
  // Runs the function. False where an allocation failed in it; that is counted.
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

  // The call takes no more of what its client sends.
  void EndReading();

  // The last thing that happens to a call, before OpenCalls lets go of it.
  virtual void OnClosed() {}

  const ServiceParts& parts() const { return *parts_; }
  grpc::CallbackServerContext* context() const { return context_; }
  absl::Time deadline() const { return deadline_; }
  absl::Time began() const { return began_; }

  // Calls the function with this call, unless it is gone by then. 0 where an allocation failed: it is never called
  // then.
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

  // An answer of so many bytes is handed to gRPC now. Where the client has not read it in time, the call is cut off.
  void StartAnswerTimer(int64_t bytes) ABSL_LOCKS_EXCLUDED(answer_mutex_);
  void StopAnswerTimer() ABSL_LOCKS_EXCLUDED(answer_mutex_);
  // The server drains: the answer that is on its way and those after it get less time, all together.
  void ShortenAnswerTimer() ABSL_LOCKS_EXCLUDED(answer_mutex_);
  bool was_cut() const ABSL_LOCKS_EXCLUDED(answer_mutex_);

  // The client has cancelled, or is gone; or the call ended without its request. Either counts for the client where the
  // call has just begun. Later the call has taken one of the client's share for so long that this bounds how many there
  // are, and a vehicle whose deadline passes while it still sends has done nothing wrong.
  void CountCancel() const;
  void CountUseless() const;
  // Why the call is over that gRPC says is cancelled.
  absl::Status WhyCancelled() const;

 private:
  void SetAnswerTimer(absl::Time limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(answer_mutex_);
  void CutUnread() ABSL_LOCKS_EXCLUDED(answer_mutex_);
  void OnOutOfMemory() const;

  const ServiceParts* const parts_;
  grpc::CallbackServerContext* const context_;
  const CallKind kind_;
  const std::string peer_;
  Caller caller_;
  const absl::Time deadline_;
  const absl::Time began_ = absl::Now();

  mutable absl::Mutex answer_mutex_;
  Timers::Id answer_timer_ ABSL_GUARDED_BY(answer_mutex_) = 0;  // 0: no answer is on its way
  absl::Time answer_limit_ ABSL_GUARDED_BY(answer_mutex_);
  absl::Time answer_began_ ABSL_GUARDED_BY(answer_mutex_);
  std::optional<absl::Duration> drain_left_ ABSL_GUARDED_BY(answer_mutex_);  // for answers, once the server drains
  bool was_cut_ ABSL_GUARDED_BY(answer_mutex_) = false;

  absl::Mutex context_mutex_;  // gRPC's context ends with OnDone
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
  // The request, once. An exception of an allocation ends the call.
  virtual void OnRequest(const grpc::ByteBuffer& bytes) = 0;
  // The request had come, and the client cancelled since, or its deadline passed: nobody waits for the answer.
  virtual void OnAbandoned(const absl::Status& why) { End(why); }
  // The end that was told to gRPC; before OnClosed.
  virtual void OnEnded(const absl::Status& /*status*/) {}

  // Sends a message before the last one. While another is on its way the newest waits, and replaces the one that waits:
  // a client that reads slowly gets the latest alone.
  void Update(grpc::ByteBuffer message);
  // Sends the last message, if there is one, and the status. The first end counts; false: there was one. `held` is
  // given back when the answer has left.
  bool End(const absl::Status& status, std::optional<grpc::ByteBuffer> last = std::nullopt, HeldBytes held = {});
  // Ends the call with this message, or with why it cannot be sent.
  void EndWith(const google::protobuf::Message& last, HeldBytes held = {});
  bool has_ended() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void OnIncomplete();
  // True where the request had not come until now, and will not be taken any more.
  bool StopReading() ABSL_LOCKS_EXCLUDED(mutex_);
  void Advance() ABSL_LOCKS_EXCLUDED(mutex_);

  grpc::ByteBuffer request_;  // until OnReadDone

  mutable absl::Mutex mutex_;
  bool is_drained_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  Timers::Id request_timer_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<grpc::ByteBuffer> next_ ABSL_GUARDED_BY(mutex_);  // waits for the message on its way
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
  // Set under mutex_, and then constant.
  std::optional<absl::Status> end_;
  std::optional<grpc::ByteBuffer> last_;
  HeldBytes held_;
  grpc::ByteBuffer message_;  // on its way: whoever set is_writing_ owns it
};

// Answers a call that is not let in, and owns itself.
class RefusedCall final : public grpc::ServerGenericBidiReactor {
 public:
  RefusedCall(grpc::CallbackServerContext* context, const absl::Status& status);
  void OnDone() override { delete this; }
};

// Returns when gRPC gives a call up.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context);

}  // namespace voxserve
