#pragma once

// Call is the base class of the RPCs of all methods. It exists from the arrival of the RPC's headers, and it sends and
// receives serialized messages. RequestCall is a Call with one request and any number of response messages.
//
// Every method is served by gRPC's generic callback API. If a method were registered with gRPC instead, gRPC would show
// its calls only after their request has arrived, so a client could open any number of calls without being noticed.
//
// - Ownership: OpenCalls owns a call until gRPC has finished with the call (OnDone). The engine's tasks may keep the
//   call longer.
// - Threads: gRPC, the engine and the timers call a Call's functions from any thread. StartRead, StartWrite and Finish
//   may call back before they return, so a Call holds no lock while it calls them. Nothing blocks.
// - Errors: no exception leaves a call. If an allocation fails, the call ends with RESOURCE_EXHAUSTED, reason
//   OUT_OF_MEMORY.

#include <google/protobuf/message.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <limits>
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
#include "server/calls/call_environment.h"
#include "server/calls/open_calls.h"
#include "server/calls/timers.h"
#include "server/calls/trace_context.h"
#include "server/identity/authoriser.h"

namespace voxserve {

// A vehicle that has just had an answer has a use for its stream and its connection: it sends its next scan soon.
inline constexpr absl::Duration kRecentUse = absl::Seconds(5);

class Call : public grpc::ServerGenericBidiReactor, public std::enable_shared_from_this<Call> {
 public:
  Call(const CallEnvironment* environment, grpc::CallbackServerContext* context, CallKind kind);

  // Sets who makes the call. Called at most once, before OpenCalls gets the call. If it is not called, the caller is
  // known by its address (source()).
  void SetCaller(Caller caller) { caller_ = std::move(caller); }

  // Starts the call. The router calls this once, when OpenCalls has admitted the call.
  virtual void Start() = 0;
  // Tells the call that the server drains (shuts down): the call finishes and answers the work that it has accepted,
  // and accepts no more. Any thread may call this, also before Start.
  virtual void Drain() = 0;
  // Looks at the caller's certificate and token again. If they do not allow the call any more, ends it with
  // UNAUTHENTICATED or PERMISSION_DENIED: a stream after the answers to what it has accepted, a request at once. The
  // server calls this regularly, on one thread, also before Start.
  void LookAtIdentity();

  // Ends the call with this error, since it has been idle and another client needs its place. Any thread may call this,
  // also before Start.
  virtual void GiveWay(const absl::Status& why) = 0;

  // Returns true while a message that is not the last one waits to be sent, or is being sent.
  virtual bool is_updating() const { return false; }

  // Returns since when the call has been of no use, by SteadyNow: since its begin, until it has a request or a frame;
  // InfiniteFuture while these are unanswered, and a time ahead for a stream that had points a moment ago.
  absl::Time idle_since() const;

  CallKind kind() const { return kind_; }
  // The connection as gRPC names it: "ipv4:127.0.0.1:41234".
  const std::string& peer() const { return peer_; }
  // The address that logs and limits use: the peer, or the address that a trusted proxy has named for this connection.
  const std::string& source() const { return source_; }
  const TraceContext& trace() const { return trace_; }
  const Caller& caller() const { return caller_; }
  const std::string& client() const { return caller_.client; }  // the name under which the call's use is counted

  void OnDone() final;

 protected:
  // Runs the function. If an allocation fails in it (std::bad_alloc), counts the failure in the metrics and returns
  // false.
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

  // Tells OpenCalls that the call reads no more of its client's messages. If no other call of the same peer reads
  // either, calls ConnectionObserver::OnIdle.
  void EndReading();

  // Ends the call with this error, since its caller may not make it any more.
  virtual void Dismiss(const absl::Status& why) = 0;
  // Returns an error if the caller, whose token has changed to `now`, may not make this call any more.
  virtual absl::Status CheckStillAllowed(const Caller& now) const { return now.CheckMayDoAll(caller_); }

  // Called by OnDone, after all other callbacks and before OpenCalls releases the call.
  virtual void OnClosed() {}

  // BeginUse: the client has sent a request or points, and the call is in use. EndUse: all is answered, so a call in
  // use becomes idle in kRecentUse.
  void BeginUse();
  void EndUse();

  const CallEnvironment& environment() const { return *environment_; }
  grpc::CallbackServerContext* context() const { return context_; }
  absl::Time deadline() const { return deadline_; }
  absl::Time began() const { return began_; }  // when the call was made, by SteadyNow

  // Sets a timer that calls the member function on this call, unless the call has been destroyed by then. Returns 0 if
  // an allocation failed; the function is then never called.
  template <typename Self>
  Timers::Id SetTimer(absl::Time when, void (Self::*on_due)()) {
    Timers::Id id = 0;
    Guard([&] {
      id = environment_->timers->Set(when, [weak = weak_from_this(), on_due] {
        if (const auto self = weak.lock()) (static_cast<Self&>(*self).*on_due)();
      });
    });
    return id;
  }

  // Starts the timer for an answer of this many bytes, which is about to be handed to gRPC. If the client has not read
  // the answer in time (CallTimes), the call is cancelled and was_cut() becomes true.
  void StartAnswerTimer(int64_t bytes) ABSL_LOCKS_EXCLUDED(answer_mutex_);
  void StopAnswerTimer() ABSL_LOCKS_EXCLUDED(answer_mutex_);
  // Allows the current and all later answers CallTimes::drained_answer together, since the server drains.
  void ShortenAnswerTimer() ABSL_LOCKS_EXCLUDED(answer_mutex_);
  bool was_cut() const ABSL_LOCKS_EXCLUDED(answer_mutex_);

  // Reports a message of the client that has arrived (ConnectionObserver::OnMessage).
  void CountMessage(const grpc::ByteBuffer& message);
  // Reports a call that the client cancelled or left: OnCancelledCall, or OnUselessCall if no message had arrived. Only
  // the first report of a call counts, since gRPC tells of a client that is gone more than once, in any order. A
  // message that comes after the first report has not arrived in time. Nothing is reported if the call began 25 ms ago
  // or earlier. Such a call has taken a part of its client's share meanwhile, so OpenCalls already bounds the number of
  // such calls; and a vehicle whose deadline passes while it still sends its request has done nothing wrong.
  void CountEarlyEnd();
  bool has_message() const { return has_message_; }
  // Returns the status of a call that gRPC reports as cancelled: CANCELLED (ANSWER_UNREAD) if the answer timer cut the
  // call off, DEADLINE_EXCEEDED (DEADLINE_EXPIRED) if the deadline has passed, else CANCELLED (CANCELLED).
  absl::Status WhyCancelled() const;
  // Returns ToGrpcStatus of the status, or its code alone if there is no memory for more.
  grpc::Status GrpcStatusOf(const absl::Status& status);

 private:
  void SetAnswerTimer(absl::Time limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(answer_mutex_);
  void CutUnread() ABSL_LOCKS_EXCLUDED(answer_mutex_);
  void OnOutOfMemory() const;
  absl::Status CheckIdentity() const;

  const CallEnvironment* const environment_;
  grpc::CallbackServerContext* const context_;
  const CallKind kind_;
  const std::string peer_;
  const std::string source_;
  const TraceContext trace_;
  Caller caller_;
  const absl::Time deadline_;
  const absl::Time began_ = SteadyNow();
  static constexpr int64_t kInUse = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> idle_since_ns_{absl::ToUnixNanos(began_)};
  std::atomic<bool> was_used_{false};
  std::atomic<bool> has_message_{false};  // a message has arrived
  std::atomic<bool> ended_early_{false};  // CountEarlyEnd has reported it
  bool is_dismissed_ = false;             // only LookAtIdentity uses it

  mutable absl::Mutex answer_mutex_;
  Timers::Id answer_timer_ ABSL_GUARDED_BY(answer_mutex_) = 0;  // 0: no answer is being sent
  absl::Time answer_limit_ ABSL_GUARDED_BY(answer_mutex_);
  absl::Time answer_began_ ABSL_GUARDED_BY(answer_mutex_);
  std::optional<absl::Duration> drain_left_ ABSL_GUARDED_BY(answer_mutex_);  // time left for answers during a drain
  bool was_cut_ ABSL_GUARDED_BY(answer_mutex_) = false;

  absl::Mutex context_mutex_;  // held while a timer uses context_, which gRPC destroys after OnDone
  bool is_done_ ABSL_GUARDED_BY(context_mutex_) = false;
};

class RequestCall : public Call {
 public:
  using Call::Call;

  void Start() final;
  void Drain() override;
  void GiveWay(const absl::Status& why) override;
  void OnReadDone(bool ok) final;
  void OnWriteDone(bool ok) final;
  void OnCancel() final;

 protected:
  // Handles the request. Called at most once. If an allocation fails in it (std::bad_alloc), the call ends.
  virtual void OnRequest(const grpc::ByteBuffer& bytes) = 0;
  // Called if the client cancels, its deadline passes, or it may not make the call any more, after the request has
  // arrived and before the call has ended. The answer is of no use then.
  virtual void OnAbandoned(const absl::Status& why) { End(why); }
  // Called once, with the status that the client gets, when the call ends. OnClosed is called later.
  virtual void OnEnded(const absl::Status& /*status*/) {}

  // Sends a message that is not the last one. While one message is being sent, only the newest further message waits.
  // So a client that reads slowly misses messages, and gets the latest one.
  void Update(grpc::ByteBuffer message);
  // Ends the call: sends `last`, if there is one, and the status, without the names of models that the caller may not
  // see (Caller::Narrowed). A message of Update that still waits is dropped. Returns false, without effect, if the call
  // had ended before. `held` counts the answer's bytes until the call is destroyed, after the answer has been sent.
  bool End(const absl::Status& status, std::optional<grpc::ByteBuffer> last = std::nullopt, HeldBytes held = {});
  // Ends the call with OK and this message, or with the error of Serialize.
  void EndWith(const google::protobuf::Message& last, HeldBytes held = {});
  bool has_ended() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool is_updating() const override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void OnIncomplete();
  void Dismiss(const absl::Status& why) final;
  // Stops waiting for the request. Returns false if the request had arrived, or if the wait had been stopped before.
  bool StopReading() ABSL_LOCKS_EXCLUDED(mutex_);
  void Advance() ABSL_LOCKS_EXCLUDED(mutex_);

  grpc::ByteBuffer request_;  // until OnReadDone

  mutable absl::Mutex mutex_;
  // Set by Drain and GiveWay: the status of a call that has not been started yet.
  std::optional<absl::Status> refused_ ABSL_GUARDED_BY(mutex_);
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  Timers::Id request_timer_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<grpc::ByteBuffer> next_ ABSL_GUARDED_BY(mutex_);  // sent after the current message
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
  // End sets these three members under mutex_. They are constant afterwards.
  std::optional<absl::Status> end_;
  std::optional<grpc::ByteBuffer> last_;
  HeldBytes held_;
  grpc::ByteBuffer message_;  // the message that is being sent; owned by the thread that set is_writing_
};

// Answers a call that is refused with a status. The object deletes itself when gRPC has finished with the call.
class RefusedCall final : public grpc::ServerGenericBidiReactor {
 public:
  RefusedCall(grpc::CallbackServerContext* context, const absl::Status& status);
  void OnDone() override { delete this; }
};

// Returns the deadline of a call by SteadyNow; InfiniteFuture if it has none.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context);

}  // namespace voxserve
