#pragma once

// DeviceArbiter decides which batches run side by side on one device, and which one has the device to itself.
//
// - Batches run side by side, each in a context that keeps its own memory.
// - A batch that ran out of the GPU's memory runs again alone, after every context has released its GPU memory. If it
//   does not fit then, no batch of its size can.
// - A batch whose time is measured runs alone too, since batches beside it would distort the time.
// - Threads: thread-safe. Calls block while another batch runs alone. A std::bad_alloc from a batch becomes
//   RESOURCE_EXHAUSTED.

#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/executor/executor.h"
#include "engine/runtime/execution_context.h"

namespace voxserve {

class DeviceArbiter {
 public:
  // Runs one batch by the options that it gets: the caller's, in which the arbiter sets may_make_maps_on_cpu and, in a
  // last attempt, clears `plans`.
  using RunBatch = std::function<BatchOutput(const RunOptions&)>;

  // Runs the batch, and again while it runs out of the GPU's memory, up to three times. A batch on the CPU runs once.
  //   1. beside others;
  //   2. alone; if its maps (levels and rulebooks) do not fit the GPU then, they are made on the CPU;
  //   3. alone, by the default plan, which may need less memory than a tuned one.
  BatchOutput RunWithRetry(const RunOptions& options, const RunBatch& run);
  // Runs the batch once, beside others. Use it for a batch that the caller can divide if it runs out of memory.
  BatchOutput TryOnce(const RunOptions& options, const RunBatch& run);
  // Runs the batch with the device to itself, up to three times like RunWithRetry. It waits for running batches to end,
  // and batches that arrive meanwhile wait for it.
  BatchOutput RunExclusive(const RunOptions& options, const RunBatch& run);

  // Add registers a context of the device, and Remove unregisters it. In between, the context runs batches only through
  // the methods above. Both ignore nullptr: an execution context on the CPU has no CudaContext.
  void Add(CudaContext* context);
  void Remove(CudaContext* context);

 private:
  BatchOutput RunWithEverything(const RunOptions& options, const RunBatch& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(running_);
  size_t num_contexts() const;

  absl::Mutex running_;        // shared by the batches that run
  mutable absl::Mutex mutex_;  // not held while a batch runs, so that contexts can be added and removed meanwhile
  std::vector<CudaContext*> contexts_ ABSL_GUARDED_BY(mutex_);
};

// Adds the context in the constructor and removes it in the destructor.
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
