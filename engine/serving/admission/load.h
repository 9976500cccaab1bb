#pragma once

// Load is the size of one request or of several. Queues count it, and the latency model predicts from it.

#include <cstdint>

#include "engine/tensor/infer_task.h"

namespace voxserve {

struct Load {
  static Load Of(const InferTask& task);

  Load& operator+=(const Load& other);
  Load& operator-=(const Load& other);
  // Returns `factor` times the load; sizes are rounded towards zero, the number of requests to the nearest.
  Load Scaled(double factor) const;

  // Returns the number of points that the network sees.
  int64_t network_points() const { return points - unseen_points; }

  int64_t requests = 0;
  int64_t points = 0;  // of the requests' clouds
  int64_t bytes = 0;
  // Samples of farthest points that requests ask for. A network's own sample counts as part of the network's time.
  int64_t samples = 0;
  int64_t sampled_points = 0;   // points of the clouds that are sampled
  int64_t selected_points = 0;  // points in the samples
  int64_t unseen_points = 0;    // points that the network does not see, since it sees the cloud's sample alone
};

}  // namespace voxserve
