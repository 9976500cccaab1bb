#pragma once

// ReopeningStream, private to the library, makes the StreamCalls that serve a Stream, one after the other (stream.h has
// the contract). Thread-safe.
//
// With StreamOptions::reopen_for, it keeps the encoded frames until they are answered; the call shares their bytes, so
// they are not copied. A thread of its own waits for the end of a call, asks Reopening whether and when to continue,
// and begins the next call with the frames that have no answer. Without reopen_for there is one call, and no thread.

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/api/channels.h"
#include "client/cpp/api/reopening.h"
#include "client/cpp/api/stream.h"
#include "client/cpp/api/stream_call.h"
#include "engine/base/steady_time.h"

namespace voxserve::client {

class ReopeningStream {
 public:
  struct Callbacks {
    StreamCall::Callbacks of_call = {};
    std::function<void(absl::Status)> on_reopen = {};
  };

  static absl::StatusOr<std::unique_ptr<ReopeningStream>> Open(std::shared_ptr<Channels> channels,
                                                               const StreamOptions& options, Callbacks callbacks);
  ~ReopeningStream();

  absl::Status Send(StreamCall::Frame frame) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends the next part of the frame, with its cloud as its only slice. Begins the frame if it is not the last one of
  // which a part was sent, or that one is complete.
  absl::Status SendPart(StreamCall::Frame part, bool is_last) ABSL_LOCKS_EXCLUDED(mutex_);
  void CloseSends() ABSL_LOCKS_EXCLUDED(mutex_);
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_);

  const Channels& channels() const { return *channels_; }
  bool has_sweeps() const { return options_.sweeps.has_value(); }

 private:
  // A frame that Send or SendPart accepted, until it has its result.
  struct Kept {
    uint64_t frame_id = 0;
    std::vector<StreamCall::Frame> parts;  // one of a whole frame
    absl::Time sent;
    bool is_in_call = false;  // false: it waits for the next call
    int num_breaks = 0;       // connections that broke while it was under way
  };

  ReopeningStream(std::shared_ptr<Channels> channels, const StreamOptions& options, Callbacks callbacks);

  // A frame of which a part is to come.
  struct Begun {
    uint64_t frame_id = 0;
    uint32_t num_parts = 0;
  };

  absl::Status SendNow(StreamCall::Frame frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status SendNextPart(StreamCall::Frame part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Begins a call, which first sends the kept frames.
  absl::Status Begin() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  StreamCall::Callbacks CallbacksOfCall();
  void TakeResult(StreamCall::Outcome outcome) ABSL_LOCKS_EXCLUDED(mutex_, callback_mutex_);

  // The thread runs this: it begins call after call until the stream ends.
  void Run() ABSL_LOCKS_EXCLUDED(mutex_, callback_mutex_);
  // Gives up frames that are not sent again. Returns the time until the next call, or nullopt if the stream ends with
  // `status`. Sets `status` to DEADLINE_EXCEEDED if the stream's timeout leaves no time for another call.
  std::optional<absl::Duration> PrepareNext(absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for `delay`. Returns false if the stream was cancelled meanwhile.
  bool Pause(absl::Duration delay) ABSL_LOCKS_EXCLUDED(mutex_, callback_mutex_);
  void Finish(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_, callback_mutex_);

  // Adds an error for the frame to failed_.
  void Fail(Kept kept, absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Under LATEST only the newest of the frames that wait for the next call is kept.
  void SupersedeWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Calls on_result for the frames in failed_. Send cannot do this, since it must not call back.
  void DeliverFailed() ABSL_LOCKS_EXCLUDED(mutex_, callback_mutex_);
  void Deliver(StreamCall::Outcome outcome) ABSL_LOCKS_EXCLUDED(callback_mutex_);

  const std::shared_ptr<Channels> channels_;
  const StreamOptions options_;
  const Callbacks callbacks_;
  const absl::Time deadline_;

  absl::Mutex callback_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // one callback at a time
  absl::Mutex mutex_;
  SteadyCondVar changed_;  // the stream was cancelled, or a frame failed
  Reopening reopening_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<StreamCall> call_ ABSL_GUARDED_BY(mutex_);  // null between two calls
  std::optional<absl::Status> ended_call_ ABSL_GUARDED_BY(mutex_);
  bool is_going_away_ ABSL_GUARDED_BY(mutex_) = false;
  bool sends_are_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Begun> begun_ ABSL_GUARDED_BY(mutex_);
  std::deque<uint64_t> ids_in_parts_ ABSL_GUARDED_BY(mutex_);        // of the last frames in parts
  std::vector<Kept> kept_ ABSL_GUARDED_BY(mutex_);                   // in the order of Send
  std::vector<StreamCall::Outcome> failed_ ABSL_GUARDED_BY(mutex_);  // still to be delivered
  std::thread thread_;                                               // only with reopen_for
};

}  // namespace voxserve::client
