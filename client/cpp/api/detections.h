#pragma once

// Detections is the answer of a model with boxes to a point cloud.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/cpp/api/answer.h"

namespace voxserve::client {

// A box in the cloud's coordinates: metres, radians about z, metres per second. All numbers are finite.
struct Box {
  uint32_t class_id = 0;   // id of one of the model's classes
  std::string class_name;  // empty if the model's configuration does not name it
  float score = 0;         // 0 to 1
  float x = 0;             // the centre
  float y = 0;
  float z = 0;
  float length = 0;  // along the box's own x axis
  float width = 0;   // along its own y axis
  float height = 0;
  float yaw = 0;         // angle of the box's x axis, from the cloud's x axis towards y, -pi to pi
  float velocity_x = 0;  // in the cloud's axes; 0 if the model has no velocities (ModelVersion.has_velocities)
  float velocity_y = 0;
  // From a model that decodes boxes from queries: the number of the box's query, 0 for the cloud's best peak. It is the
  // row of the box in the model's tensors of queries.
  std::optional<uint32_t> query = std::nullopt;
};

struct Detections : Answer {
  std::vector<Box> boxes;  // ordered by the network's head, then by score, best first
};

}  // namespace voxserve::client
