#pragma once

// An object that a detection network found.

#include <cstdint>

namespace voxserve {

// In the cloud's coordinates: metres, radians about z, metres a second.
struct Box {
  int32_t class_id = 0;
  float score = 0;  // 0 to 1
  float x = 0;      // the centre
  float y = 0;
  float z = 0;
  float length = 0;  // along the box's own x axis
  float width = 0;   // along its own y axis
  float height = 0;
  float yaw = 0;         // of its x axis, from the cloud's x axis towards y, -pi to pi
  float velocity_x = 0;  // in the cloud's axes
  float velocity_y = 0;
};

// Reads a row as kernels make them (kernels/boxes/box_rows.h).
Box BoxOf(const float* row);

}  // namespace voxserve
