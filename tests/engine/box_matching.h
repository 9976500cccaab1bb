#pragma once

// Boxes of two answers that should be the same, whatever their order.

#include <array>
#include <string>
#include <vector>

#include "tests/support/npz.h"

namespace voxserve {

// x, y, z, length, width, height, yaw, velocity x and y, score, class, as networks.npz has them.
using BoxRow = std::array<float, 11>;

// The engine's boxes, or the C++ client's.
template <typename Box>
std::vector<BoxRow> RowsOf(const std::vector<Box>& boxes) {
  std::vector<BoxRow> rows;
  for (const Box& box : boxes) {
    rows.push_back({box.x, box.y, box.z, box.length, box.width, box.height, box.yaw, box.velocity_x, box.velocity_y,
                    box.score, static_cast<float>(box.class_id)});
  }
  return rows;
}

// Of a float32 array [num_boxes, 11].
std::vector<BoxRow> RowsOf(const support::NpyArray& boxes);

// What two boxes that are the same may differ by.
struct BoxTolerance {
  float number = 0;  // metres, radians, metres a second
  float score = 0;
};

struct BoxMatches {
  int num_matched = 0;
  std::vector<BoxRow> missing;  // of those expected
  std::vector<BoxRow> others;   // that nobody expected

  std::string ToString() const;
};

// Each box at most once, with the closest one of its class.
BoxMatches MatchBoxes(const std::vector<BoxRow>& boxes, const std::vector<BoxRow>& expected,
                      const BoxTolerance& tolerance);

}  // namespace voxserve
