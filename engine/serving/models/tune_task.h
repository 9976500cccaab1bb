#pragma once

// A TuneTask asks the engine to search a plan for a model on the scans that the model serves (Engine::Tune, which lists
// the errors). A plan says how each convolution of the model runs; a scan is the input of one request. TuneProgress
// tells how far the search is, and TuneResult what it has found.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace voxserve {

struct TuneProgress {
  std::string stage;    // "waiting for scans", "candidates", ...
  double fraction = 0;  // of the whole search, 0 to 1
};

// The model's times in one range of input sizes, by the default plan and by the plan found. Each range has its own
// plan.
struct TuneBucket {
  int64_t min_voxels = 0;  // the range is min_voxels <= voxels < max_voxels
  int64_t max_voxels = 0;  // 0: the range has no upper end
  int num_scans = 0;
  absl::Duration default_time;  // from points to labels, the median over the scans, by the default plan
  absl::Duration tuned_time;    // the same by the plan found
};

struct TuneResult {
  std::string device;  // "cuda:0", where the search ran; the plan is used on every device of its kind
  int num_scans = 0;
  std::vector<TuneBucket> buckets;
  absl::Duration search_time;
  std::string path;  // the plan's file; empty if it could not be written
};

struct TuneTask {
  std::string model;
  int64_t version = 0;  // 0: the newest that is ready
  int num_scans = 16;   // the search keeps the scans of this many next requests; 1 to Engine::kMaxTuneScans
  // After this time the search starts with the scans that have come. It starts earlier if 10 minutes have passed since
  // the first scan (PlanTuner::Options::max_scan_age).
  absl::Duration max_wait = absl::Seconds(60);
  // The engine calls both on one of its threads, or `done` on the caller's thread if the call is refused. Neither may
  // block; both may be empty. `done` is called exactly once.
  std::function<void(const TuneProgress&)> on_progress;
  std::function<void(absl::StatusOr<TuneResult>)> done;
};

}  // namespace voxserve
