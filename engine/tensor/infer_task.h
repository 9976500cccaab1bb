#pragma once

// An InferTask is one request to the engine. The codec makes it. The queue stores the task with data of its own
// (QueuedTask), and the executor reads the cloud, the sweeps and the requested outputs from the same object, so nothing
// is copied on the way. The type is in engine/tensor because all parts from the executor up use it.

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
  double client_share = 1;  // weight of the client's share of the device, relative to other clients; more than 0
  int64_t version = 0;      // 0: the newest that is ready
  PointCloud cloud;
  bool return_scores = false;
  // Names of the model's tensors to return. Empty: none of a model that has labels or boxes, all of any other model.
  // Admission converts the names to `tensor_set`; the executor reads only tensor_set.
  std::vector<std::string> tensors;
  std::optional<TensorSet> tensor_set;   // not set: the tensors that a request without names gets
  DType tensor_dtype = DType::kFloat32;  // type of the returned tensors' values: kFloat32 or kFloat16
  // Several sweeps that run together, newest first; `cloud` is the first sweep's cloud. Empty: only `cloud` runs. The
  // points of all sweeps go through the network as one cloud. Labels and scores are returned for the first sweep's
  // points; the model's limits and the result's counts apply to all points.
  std::vector<PlacedSweep> sweeps;
  std::string age_feature;               // the model's feature that holds a sweep's age_seconds; "": none
  std::vector<FeatureWarning> warnings;  // of the cloud; admission finds them, and the result gets them
  std::optional<FarthestPoints> sample;  // points to select and return with the answer; not with several sweeps

  int priority = 0;  // 0 is the most urgent; below the model's priority_levels
  // The following times are by SteadyNow.
  absl::Time deadline = absl::InfiniteFuture();  // infinite: the model's default_timeout after Submit
  // The time when the replaced task began to wait, if this task takes the place of another in the queue.
  absl::Time waiting_since = absl::InfiniteFuture();
  // The time when the cloud arrived, if that was before Submit. The time of Stage::kQueue then begins here.
  absl::Time arrived = absl::InfiniteFuture();
  // The engine calls `done` exactly once: on the thread that calls Submit if the request is refused there, else on one
  // of the engine's threads. `done` must not block.
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

// Returns true if both tasks ask for the same tensors with values of the same type. Without tensors the type does not
// matter.
inline bool HaveSameTensors(const InferTask& a, const InferTask& b) {
  return a.tensor_set == b.tensor_set && (a.tensor_dtype == b.tensor_dtype || a.tensor_set.value_or(0) == 0);
}

// The tasks of a batch, as references. Their owner keeps them alive.
using BatchTasks = absl::Span<const InferTask* const>;

}  // namespace voxserve
