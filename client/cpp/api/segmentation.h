#pragma once

// Segmentation is the answer of a model with labels to a point cloud.

#include <cstdint>
#include <optional>
#include <vector>

#include "client/cpp/api/answer.h"
#include "client/cpp/api/detections.h"

namespace voxserve::client {

struct Segmentation : Answer {
  std::vector<uint16_t> labels;  // [num_points] class ids; ignore_label for points without a label
  int bytes_per_label = 1;       // 1 or 2: bytes per label on the wire, and enough in a file
  uint16_t ignore_label = 255;
  int num_classes = 0;
  std::vector<float> scores;              // [num_points, num_classes] logits; empty unless requested
  std::optional<std::vector<Box>> boxes;  // from a model with labels and boxes: the boxes, as in Detections
};

}  // namespace voxserve::client
