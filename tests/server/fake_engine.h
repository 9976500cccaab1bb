#pragma once

// FakeEngine is an Engine for tests of the server. It computes nothing, and the test decides when tasks start and end.
// It follows the contract of Engine: each task gets one answer, a task that is refused gets its answer within Submit,
// and Cancel works on tasks that have not started. One thread of its own ends the tasks. All methods are thread-safe.
//
// A plan search (Tune) lasts until the test calls FinishTune or the search is cancelled. A load or unload lasts until
// the test calls the `done` of last_model_call(). No load or unload changes the models.
//
// The models are "fake" with the versions 1 and 2, which are ready once loading has finished, and "broken" with version
// 1, which has failed. The label of a point is the point's index modulo 3, or with Options::labels_are_bytes the first
// byte of the point. With Options::has_boxes the answer has boxes instead of labels: one box for each point. The class
// of the box is the point's label, and its x is the point's index.

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
    bool loading = false;  // if true, the versions of "fake" are loading until the test calls FinishLoading
    int64_t max_queue_requests = 4;
    Pause pause = Pause::kNever;
    int64_t scores_per_point = 3;
    bool has_boxes = false;
    bool labels_are_bytes = false;
    // The pool of pinned (page-locked) memory from which AllocateCloud takes. If null, clouds are in pageable memory.
    std::shared_ptr<PinnedPool> pinned_pool = nullptr;
    bool ends_cancelled_tunes = true;  // if false, a cancelled search continues until FinishTune
  };

  explicit FakeEngine(Options options);
  ~FakeEngine() override;  // ends every pause

  void FinishLoading();
  void Resume();  // ends the pause
  // Lets the task that has started end; if none has started, lets the next task that starts end. The pause continues
  // for all other tasks.
  void EndOne();
  // Block until `count` tasks wait, have started, or were cancelled. Return false after ten seconds.
  bool AwaitWaiting(int64_t count);
  bool AwaitStarted(int64_t count);
  bool AwaitCancelled(int64_t count);
  // Blocks until Cancel was called `count` times. Calls for tasks that had started count too. Returns false after ten
  // seconds.
  bool AwaitCancelCalls(int64_t count);
  // Makes the next task that ends end with this error instead of a result.
  void FailNext(absl::Status status);
  int64_t num_started() const;
  // Returns true if no task waits or runs.
  bool IsIdle() const;
  // Returns the number of points in the cloud of the task that started last.
  uint64_t last_started_points() const;
  // Returns true if the cloud of the task that started last was in pinned memory.
  bool last_started_was_pinned() const;
  // Blocks until nothing holds the newest sweep of the last started task that had sweeps. Returns false after ten
  // seconds.
  bool AwaitLastSweepGone() const;

  // Block until `count` searches began, or until CancelTune was called `count` times. Return false after ten seconds.
  bool AwaitTunes(int64_t count);
  bool AwaitTuneCancels(int64_t count);
  // Returns the task of the last search that began, with its callbacks. A test may call the callback for progress as
  // long as the search runs, even after CancelTune: a real search reports progress until it has stopped.
  TuneTask last_tune() const;
  // Ends the search that runs with this result. Does nothing if no search runs.
  void FinishTune(absl::StatusOr<TuneResult> result);

  struct ModelCall {
    bool loads = false;  // false for an unload
    std::string model;
    int64_t version = 0;
    std::function<void(absl::StatusOr<std::vector<int64_t>>)> done;
  };
  // Blocks until `count` loads and unloads began, counted together. Returns false after ten seconds.
  bool AwaitModelCalls(int64_t count);
  // Returns the last load or unload that began. The test ends it by a call of its `done`.
  ModelCall last_model_call() const;

  absl::StatusOr<HostBuffer> AllocateCloud(int64_t bytes, BufferLife life) override;
  uint64_t Submit(InferTask task) override;
  bool Cancel(uint64_t ticket, DropReason reason) override;
  uint64_t Tune(TuneTask task) override;
  void CancelTune(uint64_t ticket) override;
  void Load(LoadTask task) override;
  void Unload(UnloadTask task) override;
  void Poll() override {}
  void WaitUntilLoaded() override;
  bool loaded() const override;
  std::vector<ModelVersionInfo> ListModels() const override;
  absl::StatusOr<ModelVersionInfo> GetModel(std::string_view name, int64_t version) const override;
  void Drain() override;
  void StopLoading() override {}
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
  int64_t num_ends_ ABSL_GUARDED_BY(mutex_) = 0;  // the number of tasks that EndOne lets end
  uint64_t last_started_points_ ABSL_GUARDED_BY(mutex_) = 0;
  bool last_started_was_pinned_ ABSL_GUARDED_BY(mutex_) = false;
  std::weak_ptr<const Sweep> last_sweep_ ABSL_GUARDED_BY(mutex_);
  int64_t num_cancelled_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_cancel_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  TuneTask last_tune_ ABSL_GUARDED_BY(mutex_);
  uint64_t tune_ticket_ ABSL_GUARDED_BY(mutex_) = 0;  // the ticket of the search that runs; 0 if none runs
  int64_t num_tunes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_tune_cancels_ ABSL_GUARDED_BY(mutex_) = 0;
  ModelCall last_model_call_ ABSL_GUARDED_BY(mutex_);
  int64_t num_model_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread worker_;
};

}  // namespace voxserve
