#include "engine/serving/shared_memory.h"

#include <algorithm>
#include <new>

#include "engine/base/error_reason.h"

namespace voxserve {
namespace {

// Without this a request that asks for more than the machine has would end the process.
BatchOutput RunCatching(const SharedMemory::RunBatch& run, const RunOptions& options) {
  try {
    return run(options);
  } catch (const std::bad_alloc&) {
    BatchOutput output;
    output.status =
        WithReason(absl::ResourceExhaustedError("the batch does not fit into memory"), error_reason::kOutOfMemory);
    return output;
  }
}

bool HadNoRoom(const BatchOutput& output) { return ReasonOf(output.status) == error_reason::kOutOfMemory; }

}  // namespace

BatchOutput SharedMemory::Run(const RunOptions& options, const RunBatch& run) {
  {
    RunOptions wanted = options;
    absl::ReaderMutexLock lock(&running_);
    wanted.may_make_maps_on_cpu = num_contexts() <= 1;
    BatchOutput output = RunCatching(run, wanted);
    if (num_contexts() == 0 || !HadNoRoom(output)) return output;
  }
  absl::WriterMutexLock lock(&running_);
  return RunWithEverything(options, run);
}

BatchOutput SharedMemory::RunOnce(const RunOptions& options, const RunBatch& run) {
  RunOptions wanted = options;
  absl::ReaderMutexLock lock(&running_);
  wanted.may_make_maps_on_cpu = false;
  return RunCatching(run, wanted);
}

BatchOutput SharedMemory::RunAlone(const RunOptions& options, const RunBatch& run) {
  RunOptions wanted = options;
  absl::WriterMutexLock lock(&running_);
  wanted.may_make_maps_on_cpu = num_contexts() <= 1;
  BatchOutput output = RunCatching(run, wanted);
  if (num_contexts() == 0 || !HadNoRoom(output)) return output;
  return RunWithEverything(options, run);
}

BatchOutput SharedMemory::RunWithEverything(const RunOptions& options, const RunBatch& run) {
  if constexpr (kernels::kHasCuda) {
    absl::MutexLock lock(&mutex_);
    for (CudaContext* context : contexts_) context->ReleaseMemory();
  }
  RunOptions wanted = options;
  wanted.may_make_maps_on_cpu = true;
  BatchOutput output = RunCatching(run, wanted);
  if (!HadNoRoom(output) || wanted.plans == nullptr) return output;
  wanted.plans = nullptr;
  return RunCatching(run, wanted);
}

size_t SharedMemory::num_contexts() const {
  absl::MutexLock lock(&mutex_);
  return contexts_.size();
}

void SharedMemory::Add(CudaContext* context) {
  if (context == nullptr) return;
  absl::MutexLock lock(&mutex_);
  contexts_.push_back(context);
}

void SharedMemory::Remove(CudaContext* context) {
  if (context == nullptr) return;
  absl::MutexLock lock(&mutex_);
  contexts_.erase(std::find(contexts_.begin(), contexts_.end(), context));
}

}  // namespace voxserve
