#pragma once

// FakeBatcher owns a Batcher, a fake model and a clock that stands still until a test moves it. Batches are never
// computed: a test reads which tasks are in a batch (Pop), and which tasks were answered.

#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "engine/serving/admission/batcher.h"
#include "engine/serving/admission/engine_observer.h"
#include "tests/engine/serving/admission/fake_model.h"

namespace voxserve {

// Records what the batcher reports. Any thread may call its methods.
class QueueObserver final : public EngineObserver {
 public:
  void OnPrediction(std::string_view, absl::Duration predicted, absl::Duration actual) override {
    absl::MutexLock lock(&mutex_);
    predictions.emplace_back(predicted, actual);
  }
  void OnDropped(std::string_view, DropReason reason) override {
    if (!has_memory) throw std::bad_alloc();
    absl::MutexLock lock(&mutex_);
    dropped.emplace_back(NameOf(reason));
  }
  void OnQueueDepth(std::string_view model, int64_t tasks) override {
    if (!has_memory) throw std::bad_alloc();
    absl::MutexLock lock(&mutex_);
    depth[std::string(model)] = tasks;
  }

  bool has_memory = true;  // if false, OnDropped and OnQueueDepth throw std::bad_alloc
  // Tests read these when no other thread writes them.
  std::vector<std::pair<absl::Duration, absl::Duration>> predictions;  // predicted, actual
  std::vector<std::string> dropped;
  std::map<std::string, int64_t> depth;

 private:
  absl::Mutex mutex_;
};

struct FakeBatcher {
  struct Options {
    int64_t max_queue_requests = 1000;
    int64_t max_queue_bytes = 1'000'000'000;
    std::vector<int> num_workers = {1};
    MaxBatchBytes max_batch_bytes = UnlimitedBytes;
    absl::Duration max_batch_time = absl::InfiniteDuration();
  };
  struct TaskOptions {
    int64_t points = 1;
    absl::Duration timeout = absl::Milliseconds(900);  // infinite: no deadline
    int priority = 0;
    std::shared_ptr<ServedModel> model;  // null: the batcher's
    std::string client;
  };

  FakeBatcher() : FakeBatcher(Options()) {}
  explicit FakeBatcher(Options options, ModelConfig::Batching batching = {})
      : model(FakeModel("m", batching, static_cast<int>(options.num_workers.size()))),
        batcher({.max_queue_requests = options.max_queue_requests,
                 .max_queue_bytes = options.max_queue_bytes,
                 .num_workers = std::move(options.num_workers),
                 .max_batch_bytes = std::move(options.max_batch_bytes),
                 .max_batch_time = options.max_batch_time,
                 .observer = &observer,
                 .now = [this] { return clock.now(); },
                 .has_timer = false}) {}

  Batcher* operator->() { return &batcher; }

  // Gives the latency models so many times of batches that they predict (2 ms + 4 ms a request) * slowdown.
  void Teach(double slowdown = 1) { TeachModel(*model, slowdown); }
  static void TeachModel(ServedModel& model, double slowdown = 1) {
    for (const auto& on_device : model.on_device) {
      for (int i = 0; i < 200; ++i) {
        const int64_t requests = 1 + i % 8;
        on_device.latency->Observe({.requests = requests},
                                   absl::Milliseconds(slowdown * (2 + 4.0 * static_cast<double>(requests))));
      }
    }
  }

  QueuedTask Task(uint64_t ticket, const TaskOptions& options) {
    QueuedTask task = FakeTask(ticket, options.model ? options.model : model, &answer(ticket), options.points);
    task.task.priority = options.priority;
    task.task.client = options.client;
    task.task.deadline = clock.now() + options.timeout;
    return task;
  }
  QueuedTask Task(uint64_t ticket) { return Task(ticket, TaskOptions()); }
  absl::Status Push(uint64_t ticket, const TaskOptions& options) {
    QueuedTask task = Task(ticket, options);
    return batcher.Push(task);
  }
  absl::Status Push(uint64_t ticket) { return Push(ticket, TaskOptions()); }

  // Takes the next batch for a device and returns its tickets. The batcher never learns that the batch has ended.
  std::vector<uint64_t> Pop(size_t device = 0) {
    std::vector<uint64_t> tickets;
    for (const QueuedTask& task : batcher.TryPop(device).tasks) tickets.push_back(task.ticket);
    return tickets;
  }

  Answer& answer(uint64_t ticket) { return answers[ticket]; }

  FakeClock clock;
  QueueObserver observer;
  std::map<uint64_t, Answer> answers;
  std::shared_ptr<ServedModel> model;
  Batcher batcher;
};

}  // namespace voxserve
