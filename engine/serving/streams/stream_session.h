#pragma once

// StreamSession is one vehicle's stream of frames. It decides which frames run, which ones newer frames replace, and in
// which order answers are sent.
//
// - LATEST: at most one frame is in the engine (queued or running) and one waits here. A newer frame supersedes the
//   waiting frame, and the engine's too if that has not started: they are answered ABORTED, reason SUPERSEDED. So a
//   frame that starts is the newest there is. Answers are sent in the order in which they become ready.
// - QUEUE: every frame goes to the engine at once; answers are sent in the order of the frames. The caller must not
//   push frames while HasRoom() is false.
// - Answers: every frame gets exactly one call of its `done`, whatever happens. The session calls the engine and `done`
//   from one thread at a time (any caller's or engine thread), and without its lock: both may call back into it.
// - Sweeps: only the session refers to its accumulated sweeps. It forgets them when it has answered all frames and gets
//   no new one for the largest age of a sweep plus kMaxJitter, since no later frame could use them. (By its own clock:
//   stamps come from the sensor, and none arrive meanwhile.)
// - Memory: a frame for which no memory is left gets OutOfMemoryError. Only Push throws std::bad_alloc, if it has not
//   accepted the frame; `done` is not called then. `done` must not throw.
// - Threads: thread-safe, except that calls of Push must not overlap. Nothing blocks.
// - Lifetime: made with Create. The functions that the engine holds keep the session alive. It knows no gRPC.
// keeps the session alive. Knows no gRPC.

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

enum class StreamPolicy { kLatest, kQueue };

struct StreamFrame {
  // If it is an error (a frame that did not decode, or must not be accepted), the frame is answered with it in its
  // turn.
  absl::StatusOr<PointCloud> cloud = PointCloud();
  std::optional<Pose> pose;                 // required if sweeps accumulate, as is the stamp
  absl::Time stamp = absl::InfinitePast();  // when the sensor took the cloud; InfinitePast: unknown
  bool reset_sweeps = false;                // forget the sweeps before this frame
  std::shared_ptr<const void> reservation;  // of memory, for as long as the cloud is kept as a sweep; may be null
  // num_sweeps: the sweeps that were run together, this one included; 0 if none accumulate or the frame did not run.
  // Must not block.
  std::function<void(absl::StatusOr<InferResult> result, int num_sweeps)> done;
};

class StreamSession : public std::enable_shared_from_this<StreamSession> {
 public:
  static constexpr int kMaxQueuedFrames = 64;
  // Allowance for frames that arrive late, though the sensor takes them at equal intervals.
  static constexpr absl::Duration kMaxJitter = absl::Seconds(1);

  struct Config {
    std::string model;
    std::string client;  // as in InferTask, as are the next four
    double client_share = 1;
    int64_t version = 0;
    bool return_scores = false;
    std::vector<std::string> tensors;
    DType tensor_dtype = DType::kFloat32;
    int priority = 0;
    StreamPolicy policy = StreamPolicy::kLatest;
    absl::Duration frame_timeout = absl::InfiniteDuration();  // from Push to the answer; infinite: the model's own
    int max_queued_frames = 4;                    // limit of QUEUE's unanswered frames; 1 to kMaxQueuedFrames
    std::optional<SweepHistory::Options> sweeps;  // none: each frame is a whole scan
    std::string age_feature;                      // as in InferTask
    std::optional<FarthestPoints> sample;         // of every frame; as in InferTask
  };

  struct Options {
    // submit and cancel are Engine::Submit and Engine::Cancel, which must outlive the session.
    std::function<uint64_t(InferTask)> submit;
    std::function<bool(uint64_t ticket, DropReason reason)> cancel;
    EngineObserver* observer = nullptr;  // outlives the session; may be null
    std::function<absl::Time()> now = SteadyNow;
  };

  static std::shared_ptr<StreamSession> Create(Config config, Options options);

  // Takes the next frame. `done` may be called before this returns.
  void Push(StreamFrame frame);

  // Returns true if the caller may push another frame.
  bool HasRoom() const;

  // Returns the bytes of the clouds that are kept for later frames.
  int64_t SweepBytes() const;
  // Forgets the sweeps: the next frame runs without those before it.
  void ForgetSweeps();

  // For LATEST: returns the bytes of the clouds of unanswered frames. The next frame supersedes them or, if one already
  // runs, waits for it. For QUEUE: 0.
  int64_t BytesAheadOfNext() const;

  // Answers frames that come from now on with UNAVAILABLE, reason DRAINING. Frames that were accepted go on.
  void StartDraining();

  // Cancels the stream: unanswered frames get this error (a running frame when the engine has finished it), and so do
  // frames that come later. Only the first call counts.
  void Cancel(const absl::Status& why);

  // Answers frames that wait here and whose time is over: DEADLINE_EXCEEDED, reason DEADLINE_EXPIRED. Forgets the
  // sweeps of a stream that has fallen silent.
  void ExpireDue();
  // Returns the time at which ExpireDue has something to do; InfiniteFuture if nothing waits or is kept here, or
  // nothing has a limit.
  absl::Time NextExpiry() const;

 private:
  struct Frame {
    enum class State { kWaiting, kSubmitted, kEnded };

    State state = State::kWaiting;
    InferTask task;  // moved out when it is submitted
    std::function<void(absl::StatusOr<InferResult>, int)> done;
    int num_sweeps = 0;
    int64_t cloud_bytes = 0;
    absl::Time arrived;
    absl::Time deadline = absl::InfiniteFuture();  // without the model's default timeout
    absl::Time waiting_since;                      // of the oldest of it and the frames that it replaced in the queue
    std::optional<uint64_t> ticket;                // set when Submit has returned
    bool is_superseded = false;                    // then it is to be cancelled
    bool is_cancel_tried = false;
    absl::StatusOr<InferResult> result = InferResult();  // set when it has ended
  };
  using FramePtr = std::shared_ptr<Frame>;
  // A call to make without the lock. Finding a step allocates nothing, so that no step is lost.
  struct Step {
    void (StreamSession::*run)(const FramePtr& frame) = nullptr;  // nullptr: there is none
    FramePtr frame;
  };

  StreamSession(Config config, Options options);

  // Put the cloud into the frame's task: alone, or with the sweeps before it.
  absl::Status AddCloud(StreamFrame& pushed, Frame* frame);
  absl::Status AddSweep(StreamFrame& pushed, Frame* frame);
  // Restarts the time until the sweeps expire, if it runs. While frames are unanswered the server itself may be
  // delaying the next ones, so silence counts from the last answer.
  void KeepSweeps() ABSL_LOCKS_EXCLUDED(sweeps_mutex_);
  void ResetHistory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(sweeps_mutex_);
  void SupersedeOlder() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends a frame that the engine does not have, and calls OnDropped if the error is a drop reason.
  void End(Frame& frame, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndExpired() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndOutOfMemory(Frame& frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnResult(Frame& frame, absl::StatusOr<InferResult> result);

  // Takes steps until none is left. Returns at once if another thread is doing so, which will take all steps.
  void Advance();
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
  std::deque<FramePtr> frames_ ABSL_GUARDED_BY(mutex_);  // those whose `done` has not been called, by arrival
  std::optional<absl::Time> waiting_since_ ABSL_GUARDED_BY(mutex_);  // of a superseded frame, for its successor
  std::optional<absl::Status> cancelled_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_advancing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace voxserve
