#pragma once

// One thread with one execution context: takes batches from the batcher, runs them, answers their tasks. Ends when the
// batcher has stopped and is empty; the destructor waits for that, so stop the batcher first.

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "engine/graph/executor.h"
#include "engine/runtime/execution_context.h"
#include "engine/serving/batcher.h"
#include "engine/serving/engine_observer.h"

namespace voxserve {

class Worker {
 public:
  struct Options {
    std::string device = "cpu";
    kernels::ThreadPool* pool = nullptr;  // outlives the worker, as do batcher and observer
    Batcher* batcher = nullptr;
    EngineObserver* observer = nullptr;  // may be null
  };

  explicit Worker(Options options);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

 private:
  void Loop();
  void Run(Batch& batch);
  void Report(const Batch& batch, const BatchOutput& output, std::chrono::steady_clock::time_point started);

  const Options options_;
  ExecutionContext context_;
  Executor executor_;
  std::thread thread_;
};

}  // namespace voxserve
