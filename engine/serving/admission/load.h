#pragma once

// Load is the size of one request or of several: what queues count, and what the latency model predicts from.

#include <cstdint>

#include "engine/tensor/infer_task.h"

namespace voxserve {

struct Load {
  static Load Of(const InferTask& task);

  Load& operator+=(const Load& other);
  Load& operator-=(const Load& other);
  // Returns so many times the load; sizes are rounded towards zero, the number of requests to the nearest.
  Load Scaled(double factor) const;

  // Points that the network sees.
  int64_t network_points() const { return points - unseen_points; }

  int64_t requests = 0;
  int64_t points = 0;  // of the requests' clouds, as are the bytes
  int64_t bytes = 0;
  // Samples of farthest points that requests ask for; a network's own sample is part of the network's time.
  int64_t samples = 0;
  int64_t sampled_points = 0;   // of the clouds that they are taken from
  int64_t selected_points = 0;  // in the samples
  int64_t unseen_points = 0;    // of clouds of which the network sees the sample alone
};

}  // namespace voxserve
