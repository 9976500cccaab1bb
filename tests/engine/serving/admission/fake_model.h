#pragma once

// Makes models without a network, tasks for these models, and a clock that tests move. Tests of queues and of latency
// predictions use them.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "engine/serving/admission/task_queue.h"
#include "engine/serving/models/model_table.h"

namespace voxserve {

inline std::shared_ptr<ServedModel> FakeModel(const std::string& name = "m", ModelConfig::Batching batching = {},
                                              int num_devices = 1) {
  auto model = std::make_shared<ServedModel>();
  model->info.name = name;
  model->info.version = 1;
  model->info.priority_levels = batching.priority_levels;
  model->batching = batching;
  model->on_device.resize(static_cast<size_t>(num_devices));
  return model;
}

class FakeClock {
 public:
  absl::Time now() const { return now_; }
  void Advance(absl::Duration duration) { now_ += duration; }
  void AdvanceTo(absl::Time time) { now_ = std::max(now_, time); }

 private:
  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
};

// Records the answers of a task: their number, and the status of the last one. The number is 0 until the task ends.
struct Answer {
  int calls = 0;
  absl::Status status;
};

// Returns a task with a cloud of num_points points of 4 bytes. The task writes its answer to `answer`, which must
// outlive the task.
inline QueuedTask FakeTask(uint64_t ticket, const ModelHandle& model, Answer* answer, int64_t num_points = 1) {
  QueuedTask queued;
  queued.ticket = ticket;
  queued.model = model;
  queued.task.model = model->info.name;
  const std::vector<float> points(static_cast<size_t>(num_points));
  queued.task.cloud = *PointCloud::FromFloats({"x"}, points.data(), static_cast<uint64_t>(num_points));
  queued.task.done = [answer](const absl::StatusOr<InferResult>& result) {
    ++answer->calls;
    answer->status = result.status();
  };
  return queued;
}

}  // namespace voxserve
