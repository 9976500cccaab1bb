#pragma once

// PairRotation says how a product rotates pairs of neighbouring columns of its result before it stores them. So a
// product of queries and keys gives rotated ones (kernels/rows/rotary.h), and no kernel of its own reads and writes
// them again.
//
// With the sums u and v of columns 2 i and 2 i + 1, bias included, these columns become
//   (u cos t - v sin t, v cos t + u sin t), where t is the angle of the row and of pair i modulo head_pairs.
// Sums, angles and rotations are float32; a rotated value is one rounded product and one fused multiplication and
// addition. It is rounded to the result's type once, when it is stored.

#include <cstdint>
#include <type_traits>

#include "kernels/core/rows.h"

namespace voxserve::kernels {

// A table repeats its first angles behind its last one, so that four angles in a row lie beside each other.
inline constexpr int32_t kRepeatedAngles = 3;

// Returns the channels of a table: sine and cosine of each pair of a head, and of the repeated ones.
constexpr int32_t AngleTableChannels(int32_t head_pairs) { return 2 * (head_pairs + kRepeatedAngles); }

struct PairRotation {
  // The sine and the cosine of each pair of a head, for each row of the result: float32, AngleTableChannels(head_pairs)
  // channels, rows aligned to 8 bytes. Null data: nothing is rotated.
  ConstRows angles;
  int32_t head_pairs = 0;
  int32_t num_columns = 0;  // the first columns of the result, which are rotated; an even number
};
static_assert(std::is_trivially_copyable_v<PairRotation>);

}  // namespace voxserve::kernels
