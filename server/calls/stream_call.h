#pragma once

// StreamCall is a call whose client sends any number of requests and gets an answer for each of them. It starts and
// ends gRPC's operations: reads, writes and Finish. Its subclasses, one for InferStream and one for ModelStreamInfer,
// handle the messages.
//
// - Flow: at most one read and one write are in progress. The stream reads no further request while too many answers
//   wait to be sent, because the client reads them slowly, or while the subclass has no room (HasRoom).
// - End: the stream ends with OK after the client has half-closed. It ends with an error if the client has been silent
//   for too long, the subclass calls Fail, or the server drains. In each case it first answers every request that it
//   has accepted. If the client is gone, the requests are cancelled and their answers dropped.
// - Ownership: OpenCalls owns the call until OnDone, gRPC's last callback. Every request also keeps the call alive
//   until the request has been answered.
// - Locks: gRPC may call back from within StartRead, StartWrite and Finish. So these are called without mutex_. A
//   thread first sets the operation's flag (is_reading_, is_writing_, is_finished_) under mutex_, and then starts it
//   alone.

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/calls/byte_limits.h"
#include "server/calls/call.h"
#include "server/calls/call_environment.h"
#include "server/calls/timers.h"

namespace voxserve {

class StreamCall : public Call {
 public:
  StreamCall(const CallEnvironment* environment, grpc::CallbackServerContext* context)
      : Call(environment, context, CallKind::kStream) {}

  void Start() final ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the stream as Fail does.
  void GiveWay(const absl::Status& why) final { Fail(why); }
  void OnReadDone(bool ok) final ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWriteDone(bool ok) final ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCancel() final ABSL_LOCKS_EXCLUDED(mutex_);

 protected:
  // An answer, and the hold on its bytes, which lasts until the answer has been sent.
  struct Outgoing {
    grpc::ByteBuffer message;
    HeldBytes held;
  };

  // Handles a message from the client. It is called for one message at a time. It may clear *message early, to free the
  // memory. If an allocation fails in it (std::bad_alloc), the stream ends with OUT_OF_MEMORY.
  virtual void OnMessage(grpc::ByteBuffer* message) = 0;
  // Cancels the requests that are not answered yet, since the client is gone.
  virtual void CancelRequests(const absl::Status& why) = 0;
  // Returns true if the subclass has room for the next message, so that it may be read.
  virtual bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  // SilenceEnds returns the time at which a client that waits for no answer has been silent for too long. SilenceError
  // returns the error with which the stream then ends.
  virtual absl::Time SilenceEnds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  virtual absl::Status SilenceError() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  // Returns the next time at which something that the subclass keeps expires, such as a waiting frame. At that time
  // ExpireDue is called, without mutex_.
  virtual absl::Time NextExpiry() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return absl::InfiniteFuture(); }
  virtual void ExpireDue() {}
  // Called when the client has sent its last message (it has half-closed, or is gone).
  virtual void OnReadAll() {}
  // Called with the error when Fail has set it as the stream's end.
  virtual void OnFailed(const absl::Status& /*status*/) {}
  // Called after all other callbacks, before OpenCalls releases the call.
  virtual void OnStreamClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {}

  // Sets the error with which the stream ends as soon as all accepted requests have been answered. Does nothing if the
  // stream's end has been set before. The client gets the status without the names of models that it may not see
  // (Caller::Narrowed). A stream that ends for silence, or gives way, is counted in the metric before the client can
  // see its end.
  void Fail(const absl::Status& whole_status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the stream with RESOURCE_EXHAUSTED, reason OUT_OF_MEMORY. If there is no memory for this error either, the
  // stream's end stays as it was.
  void EndOutOfMemory() ABSL_LOCKS_EXCLUDED(mutex_);
  // Queues an answer for sending. Drops the answer, and returns true, if the client is gone or if outgoing.message is
  // not Valid() (an empty ByteBuffer). Returns false if there was no memory to queue the answer; the stream then ends.
  bool KeepAnswer(Outgoing outgoing) ABSL_LOCKS_EXCLUDED(mutex_);
  // Adds one accepted request to num_unanswered_. has_points: it is what the stream is for, so the stream is in use.
  void BeginRequest(bool has_points) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Dismiss(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mutex_) { Fail(why); }
  // Subtracts one request from num_unanswered_, since it has been answered.
  void EndRequest() ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts every operation that can start now, until there is none left.
  void Advance() ABSL_LOCKS_EXCLUDED(mutex_);

  mutable absl::Mutex mutex_;
  std::deque<Outgoing> unsent_ ABSL_GUARDED_BY(mutex_);
  int64_t num_unanswered_ ABSL_GUARDED_BY(mutex_) = 0;  // accepted requests without an answer
  // Requests that have come only in part so far. They get answers too, but do not count as use of the stream. The
  // subclass bounds how long they may take.
  int64_t num_collecting_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time last_sign_ ABSL_GUARDED_BY(mutex_);  // when a message was last received or sent
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
  // The status with which the stream ends; nullopt while the stream goes on. Set and changed under mutex_ until
  // is_finished_ is set; constant afterwards.
  std::optional<absl::Status> end_;

 private:
  void OnClosed() final;
  bool StartNext() ABSL_LOCKS_EXCLUDED(mutex_);
  bool MayRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasUnanswered() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return num_unanswered_ > 0 || num_collecting_ > 0;
  }
  // Returns SilenceEnds, or InfiniteFuture while a request is unanswered or an answer unsent, and after the stream's
  // end has been set.
  absl::Time AllowedSilenceEnds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sets the timer for the next expiry or the end of the allowed silence, whichever is first.
  void SetTimers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnTimer() ABSL_LOCKS_EXCLUDED(mutex_);
  // Drops unsent answers, since the client is gone.
  void DropAnswers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  grpc::ByteBuffer request_;  // used only by the thread that handles the message just read

  Outgoing sending_;  // the answer that is being sent; owned by the thread that set is_writing_

  Timers::Id timer_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time timer_time_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // when timer_ is due
  int num_starting_reads_ ABSL_GUARDED_BY(mutex_) = 0;  // threads that are about to call StartRead, or are in it
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_handling_ ABSL_GUARDED_BY(mutex_) = false;  // a message has come, and OnMessage handles it
  bool has_read_all_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_broken_ ABSL_GUARDED_BY(mutex_) = false;  // the client is gone: nothing can be sent any more
};

}  // namespace voxserve
