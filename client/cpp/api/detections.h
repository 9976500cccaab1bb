#pragma once

// What a model with boxes answers to a point cloud.

#include <cstdint>
#include <string>
#include <vector>

#include "client/cpp/api/answer.h"

namespace voxserve::client {

// In the cloud's coordinates: metres, radians about z, metres a second. All numbers are finite.
struct Box {
  uint32_t class_id = 0;   // of the model's classes
  std::string class_name;  // empty where the model's configuration names none
  float score = 0;         // 0 to 1
  float x = 0;             // the centre
  float y = 0;
  float z = 0;
  float length = 0;  // along the box's own x axis
  float width = 0;   // along its own y axis
  float height = 0;
  float yaw = 0;         // of its x axis, from the cloud's x axis towards y, -pi to pi
  float velocity_x = 0;  // in the cloud's axes; 0 of a model without velocities (ModelVersion.has_velocities)
  float velocity_y = 0;
};

struct Detections : Answer {
  std::vector<Box> boxes;  // head after head of the network, each head's by score, the best first
};

}  // namespace voxserve::client
