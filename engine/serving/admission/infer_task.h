#pragma once

// One request to the engine and its answer.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/tensor/box.h"
#include "engine/tensor/farthest_points.h"
#include "engine/tensor/point_cloud.h"
#include "engine/tensor/point_counts.h"
#include "engine/tensor/sweep.h"

namespace voxserve {

struct InferResult {
  std::string model;
  int64_t version = 0;
  std::string device;           // "cpu", "cuda:0"
  bool has_labels = true;       // of the model: what follows, to scores
  std::vector<uint8_t> labels;  // [num_points of the cloud * bytes_per_label], little endian
  int bytes_per_label = 1;
  int ignore_label = 255;
  int num_classes = 0;
  std::vector<float> scores;             // [num_points, num_classes] logits; empty unless asked for
  bool has_boxes = false;                // of the model: the next two
  std::vector<Box> boxes;                // in the order in which the network keeps them
  std::vector<std::string> class_names;  // by class_id; ids beyond it have no name
  PointCounts counts;                    // of all points that ran: those of every sweep
  // Of InferTask::sample: indices into the cloud, in the order of selection.
  std::vector<int32_t> sampled_points;
  // queue, copy_in, sample, voxelize, geometry, features, head, copy_out, as far as they ran.
  std::vector<StageTime> stages;
};

struct InferTask {
  std::string model;
  int64_t version = 0;  // 0: the newest that is ready
  PointCloud cloud;
  bool return_scores = false;
  std::optional<FarthestPoints> sample;  // that the answer returns; not of several sweeps
  // When the task that this one replaces began to wait: it takes that one's place in the queue.
  absl::Time waiting_since = absl::InfiniteFuture();
  // When it came to whoever submits it later, if so: the stage "queue" counts from then.
  absl::Time arrived = absl::InfiniteFuture();
  int priority = 0;                              // 0 is the most urgent; below the model's priority_levels
  absl::Time deadline = absl::InfiniteFuture();  // none: now + the model's default_timeout
  // Several sweeps that are run together, newest first: `cloud` is that of the first. Empty: the cloud alone. Labels
  // and scores are of the first sweep's points; the model's limits and the result's counts are of all points.
  std::vector<PlacedSweep> sweeps;
  std::string age_feature;  // of the model: what it reads there is a sweep's age_seconds; "": nothing is
  // Called exactly once, from the caller's thread (refusals) or one of the engine's. Must not block.
  std::function<void(absl::StatusOr<InferResult>)> done;

  // That run, of all sweeps.
  uint64_t num_points() const { return sweeps.empty() ? cloud.num_points() : NumPoints(sweeps); }
};

}  // namespace voxserve
