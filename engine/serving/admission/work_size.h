#pragma once

// WorkSize is the size of one request, or the total size of several. Queues are limited by it, and LatencyModel
// predicts device time from it.

#include <cstdint>

#include "engine/tensor/infer_task.h"

namespace voxserve {

struct WorkSize {
  static WorkSize Of(const InferTask& task);

  WorkSize& operator+=(const WorkSize& other);
  WorkSize& operator-=(const WorkSize& other);
  // Returns `factor` times the load. The number of requests is rounded to the nearest, the other fields towards zero.
  WorkSize Scaled(double factor) const;

  // Returns the number of points that the network runs on.
  int64_t network_points() const { return points - unseen_points; }

  int64_t requests = 0;
  int64_t points = 0;  // of the requests' clouds
  int64_t bytes = 0;   // of the requests' clouds
  // Number of requests that ask for a farthest point sample. A sample that the network itself takes is not counted: its
  // time is part of the network's time.
  int64_t selections = 0;
  int64_t sampled_points = 0;   // points of the clouds that are sampled
  int64_t selected_points = 0;  // points in the samples
  int64_t unseen_points = 0;    // points that do not reach the network, which runs on the cloud's sample alone
};

}  // namespace voxserve
