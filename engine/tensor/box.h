#pragma once

// A Box describes an object that a detection network found.

#include <cstdint>

namespace voxserve {

// Values are in the cloud's coordinates: metres, radians about z, metres per second.
struct Box {
  int32_t class_id = 0;
  float score = 0;  // 0 to 1
  float x = 0;      // x, y and z are the centre
  float y = 0;
  float z = 0;
  float length = 0;  // along the box's own x axis
  float width = 0;   // along the box's own y axis
  float height = 0;
  float yaw = 0;         // angle from the cloud's x axis to the box's x axis, positive towards y, -pi to pi
  float velocity_x = 0;  // along the cloud's axes
  float velocity_y = 0;
  int32_t query = -1;  // the number of its query among its cloud's, the best peak's 0; -1: it comes from no query
};

// Reads a row in the format of kernels/boxes/box_rows.h.
Box BoxOf(const float* row);

}  // namespace voxserve
