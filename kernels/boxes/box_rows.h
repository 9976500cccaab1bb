#pragma once

// Boxes as rows of float32: what heads decode, non-maximum suppression reads and answers are made of. Every sample has
// as many rows as it can have boxes at most, best first; those behind its last box have the score kNoBox.

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
  kBoxVelocityX,  // metres a second; 0 where there is none
  kBoxVelocityY,
  kBoxScore,  // 0 to 1
  kBoxClass,  // an id, as a float
};
inline constexpr int32_t kBoxColumns = 11;
inline constexpr int32_t kBoxPitch = 12;  // values from row to row: 16 bytes, as all rows are padded to
inline constexpr float kNoBox = -1;

}  // namespace voxserve::kernels
