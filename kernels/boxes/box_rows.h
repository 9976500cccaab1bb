#pragma once

// A box is a row of float32 values. Detection heads (anchor_head.h, center_head.h, query_decode.h) write these rows,
// RotatedNms reads and writes them, and answers are made from them.
//
// Every sample has the same fixed number of rows, the most boxes that it can have. A sample's boxes come first, the
// best box first. The rows after its last box have the score kNoBox and 0 in the other columns.

#include <cstdint>

namespace voxserve::kernels {

enum BoxColumn : int32_t {
  kBoxX = 0,  // the centre, metres
  kBoxY,
  kBoxZ,
  kBoxLength,  // sizes along the box's own x, y and z, metres
  kBoxWidth,
  kBoxHeight,
  kBoxYaw,        // angle of the box's x axis about z, radians, from x towards y
  kBoxVelocityX,  // metres per second; 0 where the network has none
  kBoxVelocityY,
  kBoxScore,  // 0 to 1, or kNoBox
  kBoxClass,  // the class's id, as a float
  kBoxQuery,  // 1 + the number of the box's query among its sample's; 0: the box comes from no query
};
inline constexpr int32_t kBoxColumns = 12;
inline constexpr int32_t kBoxPitch = 12;  // values from row to row: 48 bytes; rows are padded to 16 bytes
inline constexpr float kNoBox = -1;

}  // namespace voxserve::kernels
