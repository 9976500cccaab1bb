#pragma once

// StreamCall, private to the library, is one InferStream call of gRPC, which serves a Stream (stream.h has the
// contract). It passes answers on as the server sent them, for any type of result. Thread-safe.
//
// Send starts writes at any time, also while no other operation is outstanding, when gRPC could otherwise call OnDone.
// So the call has a hold (gRPC's AddHold) until it writes no more. gRPC never runs a reaction (OnWriteDone, OnReadDone,
// OnDone) within a call of a Start... method, so these methods are called with mutex_ held.

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/api/channels.h"
#include "client/cpp/api/frame_encoding.h"
#include "client/cpp/api/response.h"
#include "client/cpp/api/stream.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

class StreamCall final : private grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // An encoded frame, or one part of a frame (frame_encoding.h).
  struct Frame {
    uint64_t frame_id = 0;
    uint64_t num_points = 0;  // of this part
    FrameOptions options;
    std::vector<grpc::Slice> parts;
    FrameForm form = FrameForm::kWhole;
    uint32_t index = 0;  // of a frame in parts: 0 begins the frame
  };

  // How a frame left the call.
  enum class Fate {
    kAnswered,  // the server answered, or a newer frame superseded it in the client
    kUnderWay,  // the frame was sent, and the call ended without its answer
    kUnsent,    // the call ended before it was sent
  };

  // Outcome and Callbacks are like FrameOutcomeOf and StreamCallbacksOf, but with the answer as the server sent it,
  // unchecked.
  struct Outcome {
    uint64_t frame_id = 0;
    absl::StatusOr<v1::InferResponse> response;
    Asked asked = {};  // for CheckResponse; set with an answer
    absl::Time sent = {};
    int num_sweeps = 0;
    Fate fate = Fate::kAnswered;
  };
  struct Callbacks {
    std::function<void(Outcome)> on_result = {};
    std::function<void()> on_going_away = {};
    std::function<void(absl::Status)> on_end = {};
  };

  static constexpr absl::string_view kDraining = "DRAINING";  // a server's reason

  // Opens a call. Returns the errors of StreamOptions::Validate. frames: sent before those of Send; the number of
  // frames may exceed max_unsent_frames, but is at most one under LATEST.
  static absl::StatusOr<std::unique_ptr<StreamCall>> Open(std::shared_ptr<Channels> channels,
                                                          const StreamOptions& options, Callbacks callbacks,
                                                          std::vector<Frame> frames = {});
  ~StreamCall() override;

  // These return the errors of Send. ReopeningStream uses them, too.
  static absl::Status CheckFrame(const StreamOptions& options, const Frame& frame);
  static absl::Status EndedError();
  static absl::Status DuplicateError(uint64_t frame_id);
  static absl::Status TooManyUnsentError(size_t num_unsent);
  static absl::Status SupersededError();

  // Sends a frame or a part. The parts of a frame come one after the other, by index; a frame that is not complete when
  // the next one begins gets the server's error. A part of a frame that has its result is dropped, and OK is returned.
  absl::Status Send(Frame frame) ABSL_LOCKS_EXCLUDED(mutex_);
  void CloseSends() ABSL_LOCKS_EXCLUDED(mutex_);
  void Cancel() { context_.TryCancel(); }

 private:
  struct Awaited {
    uint64_t num_points = 0;
    absl::Time sent;
  };

  StreamCall(std::shared_ptr<Channels> channels, const StreamOptions& options, Callbacks callbacks,
             std::vector<Frame> frames);
  void Start() ABSL_LOCKS_EXCLUDED(mutex_);

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone(const grpc::Status& status) override ABSL_LOCKS_EXCLUDED(mutex_);

  // Makes the frame supersede the one that waits to be sent, if there is one.
  void SupersedeUnsent(Frame& frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Write(std::vector<grpc::Slice> parts) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Releases the hold. Nothing is written afterwards; unsent frames stay in awaited_ until OnDone.
  void EndWrites() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeResult(v1::FrameResult* result) ABSL_LOCKS_EXCLUDED(mutex_, callback_mutex_);
  // Ends the call, because its answers cannot be what the server meant.
  void GiveUp(absl::string_view what) ABSL_LOCKS_EXCLUDED(mutex_);
  void TakeGoingAway() ABSL_LOCKS_EXCLUDED(mutex_, callback_mutex_);
  // Reports the frames that Send superseded, since Send itself must not call back.
  void DeliverSuperseded() ABSL_LOCKS_EXCLUDED(mutex_, callback_mutex_);
  void Deliver(Outcome outcome) ABSL_LOCKS_EXCLUDED(callback_mutex_);

  const std::shared_ptr<Channels> channels_;
  const std::shared_ptr<grpc::Channel> channel_;
  const StreamOptions options_;
  const Callbacks callbacks_;
  CallContext context_;
  grpc::ByteBuffer answer_;   // of the current read
  grpc::ByteBuffer message_;  // of the current write

  absl::Mutex callback_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // one callback at a time
  absl::Mutex mutex_;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool sends_are_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_hold_ ABSL_GUARDED_BY(mutex_) = false;  // true while more may be written
  bool is_going_away_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_done_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Frame> unsent_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> superseded_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Awaited> awaited_ ABSL_GUARDED_BY(mutex_);  // by frame_id; includes unsent frames
  absl::Status violation_ ABSL_GUARDED_BY(mutex_);                          // why the client itself ended the stream
};

}  // namespace voxserve::client
