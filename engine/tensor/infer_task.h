#pragma once

// One request to the engine. The codec makes it, the queue keeps its own data beside it (QueuedTask), and the executor
// reads from the same object what is to be run: cloud, sweeps, age feature, sample and the outputs that are asked for.
// Nothing is copied on the way. It lies here since every storey from the executor up knows it.

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
#include "engine/tensor/point_cloud.h"
#include "engine/tensor/sweep.h"

namespace voxserve {

struct InferTask {
  std::string model;
  std::string client;   // who asks: within a priority, clients take turns; "" is one of them
  int64_t version = 0;  // 0: the newest that is ready
  PointCloud cloud;
  bool return_scores = false;
  // Names of the model's tensors that are answered. Empty: none of a model that has labels or boxes, all of another.
  std::vector<std::string> tensors;
  DType tensor_dtype = DType::kFloat32;  // of their values; or kFloat16
  // Several sweeps that are run together, newest first: `cloud` is that of the first. Empty: the cloud alone. All
  // points go through the network as one cloud's. Labels and scores are of the first sweep's points; the model's limits
  // and the result's counts are of all points.
  std::vector<PlacedSweep> sweeps;
  std::string age_feature;               // the model's feature that is a sweep's age_seconds; "": none is
  std::optional<FarthestPoints> sample;  // that the answer returns; not of several sweeps

  int priority = 0;                              // 0 is the most urgent; below the model's priority_levels
  absl::Time deadline = absl::InfiniteFuture();  // none: now + the model's default_timeout
  // When the task that this one replaces began to wait: it takes that one's place in the queue.
  absl::Time waiting_since = absl::InfiniteFuture();
  // When the cloud came, if that was before Submit: Stage::kQueue counts from then.
  absl::Time arrived = absl::InfiniteFuture();
  // Called exactly once, from the caller's thread (refusals) or one of the engine's. Must not block.
  std::function<void(absl::StatusOr<InferResult>)> done;

  // Returns the number of points that run, of all sweeps.
  int64_t num_points() const { return static_cast<int64_t>(sweeps.empty() ? cloud.num_points() : NumPoints(sweeps)); }
  // Returns the bytes of their clouds.
  int64_t num_bytes() const {
    if (sweeps.empty()) return static_cast<int64_t>(cloud.bytes().size());
    int64_t sum = 0;
    for (const PlacedSweep& placed : sweeps) sum += static_cast<int64_t>(placed.sweep->cloud.bytes().size());
    return sum;
  }
  // Returns how many of them are answered: the first ones.
  int64_t num_answers() const {
    return static_cast<int64_t>(sweeps.empty() ? cloud.num_points() : sweeps.front().sweep->cloud.num_points());
  }
};

// The tasks of a batch: references to what their owner keeps.
using BatchTasks = absl::Span<const InferTask* const>;

}  // namespace voxserve
