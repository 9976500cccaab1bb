#pragma once

// StreamCall is a call whose client sends any number of requests and gets an answer for each of them. It holds the
// operations in progress; InferStream and ModelStreamInfer say what a message means.
//
// - One message at a time is sent in each direction. A stream reads no more while its client leaves too many answers
//   unread, or while its kind has no room for a request.
// - It ends when every accepted request has been answered: with OK after the client has half-closed, with an error if
//   the client fell silent, the kind says so (Fail), or the server drains. If the client is gone, its requests are
//   cancelled and their answers dropped.
// - Ownership: OpenCalls has the call until OnDone, gRPC's last call; every request keeps it until it is answered.
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

  // Handles a message, which may be cleared early. One at a time. A failed allocation ends the stream.
  virtual void OnMessage(grpc::ByteBuffer* message) = 0;
  // Cancels the requests that are not answered: no client waits for them.
  virtual void CancelRequests(const absl::Status& why) = 0;
  // Returns whether the next message may be read.
  virtual bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  // Returns the time at which a client that waits for nothing will have been silent for too long, and the error for it.
  virtual absl::Time SilenceEnds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  virtual absl::Status SilenceError() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  // Returns the time at which something that the kind keeps expires. ExpireDue is called then, without the lock.
  virtual absl::Time NextExpiry() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return absl::InfiniteFuture(); }
  virtual void ExpireDue() {}
  // Called with the error of Fail, before any client can see it.
  virtual void OnFailed(const absl::Status& /*status*/) {}
  // Called last.
  virtual void OnStreamClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {}

  // Ends the stream when the requests that it took are answered. The first end counts, in the metric before any client
  // can see it.
  void Fail(const absl::Status& whole_status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the stream for lack of memory. If even the error cannot be made, the stream ends with its earlier status.
  void EndOutOfMemory() ABSL_LOCKS_EXCLUDED(mutex_);
  // Keeps an answer to be sent, unless the client is gone. Returns false if there was no memory, which ends the stream.
  // The message of `outgoing` may be invalid: then nothing is sent.
  bool KeepAnswer(Outgoing outgoing) ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells that a request that num_unanswered_ counts has been answered.
  void EndRequest() ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts every operation that can be started, until there is none.
  void Advance() ABSL_LOCKS_EXCLUDED(mutex_);

  mutable absl::Mutex mutex_;
  std::deque<Outgoing> unsent_ ABSL_GUARDED_BY(mutex_);
  int64_t num_unanswered_ ABSL_GUARDED_BY(mutex_) = 0;  // requests
  absl::Time last_sign_ ABSL_GUARDED_BY(mutex_);        // when a message was last received or sent
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
  // Set and changed under mutex_ until is_finished_ is set; constant afterwards.
  std::optional<absl::Status> end_;

 private:
  void OnClosed() final;
  bool StartNext() ABSL_LOCKS_EXCLUDED(mutex_);
  bool MayRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns SilenceEnds; InfiniteFuture while a request is unanswered, or after the client has ended its side.
  absl::Time AllowedSilenceEnds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sets the timer for the next expiry or the end of the allowed silence, whichever is first.
  void SetTimers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnTimer() ABSL_LOCKS_EXCLUDED(mutex_);
  // Drops unsent answers, since the client is gone.
  void DropAnswers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Used only by the thread that handles a message that was read.
  grpc::ByteBuffer request_;
  bool has_message_ = false;  // a message has arrived

  Outgoing sending_;  // being sent: owned by the thread that set is_writing_

  Timers::Id timer_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time timer_time_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // when timer_ is due
  int num_starting_reads_ ABSL_GUARDED_BY(mutex_) = 0;  // threads that are about to call StartRead, or in it
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_read_all_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_broken_ ABSL_GUARDED_BY(mutex_) = false;  // nothing can be sent any more
};

}  // namespace voxserve
