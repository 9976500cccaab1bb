#pragma once

// What the server answers to a point cloud.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

struct Stage {
  std::string name;  // decode, queue, copy_in, sample, voxelize, geometry, features, head, copy_out, encode
  absl::Duration duration;
};

struct Segmentation {
  std::string model;
  int64_t version = 0;  // that answered
  std::string device;   // "cpu" or "cuda:N"
  std::string request_id;
  std::vector<uint16_t> labels;  // [num_points] class ids; ignore_label where a point was not labelled
  int bytes_per_label = 1;       // 1 or 2: what a label needs when stored
  uint16_t ignore_label = 255;
  int num_classes = 0;
  std::vector<float> scores;             // [num_points, num_classes] logits; empty unless asked for
  std::vector<uint32_t> sampled_points;  // of InferOptions::sample: indices into the cloud, in the order of selection
  v1::PointCounts counts;
  std::vector<Stage> stages;  // on the server
  absl::Duration round_trip;  // from the call to the decoded answer, as seen here
};

}  // namespace voxserve::client
