#pragma once

// ModelMetrics holds the numbers that are counted for one model: its Prometheus series, looked up once, and the status
// page's values for the last minute. ModelStatistics and ModelTotals are copies of them for readers. Not thread-safe:
// the owner, Metrics, locks.

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "engine/serving/admission/drop_reason.h"
#include "engine/tensor/stage.h"
#include "server/metrics/recent_histogram.h"
#include "server/metrics/recent_rate.h"

namespace voxserve {

// Return the upper ends of the histograms' buckets.
const prometheus::Histogram::BucketBoundaries& DurationBuckets();    // in seconds
const prometheus::Histogram::BucketBoundaries& RequestBuckets();     // requests of a batch
const prometheus::Histogram::BucketBoundaries& SizeBuckets();        // points or voxels of a batch
const prometheus::Histogram::BucketBoundaries& ErrorRatioBuckets();  // |predicted - actual| / actual

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

struct StageMetrics {
  prometheus::Histogram& total;
  RecentHistogram recent{&DurationBuckets()};
};

struct ModelMetrics {
  struct Dropped {
    prometheus::Counter& total;
    RecentRate recent = {};
  };

  std::string label;
  prometheus::Counter& frames;
  prometheus::Counter& used;
  prometheus::Counter& invalid;
  prometheus::Counter& out_of_range;
  prometheus::Counter& dropped_points;
  prometheus::Counter& unsampled;
  prometheus::Counter& not_finite;
  prometheus::Counter& negative_ages;
  prometheus::Counter& stale_ages;
  prometheus::Counter& device_seconds;
  prometheus::Histogram& request_duration;
  prometheus::Histogram& refusal_duration;
  prometheus::Histogram& frame_age;
  prometheus::Histogram& batch_requests;
  prometheus::Histogram& batch_points;
  prometheus::Histogram& batch_voxels;
  prometheus::Histogram& prediction_error;
  std::vector<Dropped> dropped = {};  // by DropReason; each series exists from the start, so rates see the first event
  std::map<Stage, StageMetrics> stages = {};
  prometheus::Counter* boxes = nullptr;  // only for a model that has answered with boxes, even with 0 boxes

  // The pointers are null, and no such series exists, while no version of the model is listed (announced and not
  // removed).
  int64_t queue_tasks = 0;
  int64_t open_streams = 0;
  prometheus::Gauge* queue_depth = nullptr;
  prometheus::Gauge* streams = nullptr;

  absl::Time last_success = absl::InfinitePast();

  // These values are for the status page.
  std::map<std::string, int64_t> failures = {};  // by code
  RecentRate recent_frames = {};
  RecentHistogram recent_latency{&DurationBuckets()};
  RecentHistogram recent_refusals{&DurationBuckets()};
  RecentHistogram recent_frame_age{&DurationBuckets()};
  RecentHistogram recent_batch_requests{&RequestBuckets()};
  RecentHistogram recent_batch_points{&SizeBuckets()};
  RecentHistogram recent_batch_voxels{&SizeBuckets()};
  RecentHistogram recent_prediction_error{&ErrorRatioBuckets()};

  // Returns everything but the plans.
  ModelStatistics Statistics(absl::Time now) const;
  ModelTotals Totals() const;
};

}  // namespace voxserve
