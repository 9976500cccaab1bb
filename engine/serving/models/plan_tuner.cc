#include "engine/serving/models/plan_tuner.h"

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "engine/base/steady_time.h"
#include "engine/base/tell_done.h"
#include "engine/executor/executor.h"
#include "engine/tuner/plan_search.h"

namespace voxserve {
namespace {

absl::Status Cancelled() {
  return WithReason(absl::CancelledError("the search was cancelled"), error_reason::kCancelled);
}

// After this time a search decides by what it has measured.
constexpr absl::Duration kTimeLimit = absl::Minutes(10);

// After each run, which has the device to itself, the search rests for this many times the run's time.
constexpr int kRestShare = 4;

// The scans of all searches may take 1 / kMemoryShare of the process's memory limit.
constexpr int64_t kMemoryShare = 4;

// Returns the scan with all its clouds in pageable memory. Clouds in page-locked memory are copied, since requests need
// that memory; their sweeps are copied too, so that streams can free theirs. Returns RESOURCE_EXHAUSTED if there is no
// memory for a copy.
absl::StatusOr<InferTask> InOrdinaryMemory(InferTask scan) {
  for (PlacedSweep& placed : scan.sweeps) {
    if (!placed.sweep->cloud.is_pinned()) continue;
    ASSIGN_OR_RETURN(PointCloud cloud, placed.sweep->cloud.InOrdinaryMemory());
    placed.sweep = std::make_shared<const Sweep>(
        Sweep{.cloud = std::move(cloud), .pose = placed.sweep->pose, .stamp = placed.sweep->stamp});
  }
  if (scan.sweeps.empty()) {
    ASSIGN_OR_RETURN(scan.cloud, scan.cloud.InOrdinaryMemory());
  } else {
    scan.cloud = scan.sweeps.front().sweep->cloud;
  }
  return scan;
}

}  // namespace

PlanTuner::PlanTuner(Options options) : options_(options), thread_([this] { Loop(); }) {}

PlanTuner::~PlanTuner() {
  Stop();
  thread_.join();
}

absl::Status PlanTuner::Start(uint64_t ticket, ModelHandle model, std::filesystem::path version_folder,
                              TuneTask& task) {
  absl::MutexLock lock(&mutex_);
  if (stopped_) return DrainingError();
  const auto is_of_model = [&](const std::shared_ptr<Search>& search) {
    return search != nullptr && !search->has_ended && !search->is_cancelled && search->model == model;
  };
  // If the engine started a search of this model by itself (without `done`), and that search still waits for scans, the
  // new search replaces it.
  for (const std::shared_ptr<Search>& search : waiting_) {
    if (!is_of_model(search) || search->task.done) continue;
    search->is_cancelled = true;
    LetGo(*search);
  }
  if (is_of_model(running_) || std::any_of(waiting_.begin(), waiting_.end(), is_of_model)) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat("a plan for model \"", model->info.name, "\" version ",
                                                                 model->info.version, " is being searched already")),
                      error_reason::kAlreadyTuning);
  }
  auto search = std::make_shared<Search>();
  search->ticket = ticket;
  search->model = std::move(model);
  search->version_folder = std::move(version_folder);
  search->task = std::move(task);
  search->deadline = SteadyNow() + search->task.max_wait;
  waiting_.push_back(std::move(search));
  ++num_collecting_;
  changed_.SignalAll();
  return absl::OkStatus();
}

void PlanTuner::Cancel(uint64_t ticket) {
  absl::MutexLock lock(&mutex_);
  CancelWhere([ticket](const Search& search) { return search.ticket == ticket; });
}

void PlanTuner::CancelAllOf(const ModelHandle& model) {
  absl::MutexLock lock(&mutex_);
  CancelWhere([&model](const Search& search) { return search.model == model; });
}

void PlanTuner::CancelWhere(absl::FunctionRef<bool(const Search&)> is_meant) {
  if (running_ != nullptr && is_meant(*running_)) running_->is_cancelled = true;  // its scans are still in use
  for (const std::shared_ptr<Search>& search : waiting_) {
    if (!is_meant(*search)) continue;
    search->is_cancelled = true;
    LetGo(*search);
  }
  changed_.SignalAll();
}

void PlanTuner::Offer(const ServedModel& model, const InferTask& scan) {
  if (scan.num_points() == 0) return;
  const int64_t bytes = scan.num_bytes();
  std::shared_ptr<Search> search;
  {
    absl::MutexLock lock(&mutex_);
    const auto taker = std::find_if(waiting_.begin(), waiting_.end(), [&](const std::shared_ptr<Search>& waiting) {
      return waiting->model.get() == &model && waiting->WantsScans();
    });
    if (taker == waiting_.end()) return;
    if (num_scans_ >= options_.max_scans || bytes > MaxScanBytes() - scan_bytes_) return PassOver(**taker);
    search = *taker;
    ++num_scans_;
    scan_bytes_ += bytes;
  }
  // Copies without the lock: clouds are large, and other requests would wait.
  MemoryBudget::Reservation reservation;
  absl::StatusOr<InferTask> kept = Copy(scan, bytes, reservation);

  absl::MutexLock lock(&mutex_);
  const bool waits = std::find(waiting_.begin(), waiting_.end(), search) != waiting_.end() && search->WantsScans();
  if (!kept.ok() || !waits) {
    --num_scans_;
    scan_bytes_ -= bytes;
    if (waits) PassOver(*search);
    return;
  }
  if (search->scans.empty()) search->deadline = std::min(search->deadline, SteadyNow() + options_.max_scan_age);
  search->num_passed_over = 0;
  search->scans.push_back(*std::move(kept));
  search->reservations.push_back(std::move(reservation));
  search->scan_bytes += bytes;
  changed_.SignalAll();
}

absl::StatusOr<InferTask> PlanTuner::Copy(const InferTask& scan, int64_t bytes,
                                          MemoryBudget::Reservation& reservation) const {
  if (options_.memory != nullptr) {
    ASSIGN_OR_RETURN(reservation, options_.memory->Reserve(MemoryBudget::Use::kTuning, bytes));
  }
  return InOrdinaryMemory(scan);
}

int64_t PlanTuner::MaxScanBytes() const {
  if (options_.memory == nullptr || options_.memory->limit_bytes() == 0) return options_.max_scan_bytes;
  return std::min(options_.max_scan_bytes, options_.memory->limit_bytes() / kMemoryShare);
}

void PlanTuner::PassOver(Search& search) {
  ++search.num_passed_over;
  if (search.has_enough_scans()) changed_.SignalAll();
}

void PlanTuner::LetGo(Search& search) {
  num_scans_ -= static_cast<int64_t>(search.scans.size());
  scan_bytes_ -= search.scan_bytes;
  search.scans.clear();
  search.reservations.clear();
  search.scan_bytes = 0;
}

void PlanTuner::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
  CancelWhere([](const Search&) { return true; });
  while (running_ != nullptr || !waiting_.empty()) changed_.Wait(&mutex_);
}

std::shared_ptr<PlanTuner::Search> PlanTuner::Next() {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    TellWhoWaits();
    const absl::Time now = SteadyNow();
    absl::Time wake = absl::InfiniteFuture();
    for (auto search = waiting_.begin(); search != waiting_.end(); ++search) {
      Search& waiting = **search;
      if (waiting.is_cancelled || waiting.has_enough_scans() || waiting.deadline <= now) {
        running_ = *search;
        waiting_.erase(search);
        --num_collecting_;
        return running_;
      }
      wake = std::min(wake, waiting.deadline);
    }
    if (stopped_) return nullptr;
    changed_.WaitUntil(&mutex_, wake);
  }
}

void PlanTuner::TellWhoWaits() {
  for (;;) {
    const auto untold = std::find_if(waiting_.begin(), waiting_.end(), [](const std::shared_ptr<Search>& search) {
      return search->task.on_progress && !search->was_told;
    });
    if (untold == waiting_.end()) return;
    const std::shared_ptr<Search> search = *untold;
    search->was_told = true;
    mutex_.Unlock();
    try {
      search->task.on_progress({.stage = "waiting for scans"});
    } catch (const std::bad_alloc&) {  // then the callback does not learn of this stage
    }
    mutex_.Lock();
  }
}

void PlanTuner::Loop() {
  while (const std::shared_ptr<Search> search = Next()) {
    absl::StatusOr<TuneResult> result = RunCatching(*search);
    try {
      if (!result.ok()) {
        Log(absl::IsCancelled(result.status()) ? LogLevel::kInfo : LogLevel::kWarning, "no plan was found",
            {{"model", search->model->info.name}, {"reason", std::string(result.status().message())}});
      }
    } catch (const std::bad_alloc&) {  // then the log lacks the line
    }
    {
      absl::MutexLock lock(&mutex_);
      LetGo(*search);
      search->has_ended = true;  // before the call of `done`, which may start the next search
    }
    TellDone(search->task.done, std::move(result));
    absl::MutexLock lock(&mutex_);
    running_ = nullptr;
    changed_.SignalAll();
  }
}

absl::StatusOr<TuneResult> PlanTuner::RunCatching(Search& search) {
  try {
    return Run(search);
  } catch (const std::bad_alloc&) {
    return out_of_memory_;
  } catch (const std::exception& error) {  // from the standard library: files, random devices
    return WithReason(absl::InternalError(error.what()), error_reason::kInternal);
  }
}

absl::StatusOr<TuneResult> PlanTuner::Run(Search& search) {
  if (search.is_cancelled) return Cancelled();
  if (search.scans.empty() && search.num_passed_over > 0) {
    return OutOfMemoryError(absl::StrCat("none of ", search.num_passed_over, " scans for model \"",
                                         search.model->info.name,
                                         "\" fitted the memory that searches may keep scans in"));
  }
  if (search.scans.empty()) {
    return WithReason(
        absl::DeadlineExceededError(absl::StrCat("no scan for model \"", search.model->info.name, "\" came within ",
                                                 absl::FormatDuration(search.task.max_wait))),
        error_reason::kDeadlineExpired);
  }
  absl::StatusOr<TuneResult> first = absl::InternalError("there is no device");
  const std::vector<ServedModel::OnDevice>& on_device = search.model->on_device;
  for (size_t device = 0; device < on_device.size(); ++device) {
    // Devices of one key share a plan.
    const auto is_same = [&](const ServedModel::OnDevice& other) {
      return other.plan_key == on_device[device].plan_key;
    };
    if (std::any_of(on_device.begin(), on_device.begin() + static_cast<std::ptrdiff_t>(device), is_same)) continue;
    absl::StatusOr<TuneResult> result = RunOn(device, search);
    if (!result.ok()) return result;
    if (device == 0) first = std::move(result);
  }
  return first;
}

void PlanTuner::Rest(Search& search, absl::Duration duration) {
  const absl::Time end = SteadyNow() + duration;
  absl::MutexLock lock(&mutex_);
  while (!search.is_cancelled && SteadyNow() < end) changed_.WaitUntil(&mutex_, end);
}

absl::StatusOr<TuneResult> PlanTuner::RunOn(size_t device, Search& search) {
  const absl::Time begin = SteadyNow();
  const ServedModel& model = *search.model;
  const Program& program = model.on_device[device].program;
  DeviceArbiter& arbiter = *(*options_.arbiters)[device];
  ASSIGN_OR_RETURN(ExecutionContext context,
                   MakeContext((*options_.devices)[device], options_.pool, StreamPriority::kLow));
  if constexpr (kernels::kHasCuda) {
    if (context.cuda != nullptr) RETURN_IF_ERROR(context.cuda->MakeCurrent());
  }
  const ContextRegistration registration(arbiter, context.cuda.get());
  const std::unique_ptr<Executor> executor = Executor::Create(&context);
  const auto run = [&](const PlanTable& plans, const InferTask& scan, const ScanRunOptions& wanted) {
    InferTask task = scan;
    task.return_scores = wanted.return_scores;
    absl::Duration busy;
    BatchReport output =
        arbiter.RunExclusive({.plans = &plans, .times_convs = wanted.times_convs}, [&](const RunOptions& options) {
          const absl::Time start = SteadyNow();
          BatchReport ran = executor->Run(program, task, model.limits, options);
          busy += SteadyNow() - start;
          return ran;
        });
    Rest(search, kRestShare * busy);
    return output;
  };
  SearchOptions options{.time_limit = kTimeLimit};
  options.on_progress = [&](const SearchProgress& progress) {
    if (search.task.on_progress) search.task.on_progress({.stage = progress.stage, .fraction = progress.fraction});
    return !search.is_cancelled;
  };
  ASSIGN_OR_RETURN(SearchResult found, SearchPlan(program, run, search.scans, options));

  auto plan = std::make_shared<TunedPlan>(TunedPlan{.key = model.on_device[device].plan_key, .buckets = found.buckets});
  TuneResult result{.device = (*options_.devices)[device].id, .num_scans = static_cast<int>(search.scans.size())};
  if (const auto path = options_.store->Save(plan, search.version_folder); path.ok()) {
    result.path = path->string();
  } else {
    Log(LogLevel::kWarning, "a tuned plan could not be written and lasts as long as this process",
        {{"model", model.info.name}, {"error", std::string(path.status().message())}});
  }
  const std::vector<PlanTable::Bucket> buckets = BucketsOf(*plan);
  for (size_t i = 0; i < model.on_device.size(); ++i) {
    if (model.on_device[i].plan_key != plan->key) continue;
    model.plans->Set(i, std::make_shared<const PlanTable>(model.on_device[i].program, buckets), "tuned");
    if (options_.observer != nullptr) {
      options_.observer->OnPlan(model.info.name, model.info.version, (*options_.devices)[i].id, "tuned");
    }
  }
  for (const TunedBucket& bucket : plan->buckets) {
    result.buckets.push_back(
        {.min_voxels = bucket.bucket.min_voxels,
         .max_voxels = bucket.bucket.max_voxels == PlanTable::kNoLimit ? 0 : bucket.bucket.max_voxels,
         .num_scans = bucket.num_scans,
         .default_time = bucket.default_time,
         .tuned_time = bucket.tuned_time});
  }
  result.search_time = SteadyNow() - begin;
  Log(LogLevel::kInfo, "plan tuned",
      {{"model", model.info.name},
       {"version", model.info.version},
       {"device", result.device},
       {"scans", result.num_scans},
       {"seconds", absl::ToDoubleSeconds(result.search_time)},
       {"file", result.path}});
  return result;
}

}  // namespace voxserve
