#pragma once

// StreamCall is a call whose client sends any number of requests and gets an answer for each of them. It starts
// gRPC's reads and writes and keeps their state. The calls of InferStream and ModelStreamInfer are its subclasses,
// which interpret the messages.
//
// - One message at a time is sent in each direction. The call reads no further message while its client leaves too many
//   answers unread, or while the subclass has no room for a request (HasRoom).
// - The call ends when there is a reason and every accepted request has been answered. It ends with OK after the client
//   has half-closed, and with an error if the client fell silent, the subclass calls Fail, or the server drains. If the
//   client is gone, its requests are cancelled and their answers dropped.
// - Ownership: OpenCalls owns the call until OnDone, gRPC's last callback. Every request also keeps the call until it
//   is answered.
// - gRPC may call back within any Start... or Finish. So these are called without the lock, by the thread that set the
//   flag for that operation.

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
#include "server/calls/service_parts.h"
#include "server/calls/timers.h"

namespace voxserve {

class StreamCall : public Call {
 public:
  StreamCall(const ServiceParts* parts, grpc::CallbackServerContext* context)
      : Call(parts, context, CallKind::kStream) {}

  void Start() final ABSL_LOCKS_EXCLUDED(mutex_);
  void OnReadDone(bool ok) final ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWriteDone(bool ok) final ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCancel() final ABSL_LOCKS_EXCLUDED(mutex_);

 protected:
  struct Outgoing {
    grpc::ByteBuffer message;
    HeldBytes held;
  };

  // Handles a message. Calls come one at a time. The method may clear the message early, to free its memory. An
  // exception for a failed allocation ends the stream.
  virtual void OnMessage(grpc::ByteBuffer* message) = 0;
  // Cancels the requests that are not answered yet, because no client waits for the answers any more.
  virtual void CancelRequests(const absl::Status& why) = 0;
  // Returns whether the next message may be read.
  virtual bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  // Return the time until which a client that waits for no answer may be silent, and the error that ends the stream
  // then.
  virtual absl::Time SilenceEnds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  virtual absl::Status SilenceError() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  // Returns the time at which the next thing that the subclass keeps expires. ExpireDue is called at that time, without
  // the lock.
  virtual absl::Time NextExpiry() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return absl::InfiniteFuture(); }
  virtual void ExpireDue() {}
  // Called with the error given to Fail, before the client can see the error.
  virtual void OnFailed(const absl::Status& /*status*/) {}
  // Called once, after gRPC has finished with the call.
  virtual void OnStreamClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {}

  // Ends the stream with this error, narrowed to what the client may see, once all accepted requests are answered. Does
  // nothing if the stream has an end already. The metrics count the end before the client can see it.
  void Fail(const absl::Status& whole_status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the stream with OutOfMemoryError, or does not end it if there is no memory even for that error.
  void EndOutOfMemory() ABSL_LOCKS_EXCLUDED(mutex_);
  // Queues an answer to be sent. Drops the answer if the client is gone, or if outgoing.message has no content
  // (grpc::ByteBuffer::Valid is false). Returns false, and ends the stream, if there is no memory for the queue.
  bool KeepAnswer(Outgoing outgoing) ABSL_LOCKS_EXCLUDED(mutex_);
  // Counts one request less in num_unanswered_, because it has been answered.
  void EndRequest() ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts every operation that may start now: the next write, the next read, or the end of the call.
  void Advance() ABSL_LOCKS_EXCLUDED(mutex_);

  mutable absl::Mutex mutex_;
  std::deque<Outgoing> unsent_ ABSL_GUARDED_BY(mutex_);
  int64_t num_unanswered_ ABSL_GUARDED_BY(mutex_) = 0;  // requests
  absl::Time last_sign_ ABSL_GUARDED_BY(mutex_);        // when a message was last received or sent
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
  // The status that the call ends with; no value: no reason to end yet. Changed under mutex_ until is_finished_ is set,
  // and constant afterwards.
  std::optional<absl::Status> end_;

 private:
  void OnClosed() final;
  bool StartNext() ABSL_LOCKS_EXCLUDED(mutex_);
  bool MayRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns SilenceEnds, or InfiniteFuture while an answer is due or being sent, and once the stream has an end.
  absl::Time AllowedSilenceEnds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sets the timer for the next expiry or the end of the allowed silence, whichever is first.
  void SetTimers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnTimer() ABSL_LOCKS_EXCLUDED(mutex_);
  // Drops unsent answers, since the client is gone.
  void DropAnswers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Used only by the thread that handles a message that was read.
  grpc::ByteBuffer request_;
  bool has_message_ = false;  // a message has arrived

  Outgoing sending_;  // the answer that is being sent; owned by the thread that set is_writing_

  Timers::Id timer_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time timer_time_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // when timer_ is due
  int num_starting_reads_ ABSL_GUARDED_BY(mutex_) = 0;  // threads that are about to call StartRead, or in it
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_read_all_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_broken_ ABSL_GUARDED_BY(mutex_) = false;  // nothing can be sent any more
};

}  // namespace voxserve
