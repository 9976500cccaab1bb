#pragma once

// What one sample of a batch gets.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/tensor/box.h"
#include "engine/tensor/point_counts.h"

namespace voxserve {

struct SampleOutput {
  // INVALID_ARGUMENT where the sample alone is at fault (missing field, too many voxels); the rest is empty then.
  absl::Status status;
  // Of the cloud's points; of several sweeps: of the newest one's.
  std::vector<uint8_t> labels;          // [num_points] uint8 or uint16, little endian; empty without labels
  std::vector<float> scores;            // [num_points, num_classes]; empty unless asked for
  std::vector<Box> boxes;               // in the network's order; empty without boxes
  PointCounts counts;                   // of all points
  std::vector<int32_t> sampled_points;  // [SampleInput::sample->num_points] indices, in the order of selection
};

}  // namespace voxserve
