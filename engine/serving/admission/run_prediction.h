#pragma once

// When a task that comes now would run: what admission goes by.
//
// Ahead of it counts all work that waits at its level or a more urgent one, in batches as full as they can be (so no
// later task of its level can break what it was promised), and what runs. The devices do one second of device time a
// second each (DeviceLoad); its batch shares its device with a batch of every other stream. What runs counts with its
// expected time, what waits with its Bound.

#include <vector>

#include "absl/time/time.h"
#include "engine/serving/admission/batch_costs.h"
#include "engine/serving/admission/device_load.h"
#include "engine/serving/admission/task_queue.h"

namespace voxserve {

// From now on, of the batch that the task will be in.
struct RunPrediction {
  absl::Duration start;
  absl::Duration end;
};

RunPrediction PredictRun(const TaskQueue& queue, const std::vector<DeviceLoad>& devices,
                         const MaxBatchBytes& max_batch_bytes, const ServedModel& model, const WaitingTask& task,
                         absl::Time now);

}  // namespace voxserve
