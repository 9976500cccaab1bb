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
  RunOptions wanted = options;
  {
    absl::ReaderMutexLock lock(&mutex_);
    wanted.may_make_maps_on_cpu = contexts_.size() <= 1;
    BatchOutput output = RunCatching(run, wanted);
    if (contexts_.empty() || !HadNoRoom(output)) return output;
  }
  absl::WriterMutexLock lock(&mutex_);
  if constexpr (kernels::kHasCuda) {
    for (CudaContext* context : contexts_) context->ReleaseMemory();
  }
  wanted.may_make_maps_on_cpu = true;
  BatchOutput output = RunCatching(run, wanted);
  if (!HadNoRoom(output) || wanted.plans == nullptr) return output;
  wanted.plans = nullptr;
  return RunCatching(run, wanted);
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
