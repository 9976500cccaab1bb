#include "engine/executor/device_arbiter.h"

#include <algorithm>
#include <new>

#include "engine/base/error_reason.h"

namespace voxserve {
namespace {

// Runs the batch and turns std::bad_alloc into a status: a request that needs too much memory must not end the process.
BatchReport Try(const DeviceArbiter::RunBatch& run, RunOptions options, bool may_make_maps_on_cpu) {
  options.may_make_maps_on_cpu = may_make_maps_on_cpu;
  try {
    return run(options);
  } catch (const std::bad_alloc&) {
    BatchReport output;
    output.status = OutOfMemoryError("the batch does not fit into memory");
    return output;
  }
}

// Returns true if the batch may fit after other contexts free their memory on the device.
bool RanOutOfMemory(const BatchReport& output) { return IsOutOfMemory(output.status) && !output.host_is_full; }

}  // namespace

BatchReport DeviceArbiter::TryBesideOthers(const RunOptions& options, const RunBatch& run, bool may_make_maps_on_cpu,
                                           bool* was_beside) {
  const bool began_beside = num_side_by_side_.fetch_add(1) > 0;
  BatchReport output = Try(run, options, may_make_maps_on_cpu);
  *was_beside = num_side_by_side_.fetch_sub(1) > 1 || began_beside;
  return output;
}

BatchReport DeviceArbiter::RunWithRetry(const RunOptions& options, const RunBatch& run) {
  const bool is_on_cpu = num_contexts() == 0;
  {
    absl::ReaderMutexLock lock(&running_);
    bool was_beside = false;
    BatchReport output = TryBesideOthers(options, run, num_contexts() <= 1, &was_beside);
    const bool may_fit_alone = is_on_cpu ? output.host_is_full && was_beside : RanOutOfMemory(output);
    if (!may_fit_alone) return output;
  }
  absl::WriterMutexLock lock(&running_);
  return is_on_cpu ? Try(run, options, true) : RunWithEverything(options, run);
}

BatchReport DeviceArbiter::TryOnce(const RunOptions& options, const RunBatch& run) {
  absl::ReaderMutexLock lock(&running_);
  bool was_beside = false;
  return TryBesideOthers(options, run, false, &was_beside);
}

BatchReport DeviceArbiter::RunExclusive(const RunOptions& options, const RunBatch& run) {
  absl::WriterMutexLock lock(&running_);
  BatchReport output = Try(run, options, num_contexts() <= 1);
  if (num_contexts() == 0 || !RanOutOfMemory(output)) return output;
  return RunWithEverything(options, run);
}

BatchReport DeviceArbiter::RunWithEverything(const RunOptions& options, const RunBatch& run) {
  if constexpr (kernels::kHasCuda) {
    absl::MutexLock lock(&mutex_);
    for (CudaContext* context : contexts_) context->ReleaseMemory();
  }
  BatchReport output = Try(run, options, true);
  if (!RanOutOfMemory(output) || options.plans == nullptr) return output;
  RunOptions by_default = options;
  by_default.plans = nullptr;
  return Try(run, by_default, true);
}

size_t DeviceArbiter::num_contexts() const {
  absl::MutexLock lock(&mutex_);
  return contexts_.size();
}

void DeviceArbiter::Add(CudaContext* context) {
  if (context == nullptr) return;
  absl::MutexLock lock(&mutex_);
  contexts_.push_back(context);
}

void DeviceArbiter::Remove(CudaContext* context) {
  if (context == nullptr) return;
  absl::MutexLock lock(&mutex_);
  contexts_.erase(std::find(contexts_.begin(), contexts_.end(), context));
}

}  // namespace voxserve
