#pragma once

// DeviceArbiter decides which batches run side by side on one device, and which one has the device to itself. The
// engine owns one per device.
//
// - Batches run side by side, each in a context that keeps its own memory.
// - A batch that ran out of the GPU's memory runs again alone, after every context has released its GPU memory.
// - A batch whose time is measured also runs alone, since other batches would distort the time.
// - Threads: thread-safe. Calls block while another batch runs alone. A std::bad_alloc from a batch becomes
//   RESOURCE_EXHAUSTED.

#include <atomic>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/executor/executor.h"
#include "engine/runtime/execution_context.h"

namespace voxserve {

class DeviceArbiter {
 public:
  // Runs one batch with the given options. They are the caller's options, but the arbiter sets may_make_maps_on_cpu
  // and, for a third attempt, clears `plans`.
  using RunBatch = std::function<BatchReport(const RunOptions&)>;

  // Runs the batch. If an attempt runs out of the GPU's memory, makes the next attempt, up to three. A batch on the CPU
  // runs once, and once more alone if another batch ran beside it and the host's memory was full.
  //   1. beside other batches;
  //   2. alone, after every context has released its GPU memory; if the maps (levels and rulebooks) still do not fit
  //      the GPU, they are made on the CPU;
  //   3. alone, by the default plan, which may need less memory than a tuned one; only if `plans` is set.
  BatchReport RunWithRetry(const RunOptions& options, const RunBatch& run);
  // Runs the batch once, beside other batches. Use it for a batch that the caller can divide if the batch runs out of
  // memory.
  BatchReport TryOnce(const RunOptions& options, const RunBatch& run);
  // Makes the attempts of RunWithRetry, but also the first one alone. Waits for running batches to end; batches that
  // arrive meanwhile wait until this one has ended.
  BatchReport RunExclusive(const RunOptions& options, const RunBatch& run);

  // Add registers a context of the device, and Remove unregisters it. In between, the context runs batches only through
  // the methods above. Both ignore nullptr: an execution context on the CPU has no CudaContext.
  void Add(CudaContext* context);
  void Remove(CudaContext* context);

 private:
  // Runs the batch beside others. Sets was_beside if another one ran when it began or when it ended.
  BatchReport TryBesideOthers(const RunOptions& options, const RunBatch& run, bool may_make_maps_on_cpu,
                              bool* was_beside) ABSL_SHARED_LOCKS_REQUIRED(running_);
  BatchReport RunWithEverything(const RunOptions& options, const RunBatch& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(running_);
  size_t num_contexts() const;

  absl::Mutex running_;                   // shared by the batches that run
  std::atomic<int> num_side_by_side_{0};  // batches in the first attempt of RunWithRetry, or in TryOnce
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
