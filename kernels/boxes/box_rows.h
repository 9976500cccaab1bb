#pragma once

// A box is a row of float32. Heads write these rows, non-maximum suppression reads them, and answers are made from
// them. Every sample has one row for each box that it can have at most. Its boxes come first, the best one first; the
// rows behind its last box have the score kNoBox.

#include <cstdint>

namespace voxserve::kernels {

enum BoxColumn : int32_t {
  kBoxX = 0,  // the centre, metres
  kBoxY,
  kBoxZ,
  kBoxLength,  // along the box's own x, y and z, metres
  kBoxWidth,
  kBoxHeight,
  kBoxYaw,        // radians about z, from x towards y
  kBoxVelocityX,  // metres per second; 0 where the network has none
  kBoxVelocityY,
  kBoxScore,  // 0 to 1
  kBoxClass,  // an id, as a float
};
inline constexpr int32_t kBoxColumns = 11;
inline constexpr int32_t kBoxPitch = 12;  // values from row to row: 16 bytes, as all rows are padded to
inline constexpr float kNoBox = -1;

}  // namespace voxserve::kernels
