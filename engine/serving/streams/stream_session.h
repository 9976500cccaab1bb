#pragma once

// StreamSession is one client's stream of frames; a frame is one point cloud, usually from a vehicle's sensor. It
// decides which frames run, which frames are replaced by newer ones, and in which order answers are sent. The server
// makes one for each stream, and calls ExpireDue at the time that NextExpiry returns.
//
// - LATEST (StreamPolicy::kLatest): at most one frame is in the engine (queued or running), and one frame waits here. A
//   newer frame supersedes the waiting frame, and also the frame in the engine if that has not started. Superseded
//   frames are answered ABORTED, reason SUPERSEDED. So a frame that starts is the newest frame. Answers are sent in the
//   order in which they become ready.
// - QUEUE (StreamPolicy::kQueue): every frame goes to the engine at once, and answers are sent in the order of the
//   frames. The caller must not push frames with a cloud while HasRoom() is false.
// - Answers: every accepted frame gets exactly one call of its `done`. The session calls the engine and `done` from one
//   thread at a time (a caller's or one of the engine's), and does not hold its lock: both may call the session.
// - Sweeps: a stream may accumulate sweeps, that is, run each frame together with the frames before it (SweepHistory).
//   ExpireDue makes the session forget its sweeps when all frames have been answered and no new frame has come for the
//   largest age of a sweep plus kMaxJitter, since no later frame could use the sweeps. This time is measured by the
//   session's clock, since the stamps of frames are the sensor's. The session also forgets its sweeps when the engine
//   answers a frame INVALID_ARGUMENT, since the sweep that caused the error would cause it again.
// - Memory: a frame for which no memory is left gets OutOfMemoryError. Only Push and Add throw std::bad_alloc; then
// they
//   have not accepted the frame and do not call `done`. `done` must not throw.
// - Threads: thread-safe, except that calls of Push and Add for frames with a cloud must not overlap. Nothing blocks.
// - Lifetime: use Create. While a frame is in the engine, its task keeps the session alive.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/error_reason.h"
#include "engine/base/steady_time.h"
#include "engine/serving/admission/drop_reason.h"
#include "engine/serving/admission/engine_observer.h"
#include "engine/serving/streams/sweep_history.h"
#include "engine/tensor/infer_task.h"
#include "engine/tensor/point_cloud.h"
#include "engine/tensor/sweep.h"

namespace voxserve {

// The first comment of this file describes both policies.
enum class StreamPolicy { kLatest, kQueue };

struct StreamFrame {
  // The frame's cloud, or an error with which the frame is answered in its turn (if the frame could not be decoded, or
  // must not be accepted).
  absl::StatusOr<PointCloud> cloud = PointCloud();
  std::optional<Pose> pose;                 // the sensor's pose; required if sweeps accumulate
  absl::Time stamp = absl::InfinitePast();  // when the sensor took the cloud; required if sweeps accumulate
  bool reset_sweeps = false;                // true: forget the sweeps before this frame
  bool is_accepted = false;                 // true: the frame began to come before StartDraining, so it still runs
  std::shared_ptr<const void> reservation;  // of memory, held while the cloud is kept as a sweep; may be null
  // Gets the answer. num_sweeps: the number of sweeps that ran together, this frame's included; 0 if no sweeps
  // accumulate, or if the frame got an error. Must not block.
  std::function<void(absl::StatusOr<InferResult> result, int num_sweeps)> done;
};

class StreamSession : public std::enable_shared_from_this<StreamSession> {
 public:
  static constexpr int kMaxQueuedFrames = 64;
  // A frame may arrive this much late, although the sensor takes frames at equal intervals.
  static constexpr absl::Duration kMaxJitter = absl::Seconds(1);

  struct Config {
    std::string model;
    std::string client;  // this and the next five fields are those of InferTask
    double client_share = 1;
    int64_t version = 0;
    bool return_scores = false;
    std::vector<std::string> tensors;
    DType tensor_dtype = DType::kFloat32;
    int priority = 0;  // InferTask::priority
    StreamPolicy policy = StreamPolicy::kLatest;
    // The longest time from Push to the answer. Infinite: the model's default_timeout, from when the engine gets the
    // frame.
    absl::Duration frame_timeout = absl::InfiniteDuration();
    int max_queued_frames = 4;                    // limit of QUEUE's unanswered frames; 1 to kMaxQueuedFrames
    std::optional<SweepHistory::Options> sweeps;  // none: each frame is a whole scan
    std::string age_feature;                      // InferTask::age_feature
    std::optional<FarthestPoints> sample;         // InferTask::sample of every frame
  };

  struct Options {
    // submit and cancel call Engine::Submit and Engine::Cancel. The engine must outlive the session.
    std::function<uint64_t(InferTask)> submit;
    std::function<bool(uint64_t ticket, DropReason reason)> cancel;
    EngineObserver* observer = nullptr;  // outlives the session; may be null
    std::function<absl::Time()> now = SteadyNow;
  };

  static std::shared_ptr<StreamSession> Create(Config config, Options options);

  // Accepts the next frame. The frame's `done` may be called before this returns.
  void Push(StreamFrame frame);
  // Add accepts the next frame as Push does, but calls neither the engine nor any `done`, so the caller may hold locks.
  // Then Advance makes these calls.
  void Add(StreamFrame frame);
  void Advance();

  // Returns true if the caller may push another frame.
  bool HasRoom() const;

  // Returns the bytes of the clouds that are kept for later frames.
  int64_t SweepBytes() const;
  // Forgets the sweeps: the next frame runs without those before it.
  void ForgetSweeps();

  // For LATEST: returns the bytes of the clouds of all unanswered frames. The next frame supersedes these frames, or
  // waits for the frame that already runs. For QUEUE: returns 0.
  int64_t BytesAheadOfNext() const;

  // Answers frames that come from now on with UNAVAILABLE, reason DRAINING. Frames that were accepted go on, and so
  // does a frame whose first part was (StreamFrame::is_accepted).
  void StartDraining();

  // Cancels the stream. Frames that have not ended get the error `why`, and so do frames that come later. A running
  // frame gets it when the engine has finished it, unless the frame failed with another error. Frames that have ended
  // keep their answers. Only the first call counts.
  void Cancel(const absl::Status& why);

  // Answers the frames that wait here and whose time is over: DEADLINE_EXCEEDED, reason DEADLINE_EXPIRED. Forgets the
  // sweeps if their time is over.
  void ExpireDue();
  // Returns the time at which ExpireDue must be called: the earliest deadline of a frame that waits here, or the time
  // when sweeps expire. Returns InfiniteFuture if there is no such time.
  absl::Time NextExpiry() const;

 private:
  struct Frame {
    enum class State { kWaiting, kSubmitted, kEnded };

    State state = State::kWaiting;
    InferTask task;  // moved out when the frame is submitted
    std::function<void(absl::StatusOr<InferResult>, int)> done;
    int num_sweeps = 0;
    int64_t cloud_bytes = 0;
    absl::Time arrived;
    absl::Time deadline = absl::InfiniteFuture();  // from frame_timeout alone
    absl::Time waiting_since;                      // when it, or the first frame that it replaced there, was submitted
    std::optional<uint64_t> ticket;                // set when Submit has returned
    bool is_superseded = false;                    // true: the frame must be cancelled in the engine
    bool is_cancel_tried = false;
    absl::StatusOr<InferResult> result = InferResult();  // set when the frame has ended
  };
  using FramePtr = std::shared_ptr<Frame>;
  // A call to make without the lock. To find a step allocates nothing, so a lack of memory loses no step.
  struct Step {
    void (StreamSession::*run)(const FramePtr& frame) = nullptr;  // nullptr: there is none
    FramePtr frame;
  };

  StreamSession(Config config, Options options);

  // Put the cloud into the frame's task: alone, or with the sweeps before it.
  absl::Status AddCloud(StreamFrame& pushed, Frame* frame);
  absl::Status AddSweep(StreamFrame& pushed, Frame* frame);
  // Restarts the time until the sweeps expire, if any are kept. While frames are unanswered, the server itself may
  // delay the next frames. So the time counts from the last answer.
  void KeepSweeps() ABSL_LOCKS_EXCLUDED(sweeps_mutex_);
  void ResetHistory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(sweeps_mutex_);
  void SupersedeOlder() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends a frame that the engine does not have, and calls OnDropped if the error is a drop reason.
  void End(Frame& frame, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndExpired() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndOutOfMemory(Frame& frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnResult(Frame& frame, absl::StatusOr<InferResult> result);

  Step NextStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  FramePtr NextToSubmit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  FramePtr NextToCancel() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  FramePtr NextToAnswer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SubmitFrame(const FramePtr& frame) ABSL_LOCKS_EXCLUDED(mutex_);
  void CancelFrame(const FramePtr& frame) ABSL_LOCKS_EXCLUDED(mutex_);
  void AnswerFrame(const FramePtr& frame) ABSL_LOCKS_EXCLUDED(mutex_);

  const Config config_;
  const Options options_;
  const absl::Status out_of_memory_ = OutOfMemoryError();  // made in advance, while there is memory

  mutable absl::Mutex sweeps_mutex_;  // never held together with mutex_
  std::optional<SweepHistory> history_ ABSL_GUARDED_BY(sweeps_mutex_);
  absl::Time sweeps_expiry_ ABSL_GUARDED_BY(sweeps_mutex_) = absl::InfiniteFuture();  // if no further sweep comes

  mutable absl::Mutex mutex_;
  std::deque<FramePtr> frames_ ABSL_GUARDED_BY(mutex_);  // frames whose `done` has not been called, by arrival
  std::optional<absl::Time> waiting_since_ ABSL_GUARDED_BY(mutex_);  // of a superseded frame, for its successor
  std::optional<absl::Status> cancelled_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_advancing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace voxserve
