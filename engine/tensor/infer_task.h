#pragma once

// One request to the engine. The codec makes it, the queue keeps its own data beside it (QueuedTask), and the executor
// reads the inputs from the same object: cloud, sweeps, age feature, sample and the requested outputs. Nothing is
// copied on the way. The type is in engine/tensor because all layers from the executor up use it.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/tensor/dtype.h"
#include "engine/tensor/farthest_points.h"
#include "engine/tensor/infer_result.h"
#include "engine/tensor/output_tensor.h"
#include "engine/tensor/point_cloud.h"
#include "engine/tensor/sweep.h"

namespace voxserve {

struct InferTask {
  std::string model;
  std::string client;       // the requesting client: within a priority, clients take turns; "" counts as a client
  double client_share = 1;  // how much of the device the client has, relative to another one; more than 0
  int64_t version = 0;      // 0: the newest that is ready
  PointCloud cloud;
  bool return_scores = false;
  // Names of the model's tensors to return. Empty: none of a model that has labels or boxes, all of any other model.
  // Admission takes them and sets `tensor_set`, which alone counts from there on.
  std::vector<std::string> tensors;
  std::optional<TensorSet> tensor_set;   // not set: the tensors that a request without names gets
  DType tensor_dtype = DType::kFloat32;  // type of their values, or kFloat16
  // Several sweeps that run together, newest first; `cloud` is the first sweep's cloud. Empty: only `cloud` runs. The
  // points of all sweeps go through the network as one cloud. Labels and scores are returned for the first sweep's
  // points; the model's limits and the result's counts apply to all points.
  std::vector<PlacedSweep> sweeps;
  std::string age_feature;               // the model's feature that holds a sweep's age_seconds; "": none
  std::optional<FarthestPoints> sample;  // returned with the answer; not with several sweeps

  int priority = 0;  // 0 is the most urgent; below the model's priority_levels
  // Times by SteadyNow.
  absl::Time deadline = absl::InfiniteFuture();  // infinite: now + the model's default_timeout
  // The time when the replaced task began to wait, if this task takes the place of another in the queue.
  absl::Time waiting_since = absl::InfiniteFuture();
  // The time when the cloud arrived, if that was before Submit. Stage::kQueue counts from then on.
  absl::Time arrived = absl::InfiniteFuture();
  // The engine calls it exactly once, on the caller's thread (refusals) or on one of its own threads. It must not
  // block.
  std::function<void(absl::StatusOr<InferResult>)> done;

  // Returns the number of points that run, in all sweeps together.
  int64_t num_points() const { return static_cast<int64_t>(sweeps.empty() ? cloud.num_points() : NumPoints(sweeps)); }
  // Returns the bytes of all clouds that run.
  int64_t num_bytes() const {
    if (sweeps.empty()) return static_cast<int64_t>(cloud.bytes().size());
    int64_t sum = 0;
    for (const PlacedSweep& placed : sweeps) sum += static_cast<int64_t>(placed.sweep->cloud.bytes().size());
    return sum;
  }
  // Returns how many of the points are answered: those of the first sweep, which come first.
  int64_t num_answers() const {
    return static_cast<int64_t>(sweeps.empty() ? cloud.num_points() : sweeps.front().sweep->cloud.num_points());
  }
};

// Returns true if both tasks' tensors are the same, in the same type of values.
inline bool HaveSameTensors(const InferTask& a, const InferTask& b) {
  return a.tensor_set == b.tensor_set && (a.tensor_dtype == b.tensor_dtype || a.tensor_set.value_or(0) == 0);
}

// The tasks of a batch, as references. Their owner keeps them alive.
using BatchTasks = absl::Span<const InferTask* const>;

}  // namespace voxserve
