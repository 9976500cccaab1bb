#pragma once

// Rotary rotates pairs of channels by angles that grow with a row's position, so that the dot product of two rotated
// rows depends on the difference of their positions (J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position
// Embedding", Neurocomputing 568, 2024), axis by axis.
//
// The channels of a head are cut into one chunk for each axis. In the chunk of axis a, with h pairs, the channels j and
// j + h become
//   (u, v) -> (u cos t - v sin t, v cos t + u sin t), t = position[a] * frequencies[j], j = 0 .. h - 1.
//
// - Angles, sines, cosines and rotations are float32, whatever the types of the rows are. Angles of any size have
//   correct sines: the range is reduced fully. But an angle is a product in float32, so its error is up to 2^-24 of it
//   in radians.
// - A position that is NaN or infinite makes its axis's channels NaN.
// - Rows are independent of each other.
//
// Rotary is the operator on rows. RotaryAngles makes a table of the angles of one head instead, with which products
// rotate the queries and keys that they compute (kernels/conv/pair_rotation.h). All of a level's products share it.

#include <cstdint>
#include <type_traits>

#include "kernels/conv/pair_rotation.h"
#include "kernels/coordinates/conv_geometry.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

inline constexpr int32_t kMaxRotaryHeadChannels = 256;

struct RotaryParams {
  int32_t dimension = 3;  // axes, 1 to kMaxDimension
  int32_t num_heads = 1;  // cuts the channels into equal parts; a part has a multiple of 2 * dimension channels
  ConstRows positions;    // one column per axis, in any type of features; null data: the sites' coordinates are used
  const uint64_t* keys = nullptr;  // without positions: [rows] CoordinateKeys on the CPU, MortonKeys on a GPU
  float frequencies[kMaxRotaryHeadChannels / 2] = {};  // [channels / num_heads / dimension / 2], of every axis
  ConstRows in;
  Rows out;  // in's channels and rows; float32, in's type, or any type if `in` is float32; must not overlap `in`

  // Returns the number of pairs in the chunk of an axis.
  constexpr int32_t PairsOfAnAxis() const { return out.channels / num_heads / dimension / 2; }
};
static_assert(std::is_trivially_copyable_v<RotaryParams>);

struct RotaryAnglesParams {
  int32_t dimension = 3;  // as in RotaryParams
  int32_t pairs = 1;      // in the chunk of an axis
  ConstRows positions;
  const uint64_t* keys = nullptr;
  float frequencies[kMaxRotaryHeadChannels / 2] = {};  // [pairs]
  Rows out;  // float32, AngleTableChannels(dimension * pairs) channels, rows aligned to 8 bytes

  constexpr int32_t PairsOfAnAxis() const { return pairs; }
};
static_assert(std::is_trivially_copyable_v<RotaryAnglesParams>);

// Sets frequencies[j] = base^(-j / h), rounded to float32. The other members are set already.
void SetRotaryFrequencies(float base, RotaryParams* params);
void SetRotaryFrequencies(float base, RotaryAnglesParams* params);

namespace cpu {

// Supports float32 alone.
void Rotary(const RotaryParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

// Both return cudaErrorInvalidValue if a head has more than kMaxRotaryHeadChannels channels, or for types other than
// those named above. RotaryAngles computes the sines and cosines that Rotary uses, with the same bits.
cudaError_t Rotary(const RotaryParams& params, cudaStream_t stream);
cudaError_t RotaryAngles(const RotaryAnglesParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
