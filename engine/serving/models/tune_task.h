#pragma once

// TuneTask asks for the search of a plan on the scans that a model serves. TuneProgress tells how far the search is,
// TuneResult what it has found.

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

// The times before and after a search, in a range of input sizes.
struct TuneBucket {
  int64_t min_voxels = 0;  // min <= voxels < max
  int64_t max_voxels = 0;  // 0: no upper end
  int num_scans = 0;
  absl::Duration default_time;  // points to labels, median
  absl::Duration tuned_time;
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
  int64_t version = 0;                          // 0: the newest that is ready
  int num_scans = 16;                           // copies of this many next requests' clouds are kept for the search
  absl::Duration max_wait = absl::Seconds(60);  // for them; then the search starts with those that have come. It starts
                                                // at the latest 10 minutes after the first one (PlanTuner's bounds)
  // The engine calls both from one of its threads; neither may block. done is called exactly once.
  std::function<void(const TuneProgress&)> on_progress;
  std::function<void(absl::StatusOr<TuneResult>)> done;
};

}  // namespace voxserve
