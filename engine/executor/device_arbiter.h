#pragma once

// The contexts of one device, and who may use the memory that the others keep. Batches run side by side. One that found
// no room runs again alone, with everything given back by everybody: then it has room or nobody has. One that is
// measured runs alone too: beside others it would be their times that are compared.
//
// Thread-safe.

#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/executor/executor.h"
#include "engine/runtime/execution_context.h"

namespace voxserve {

class DeviceArbiter {
 public:
  // One batch, of whatever size. The options' plans are the caller's; the rest is decided here.
  using RunBatch = std::function<BatchOutput(const RunOptions&)>;

  // Runs it up to three times: as it is; alone, with the maps on the CPU where the GPU has no room for them even so;
  // and then by the default plan, which may need less than a tuned one. Memory of the host that is missing counts
  // likewise.
  BatchOutput RunWithRetry(const RunOptions& options, const RunBatch& run);
  // Once, as it is: for a batch that can be divided.
  BatchOutput TryOnce(const RunOptions& options, const RunBatch& run);
  // The same with the device to itself: waits for the batches under way and holds back those that come.
  BatchOutput RunExclusive(const RunOptions& options, const RunBatch& run);

  // A context takes part while it is here, and runs nothing but through the methods above. Null (a CPU's): nothing
  // happens.
  void Add(CudaContext* context);
  void Remove(CudaContext* context);

 private:
  BatchOutput RunWithEverything(const RunOptions& options, const RunBatch& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(running_);
  size_t num_contexts() const;

  absl::Mutex running_;        // shared by the batches that run
  mutable absl::Mutex mutex_;  // not held while one runs: contexts come and go meanwhile
  std::vector<CudaContext*> contexts_ ABSL_GUARDED_BY(mutex_);
};

// Adds the context for as long as it lives.
class ContextRegistration {
 public:
  ContextRegistration(DeviceArbiter& arbiter, CudaContext* context) : arbiter_(arbiter), context_(context) {
    arbiter_.Add(context_);
  }
  ~ContextRegistration() { arbiter_.Remove(context_); }
  ContextRegistration(const ContextRegistration&) = delete;
  ContextRegistration& operator=(const ContextRegistration&) = delete;

 private:
  DeviceArbiter& arbiter_;
  CudaContext* const context_;
};

}  // namespace voxserve
