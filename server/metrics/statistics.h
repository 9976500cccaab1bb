#pragma once

// The statistics that the status page and lookups of models show: copies of numbers that Metrics keeps.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "engine/serving/admission/drop_reason.h"
#include "engine/tensor/stage.h"
#include "server/metrics/recent_histogram.h"

namespace voxserve {

// The status page's values for a model. Distributions cover the last minute. Counts cover the time since the process
// started.
struct ModelStatistics {
  struct Dropped {
    DropReason reason = DropReason::kCancelled;
    int64_t total = 0;
    int64_t last_minute = 0;
  };
  struct Plan {
    int64_t version = 0;
    std::string device;
    std::string source;
  };

  int64_t frames = 0;
  int64_t boxes = 0;
  int64_t queue_depth = 0;
  int64_t streams = 0;                                        // open now
  std::vector<int64_t> frames_history;                        // in each second of the last minute, oldest first
  Distribution latency_seconds;                               // from request to answer, for OK answers
  Distribution refusal_seconds;                               // from request to status, for refused requests
  std::vector<std::pair<Stage, Distribution>> stage_seconds;  // stages of the last minute, in order
  Distribution frame_age_seconds;                             // of clouds with a stamp
  int64_t negative_ages = 0;
  Distribution batch_requests;
  Distribution batch_points;
  Distribution batch_voxels;
  Distribution prediction_error;                          // |predicted - actual| / actual
  std::vector<std::pair<std::string, int64_t>> failures;  // requests by code, without those answered with OK
  std::vector<Dropped> dropped;                           // clouds that did not run, by reason
  std::vector<Plan> plans;                                // plans of the listed versions
};

// Sums over a model's requests since the process started, of all its versions together.
struct ModelTotals {
  struct Sum {
    int64_t count = 0;
    double seconds = 0;
  };
  Sum successes;
  Sum refusals;          // refused Infer requests (Metrics::OnRefusal)
  int64_t failures = 0;  // all requests that did not end with OK, refused ones included
  int64_t batches = 0;
  std::map<Stage, Sum> stages;
  absl::Time last_success = absl::InfinitePast();
};

struct DeviceStatistics {
  std::string device;
  double busy_seconds = 0;  // sum over the device's streams, since the process started
  std::vector<std::pair<std::string, int64_t>> memory_bytes;  // by kind of memory (Metrics::OnDeviceMemory)
};

}  // namespace voxserve
