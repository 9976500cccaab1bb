#pragma once

// An Engine that computes nothing and whose time the test controls. It keeps the interface's promises: one answer a
// task, refusals at once, cancellation of what has not started. A search of a plan does what the test says, and lasts
// until the test ends it; so do loads and unloads, of which the last counts, and which change nothing.
//
// Models: "fake" versions 1 and 2 (ready when loading has finished), "broken" version 1 (failed). Labels are the
// point's index modulo 3; with Options::has_boxes there are boxes in their place, one a point, with that class and the
// point's index as x.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/runtime/pinned_pool.h"
#include "engine/serving/engine.h"

namespace voxserve {

class FakeEngine final : public Engine {
 public:
  enum class Pause {
    kNever,
    kBeforeStart,  // tasks stay in the queue
    kAfterStart,   // one task starts and does not end; the others stay in the queue
  };

  struct Options {
    EngineObserver* observer = nullptr;
    bool loading = false;  // until FinishLoading
    int64_t max_queue_requests = 4;
    Pause pause = Pause::kNever;
    int64_t scores_per_point = 3;
    bool has_boxes = false;
    // Where clouds lie; null: in ordinary memory.
    std::shared_ptr<PinnedPool> pinned_pool = nullptr;
    bool ends_cancelled_tunes = true;  // false: a cancelled search goes on until FinishTune
  };

  explicit FakeEngine(Options options);
  ~FakeEngine() override;  // ends every pause

  void FinishLoading();
  void Resume();
  // Lets one task that has started end, or the next one that does; after it the pause goes on.
  void EndOne();
  // Block until so many tasks wait, or have started, or were cancelled; false after ten seconds.
  bool AwaitWaiting(int64_t count);
  bool AwaitStarted(int64_t count);
  bool AwaitCancelled(int64_t count);
  // Likewise, of calls of Cancel, those for tasks that had started included.
  bool AwaitCancelCalls(int64_t count);
  // The next task that starts gets this instead of an answer.
  void FailNext(absl::Status status);
  int64_t num_started() const;
  // Nothing waits or runs.
  bool IsIdle() const;
  // Points of the cloud of the task that started last.
  uint64_t last_started_points() const;
  // True where they lay in memory that is pinned.
  bool last_started_was_pinned() const;
  // Blocks until nobody holds the newest sweep of the last task with sweeps any more; false after ten seconds.
  bool AwaitLastSweepGone() const;

  // Likewise, of searches that began, or calls of CancelTune.
  bool AwaitTunes(int64_t count);
  bool AwaitTuneCancels(int64_t count);
  // The last search that began, its callbacks included: a search tells its progress until it has stopped, which may be
  // after it has been cancelled.
  TuneTask last_tune() const;
  // Tells its end, unless it has ended.
  void FinishTune(absl::StatusOr<TuneResult> result);

  struct ModelCall {
    bool loads = false;  // else it unloads
    std::string model;
    int64_t version = 0;
    std::function<void(absl::StatusOr<std::vector<int64_t>>)> done;
  };
  // Likewise, of loads and unloads that began.
  bool AwaitModelCalls(int64_t count);
  ModelCall last_model_call() const;

  absl::StatusOr<HostBuffer> AllocateCloud(int64_t bytes, BufferLife life) override;
  uint64_t Submit(InferTask task) override;
  bool Cancel(uint64_t ticket, DropReason reason) override;
  uint64_t Tune(TuneTask task) override;
  void CancelTune(uint64_t ticket) override;
  void Load(LoadTask task) override;
  void Unload(UnloadTask task) override;
  void WaitUntilLoaded() override;
  bool loaded() const override;
  std::vector<ModelVersionInfo> ListModels() const override;
  absl::StatusOr<ModelVersionInfo> GetModel(std::string_view name, int64_t version) const override;
  void Drain() override;
  void RefuseQueued() override;
  std::string devices() const override { return "cpu"; }

 private:
  struct Waiting {
    uint64_t ticket;
    InferTask task;
  };

  absl::Status CheckModel(const std::string& model, int64_t version) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DescribeOutputs(ModelVersionInfo* info) const;
  absl::Status Check(const InferTask& task) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Begin(ModelCall call);
  bool Await(const int64_t* counter, int64_t at_least);
  void Run();
  absl::StatusOr<InferResult> Answer(const InferTask& task) const;

  const Options options_;
  mutable absl::Mutex mutex_;
  bool loaded_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool idle_ ABSL_GUARDED_BY(mutex_) = true;
  Pause pause_ ABSL_GUARDED_BY(mutex_);
  absl::Status next_failure_ ABSL_GUARDED_BY(mutex_);
  std::deque<Waiting> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t num_waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_started_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_ends_ ABSL_GUARDED_BY(mutex_) = 0;  // that EndOne allows
  uint64_t last_started_points_ ABSL_GUARDED_BY(mutex_) = 0;
  bool last_started_was_pinned_ ABSL_GUARDED_BY(mutex_) = false;
  std::weak_ptr<const Sweep> last_sweep_ ABSL_GUARDED_BY(mutex_);
  int64_t num_cancelled_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_cancel_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  TuneTask last_tune_ ABSL_GUARDED_BY(mutex_);
  uint64_t tune_ticket_ ABSL_GUARDED_BY(mutex_) = 0;  // of the search under way; 0: none
  int64_t num_tunes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_tune_cancels_ ABSL_GUARDED_BY(mutex_) = 0;
  ModelCall last_model_call_ ABSL_GUARDED_BY(mutex_);
  int64_t num_model_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread worker_;
};

}  // namespace voxserve
