#pragma once

// Matches the boxes of an answer with expected boxes. The order of boxes does not matter.

#include <array>
#include <string>
#include <vector>

#include "tests/support/npz.h"

namespace voxserve {

// x, y, z, length, width, height, yaw, velocity x and y, score, class: the columns of networks.npz.
using BoxRow = std::array<float, 11>;

// Converts boxes of the engine or of the C++ client.
template <typename Box>
std::vector<BoxRow> RowsOf(const std::vector<Box>& boxes) {
  std::vector<BoxRow> rows;
  for (const Box& box : boxes) {
    rows.push_back({box.x, box.y, box.z, box.length, box.width, box.height, box.yaw, box.velocity_x, box.velocity_y,
                    box.score, static_cast<float>(box.class_id)});
  }
  return rows;
}

// Converts a float32 array [num_boxes, 11].
std::vector<BoxRow> RowsOf(const support::NpyArray& boxes);

// The largest differences between two boxes that count as the same.
struct BoxTolerance {
  float number = 0;  // in metres, radians, or metres per second
  float score = 0;
};

struct BoxMatches {
  int num_matched = 0;
  std::vector<BoxRow> missing;  // expected boxes without a match
  std::vector<BoxRow> others;   // boxes of the answer without a match

  std::string ToString() const;
};

// Matches each expected box in turn with the closest box of the same class that has no match yet. Two boxes match only
// if every number differs by at most the tolerance.
BoxMatches MatchBoxes(const std::vector<BoxRow>& boxes, const std::vector<BoxRow>& expected,
                      const BoxTolerance& tolerance);

}  // namespace voxserve
