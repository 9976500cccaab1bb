#pragma once

// StreamSession is one vehicle's stream of frames. It decides which frames run, which give way to newer ones, and in
// which order their answers leave.
//
// LATEST: one frame is the engine's (queued or running there) and one waits here. A newer frame supersedes the one that
// waits, and the engine's too where that has not started: they are answered ABORTED, reason SUPERSEDED. So a frame that
// starts is the newest there is. Answers leave as they come.
// QUEUE: every frame goes to the engine at once; answers leave in the order of the frames. The caller keeps frames back
// while HasRoom() says no.
//
// Every frame gets exactly one call of its `done`, whatever happens. A session calls the engine and `done` from one
// thread at a time, whichever caller's or engine's that is, and without its lock: both may call back into it.
//
// The session alone has its accumulated sweeps. A session that has answered all frames, and gets none for as long
// as a sweep may be old and kMaxJitter, forgets them: a next frame could not use them. (By its own clock: stamps are
// the sensor's, which say nothing while none come.)
//
// A frame that no memory is left for gets OutOfMemoryError. Push alone throws std::bad_alloc, where it has not taken
// the frame: `done` is not called then. `done` must not throw.
//
// Thread-safe, but that calls of Push do not overlap. Nothing here blocks. Made with Create: what the engine holds
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
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/base/error_reason.h"
#include "engine/serving/admission/drop_reason.h"
#include "engine/serving/admission/engine_observer.h"
#include "engine/serving/streams/sweep_history.h"
#include "engine/tensor/infer_task.h"
#include "engine/tensor/point_cloud.h"
#include "engine/tensor/sweep.h"

namespace voxserve {

enum class StreamPolicy { kLatest, kQueue };

struct StreamFrame {
  // An error (of a frame that did not decode, or must not be taken) is its answer, in its turn.
  absl::StatusOr<PointCloud> cloud = PointCloud();
  std::optional<Pose> pose;                 // required where sweeps accumulate, as is
  absl::Time stamp = absl::InfinitePast();  // when the sensor took the cloud; InfinitePast: unknown
  bool reset_sweeps = false;                // forget those before this one
  std::shared_ptr<const void> reservation;  // of memory, for as long as the cloud is kept as a sweep; may be null
  // num_sweeps: that were run together, this one included; 0 where none accumulate, or none ran. Must not block.
  std::function<void(absl::StatusOr<InferResult> result, int num_sweeps)> done;
};

class StreamSession : public std::enable_shared_from_this<StreamSession> {
 public:
  static constexpr int kMaxQueuedFrames = 64;
  // The jitter of frames on their way: the sensor took them at equal intervals.
  static constexpr absl::Duration kMaxJitter = absl::Seconds(1);

  struct Config {
    std::string model;
    std::string client;  // as in InferTask, as are the next four
    double client_share = 1;
    int64_t version = 0;
    bool return_scores = false;
    std::vector<std::string> tensors;  // as in InferTask, as is the next
    DType tensor_dtype = DType::kFloat32;
    int priority = 0;
    StreamPolicy policy = StreamPolicy::kLatest;
    absl::Duration frame_timeout = absl::InfiniteDuration();  // from Push to the answer; infinite: the model's own
    int max_queued_frames = 4;                                // of QUEUE: unanswered ones; 1 to kMaxQueuedFrames
    std::optional<SweepHistory::Options> sweeps;              // none: each frame is a whole scan
    std::string age_feature;                                  // as in InferTask, as is the next
    std::optional<FarthestPoints> sample;                     // of every frame
  };

  struct Options {
    // Engine::Submit and Engine::Cancel; they outlive the session.
    std::function<uint64_t(InferTask)> submit;
    std::function<bool(uint64_t ticket, DropReason reason)> cancel;
    EngineObserver* observer = nullptr;  // outlives the session; may be null
    std::function<absl::Time()> now = absl::Now;
  };

  static std::shared_ptr<StreamSession> Create(Config config, Options options);

  // Takes the next frame. `done` may be called before this returns.
  void Push(StreamFrame frame);

  // Whether the caller may read on.
  bool HasRoom() const;

  // Returns the bytes of the clouds that are kept for later frames.
  int64_t SweepBytes() const;
  // The next frame runs without those before it.
  void ForgetSweeps();

  // Returns the bytes of the clouds of LATEST's unanswered frames, which the next one supersedes or, where one runs
  // already, waits for.
  int64_t BytesAheadOfNext() const;

  // Frames that come from now on are answered UNAVAILABLE, reason DRAINING. Those taken before go on.
  void StartDraining();

  // Answers are not wanted any more: unanswered frames get this error (a running one when the engine is through with
  // it), and so do frames that come later. The first call counts.
  void Cancel(const absl::Status& why);

  // Answers frames that wait here and whose time is up: DEADLINE_EXCEEDED, reason DEADLINE_EXPIRED. Forgets sweeps
  // where the stream has fallen silent.
  void ExpireDue();
  // When ExpireDue will have something to do; InfiniteFuture where nothing waits or is kept here, or without a limit.
  absl::Time NextExpiry() const;

 private:
  struct Frame {
    enum class State { kWaiting, kSubmitted, kEnded };

    State state = State::kWaiting;
    InferTask task;  // until it is submitted
    std::function<void(absl::StatusOr<InferResult>, int)> done;
    int num_sweeps = 0;
    int64_t cloud_bytes = 0;
    absl::Time arrived;
    absl::Time deadline = absl::InfiniteFuture();  // without the model's own
    absl::Time waiting_since;                      // of it and of those that it superseded in the engine's queue
    std::optional<uint64_t> ticket;                // once Submit has returned
    bool is_superseded = false;                    // and so to be cancelled
    bool is_cancel_tried = false;
    absl::StatusOr<InferResult> result = InferResult();  // of an ended one
  };
  using FramePtr = std::shared_ptr<Frame>;
  // To be done without the lock. Steps allocate nothing before they are done, so that none is lost.
  struct Step {
    void (StreamSession::*run)(const FramePtr& frame) = nullptr;  // nullptr: there is none
    FramePtr frame;
  };

  StreamSession(Config config, Options options);

  // The cloud alone, or with the sweeps before it.
  absl::Status AddCloud(StreamFrame& pushed, Frame* frame);
  absl::Status AddSweep(StreamFrame& pushed, Frame* frame);
  // While frames have no answer it may be the server that keeps the next ones back: silence begins with the last
  // answer.
  void KeepSweeps() ABSL_LOCKS_EXCLUDED(sweeps_mutex_);
  void ResetHistory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(sweeps_mutex_);
  void SupersedeOlder() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends a frame that the engine does not have, and tells OnDropped where that is what the error says.
  void End(Frame& frame, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndExpired() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndOutOfMemory(Frame& frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnResult(Frame& frame, absl::StatusOr<InferResult> result);

  // Does what can be done, until nothing can; returns at once where another thread is at it, which sees to it all.
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
  const absl::Status out_of_memory_ = OutOfMemoryError();  // made while there is memory

  mutable absl::Mutex sweeps_mutex_;  // never held with the other
  std::optional<SweepHistory> history_ ABSL_GUARDED_BY(sweeps_mutex_);
  absl::Time sweeps_expiry_ ABSL_GUARDED_BY(sweeps_mutex_) = absl::InfiniteFuture();  // without another sweep

  mutable absl::Mutex mutex_;
  std::deque<FramePtr> frames_ ABSL_GUARDED_BY(mutex_);  // whose `done` has not been called, in order of arrival
  std::optional<absl::Time> waiting_since_ ABSL_GUARDED_BY(mutex_);  // the place that a superseded frame leaves
  std::optional<absl::Status> cancelled_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_advancing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace voxserve
