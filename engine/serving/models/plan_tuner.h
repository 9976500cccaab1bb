#pragma once

// PlanTuner searches plans for models in service, in the background.
//
// - Scans: a search waits until enough requests of its model have come, and keeps copies of their clouds until it ends;
//   if a stream accumulates sweeps, the clouds of all sweeps. No other part keeps whole clouds longer than their
//   requests. The copies lie in ordinary memory.
// - Bounds: all searches together keep at most Options::max_scans scans of max_scan_bytes, and a quarter of the
//   process's memory limit. A scan that does not fit is skipped. If as many scans in a row as a search wants were
//   skipped, the search begins with those that it has, since it may be waiting for room that it holds itself. It begins
//   at the latest max_scan_age after its first scan came, or after the searches before it. Scans are freed when the
//   search has run, and at once if a waiting search is cancelled.
// - Device: a search runs in a context of its own. Each run has the device to itself, so that requests do not distort
//   its time. Then the search rests four times as long: requests get four fifths of the device, and wait for one run at
//   most.
// - Result: the plan goes to the plan store and into the model's plans. Batches under way keep the plan that they began
//   with.
// - Threads: thread-safe. One thread of its own; searches run one after the other.

#include <atomic>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/steady_time.h"
#include "engine/executor/device_arbiter.h"
#include "engine/runtime/devices.h"
#include "engine/runtime/memory_budget.h"
#include "engine/serving/admission/engine_observer.h"
#include "engine/serving/models/model_table.h"
#include "engine/serving/models/tune_task.h"
#include "engine/tensor/infer_task.h"
#include "engine/tuner/plan_store.h"
#include "kernels/core/thread_pool.h"

namespace voxserve {

class PlanTuner {
 public:
  // All outlive the tuner.
  struct Options {
    const std::vector<Device>* devices = nullptr;
    const std::vector<std::unique_ptr<DeviceArbiter>>* arbiters = nullptr;  // by device
    kernels::ThreadPool* pool = nullptr;
    PlanStore* store = nullptr;
    EngineObserver* observer = nullptr;  // may be null
    MemoryBudget* memory = nullptr;      // may be null
    // Limits for all searches together.
    int64_t max_scans = 200;
    int64_t max_scan_bytes = int64_t{256} << 20;
    absl::Duration max_scan_age = absl::Minutes(10);
  };

  explicit PlanTuner(Options options);
  // Stops.
  ~PlanTuner();

  // Starts a search. FAILED_PRECONDITION (ALREADY_TUNING) and UNAVAILABLE (DRAINING) leave task.done to the caller.
  absl::Status Start(uint64_t ticket, ModelHandle model, std::filesystem::path version_folder, TuneTask& task);
  void Cancel(uint64_t ticket);
  // Cancels the searches for a version that was taken out of service: they hold it, and no scan will come for it.
  void CancelAllOf(const ModelHandle& model);

  // Returns true if a search waits for scans. If not, Offer need not be called.
  bool is_collecting() const { return num_collecting_ > 0; }
  // Offers the input of an accepted request (its cloud or sweeps only) to the search for its model, which keeps a copy
  // if there is room.
  void Offer(const ServedModel& model, const InferTask& scan);

  // Cancels all searches and accepts no more. Waits for the one that runs.
  void Stop();

 private:
  struct Search {
    uint64_t ticket = 0;
    ModelHandle model;
    std::filesystem::path version_folder;
    TuneTask task;
    absl::Time deadline;  // for its scans; then it begins with those that it has
    // Guarded by the tuner's lock until the search runs.
    std::vector<InferTask> scans;
    std::vector<MemoryBudget::Reservation> reservations;  // for the scans
    int64_t scan_bytes = 0;
    int64_t num_passed_over = 0;  // scans skipped for lack of room since the last one that was kept
    std::atomic<bool> is_cancelled{false};
    bool was_told = false;   // on_progress was called for its wait; guarded by the tuner's lock
    bool has_ended = false;  // guarded by the tuner's lock

    bool has_enough_scans() const {
      return static_cast<int64_t>(scans.size()) >= task.num_scans ||
             (!scans.empty() && num_passed_over >= task.num_scans);
    }
    bool WantsScans() const { return !is_cancelled && !has_enough_scans(); }
  };

  // Copies a scan and counts the copy in the memory budget. Returns RESOURCE_EXHAUSTED if the budget has no room for
  // it.
  absl::StatusOr<InferTask> Copy(const InferTask& scan, int64_t bytes, MemoryBudget::Reservation& reservation) const;
  // Returns the limit of the bytes of scans that all searches keep.
  int64_t MaxScanBytes() const;
  // Counts a scan that was skipped for lack of room.
  void PassOver(Search& search) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Frees the scans of a search that no longer needs them.
  void LetGo(Search& search) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Cancels the searches for which the function returns true.
  void CancelWhere(absl::FunctionRef<bool(const Search&)> is_meant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Loop();
  // Reports the progress of new searches; releases the lock meanwhile.
  void TellWhoWaits() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for the next search that can begin; null if the tuner has stopped and none is left.
  std::shared_ptr<Search> Next();
  absl::StatusOr<TuneResult> RunCatching(Search& search);
  absl::StatusOr<TuneResult> Run(Search& search);
  // Leaves the device to requests for a while; ends early if the search is cancelled.
  void Rest(Search& search, absl::Duration duration);
  // Runs the search on one device, for all devices of its kind.
  absl::StatusOr<TuneResult> RunOn(size_t device, Search& search);

  const Options options_;
  std::atomic<int> num_collecting_{0};
  absl::Mutex mutex_;
  SteadyCondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::shared_ptr<Search>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Search> running_ ABSL_GUARDED_BY(mutex_);
  int64_t num_scans_ ABSL_GUARDED_BY(mutex_) = 0;   // kept by all searches
  int64_t scan_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // kept by all searches
  std::thread thread_;
};

}  // namespace voxserve
