#pragma once

// PlanTuner searches plans for models in service, in the background.
//
// - Scans: a search waits until enough requests of its model came by, and keeps their clouds until it ends; where a
//   stream accumulates sweeps, the clouds of all of them. No other part keeps whole clouds longer than their requests.
//   They are kept in ordinary memory: those in page-locked memory are copied.
// - Bounds: all searches together keep at most Options::max_scans scans of max_scan_bytes, and a quarter of the
//   process's memory limit. A scan that does not fit is passed over. A search that has a scan begins with what it has
//   when as many in a row as it wants were passed over: it may wait for room that it holds itself. It begins at the
//   latest max_scan_age after its first scan came, or after the searches before it. Scans are freed when the search has
//   run, and at once where one that waits is cancelled.
// - Device: a search runs in a context of its own. Each run has the device to itself, so that its time is not that of
//   the requests beside it. Then the search rests four times as long: requests have four fifths of the device, and wait
//   for one run at most.
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
    // These bound all searches together.
    int64_t max_scans = 200;
    int64_t max_scan_bytes = int64_t{256} << 20;
    absl::Duration max_scan_age = absl::Minutes(10);
  };

  explicit PlanTuner(Options options);
  // Stops.
  ~PlanTuner();

  // FAILED_PRECONDITION (ALREADY_TUNING) and UNAVAILABLE (DRAINING) leave task.done to the caller.
  absl::Status Start(uint64_t ticket, ModelHandle model, std::filesystem::path version_folder, TuneTask& task);
  void Cancel(uint64_t ticket);
  // Cancels the searches for a version that was taken out of service: they would keep it, and no scan comes for it.
  void CancelAllOf(const ModelHandle& model);

  // Whether a search waits for scans: others need not be offered.
  bool is_collecting() const { return num_collecting_ > 0; }
  // Gives the input of a request that was accepted, its cloud or sweeps alone, to the search for its model. The search
  // keeps it if there is room.
  void Offer(const ServedModel& model, const InferTask& scan);

  // Cancels all searches and takes no more. Waits for the one under way.
  void Stop();

 private:
  struct Search {
    uint64_t ticket = 0;
    ModelHandle model;
    std::filesystem::path version_folder;
    TuneTask task;
    absl::Time deadline;  // for its scans
    // Under the tuner's lock until the search runs.
    std::vector<InferTask> scans;
    std::vector<MemoryBudget::Reservation> reservations;  // for the scans
    int64_t scan_bytes = 0;
    int64_t num_passed_over = 0;  // scans that there was no room for, since the last that was kept
    std::atomic<bool> is_cancelled{false};
    bool was_told = false;  // that it waits; under the tuner's lock, as the next
    bool has_ended = false;

    bool has_enough_scans() const {
      return static_cast<int64_t>(scans.size()) >= task.num_scans ||
             (!scans.empty() && num_passed_over >= task.num_scans);
    }
    bool WantsScans() const { return !is_cancelled && !has_enough_scans(); }
  };

  // Copies a scan that is kept, and counts it in the memory budget. RESOURCE_EXHAUSTED.
  absl::StatusOr<InferTask> Copy(const InferTask& scan, int64_t bytes, MemoryBudget::Reservation& reservation) const;
  // Returns the bytes of scans that all searches may keep.
  int64_t MaxScanBytes() const;
  // Counts a scan that there was no room for.
  void PassOver(Search& search) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Frees the scans of a search that needs them no more.
  void LetGo(Search& search) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Cancels the searches for which the function returns true.
  void CancelWhere(absl::FunctionRef<bool(const Search&)> is_meant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Loop();
  // Progress of searches that are new; lets go of the lock meanwhile.
  void TellWhoWaits() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The next search that can begin, or null where the tuner has stopped and none is left.
  std::shared_ptr<Search> Next();
  absl::StatusOr<TuneResult> RunCatching(Search& search);
  absl::StatusOr<TuneResult> Run(Search& search);
  // Leaves the device to the requests; ends early where the search is cancelled.
  void Rest(Search& search, absl::Duration duration);
  // On one device, for all devices of its kind.
  absl::StatusOr<TuneResult> RunOn(size_t device, Search& search);

  const Options options_;
  std::atomic<int> num_collecting_{0};
  absl::Mutex mutex_;
  absl::CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::shared_ptr<Search>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Search> running_ ABSL_GUARDED_BY(mutex_);
  int64_t num_scans_ ABSL_GUARDED_BY(mutex_) = 0;  // kept by all searches, as the next
  int64_t scan_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace voxserve
