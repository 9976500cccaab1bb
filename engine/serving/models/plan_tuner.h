#pragma once

// PlanTuner searches plans for models in service, in the background. A plan says how each convolution of a model runs
// (engine/compiler/plan.h). The engine owns one PlanTuner.
//
// - Scans: a scan is the input of one request: its cloud or, if a stream accumulates sweeps, the clouds of all its
//   sweeps. A search waits until enough requests for its model version have come, and keeps their scans until it ends.
//   Besides it, only streams keep clouds longer than their requests. Clouds in page-locked memory are copied to
//   pageable memory; clouds in pageable memory are shared.
// - Bounds: all searches together keep at most Options::max_scans scans. These have at most max_scan_bytes, and at most
//   a quarter of the process's memory limit. A scan that does not fit is skipped. If a search has skipped as many scans
//   in a row as it wants, it begins with the scans that it has, since its own scans may take the memory that it waits
//   for. A search begins at the latest max_scan_age after its first scan came; it then waits only for the searches
//   before it. Scans are freed when the search has run, and at once if a waiting search is cancelled.
// - Device: a search runs in an execution context of its own. Each of its runs has the device to itself, so that
//   requests do not distort the run's time. After a run the search rests for four times the time of the run. So
//   requests get four fifths of the device, and wait for at most one run.
// - Result: the plan is saved in the plan store and put into ServedModel::plans. Batches that run keep the plan with
//   which they began.
// - Threads: thread-safe. The tuner has one thread, which runs the searches one after the other.

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
  // All objects that these point to must outlive the tuner.
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
  // Calls Stop.
  ~PlanTuner();

  // Starts a search. ticket: for Cancel. Cancels a search for the same version that has no `done` (the engine started
  // it by itself) and still waits for scans. Returns FAILED_PRECONDITION (ALREADY_TUNING) if another search for the
  // version is under way, and UNAVAILABLE (DRAINING) after Stop; on an error the caller must call task.done.
  absl::Status Start(uint64_t ticket, ModelHandle model, std::filesystem::path version_folder, TuneTask& task);
  // Cancels a search: its `done` gets CANCELLED. Does nothing if the search has ended.
  void Cancel(uint64_t ticket);
  // Cancels the searches for a version that was taken out of service. They would keep the version alive, and no further
  // scan will come for it.
  void CancelAllOf(const ModelHandle& model);

  // Returns true if a search waits for scans. If not, Offer need not be called.
  bool is_collecting() const { return num_collecting_ > 0; }
  // Offers a scan, the input of an accepted request, to a search that waits for scans of this version. The search keeps
  // the scan if the bounds allow. Only the scan's cloud, sweeps and age_feature are used.
  void Offer(const ServedModel& model, const InferTask& scan);

  // Cancels all searches and refuses new ones. Blocks until all searches have ended.
  void Stop();

 private:
  struct Search {
    uint64_t ticket = 0;
    ModelHandle model;
    std::filesystem::path version_folder;
    TuneTask task;
    absl::Time deadline;  // the time at which the search begins at the latest, with the scans that it has
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

  // Returns the scan, in pageable memory, and counts it in the memory budget. Returns RESOURCE_EXHAUSTED if the budget
  // or the system has no memory for it.
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
  // Tells new searches' on_progress that they wait for scans. Releases the lock during each call.
  void TellWhoWaits() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for the next search that can begin or was cancelled. Returns null if the tuner has stopped and no search
  // waits.
  std::shared_ptr<Search> Next();
  absl::StatusOr<TuneResult> RunCatching(Search& search);
  absl::StatusOr<TuneResult> Run(Search& search);
  // Leaves the device to requests for this time; returns early if the search is cancelled.
  void Rest(Search& search, absl::Duration duration);
  // Runs the search on one device. The plan is used on all devices with the same PlanKey.
  absl::StatusOr<TuneResult> RunOn(size_t device, Search& search);

  const Options options_;
  const absl::Status out_of_memory_ = OutOfMemoryError("the search does not fit into memory");  // made in advance
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
