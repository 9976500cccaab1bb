#pragma once

// A network of images as detectors have: layers at two sizes, a residual block, a transposed convolution, a
// concatenation. All its layers may multiply in 8 bits, on a GPU too. What is between its voxels and its first layer,
// and behind its last one, only copies values.

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/engine/executor/graph_builder.h"
#include "tests/engine/executor/random_points.h"

namespace voxserve {

inline constexpr int kImageNetworkConvolutions = 6;  // of more than one cell

inline Graph ImageNetwork() {
  constexpr kernels::Conv2dGeometry kPlain{.kernel_size = {3, 3}, .padding = {1, 1}};
  constexpr kernels::Conv2dGeometry kHalving{.kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
  constexpr kernels::Conv2dGeometry kDoubling{
      .kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .is_transposed = true};
  GraphBuilder b(18, kernels::CoordinateRule::kFloor, /*dimension=*/2);
  const int lifted = b.Relu(b.Conv2d(b.ToDense(0), {}, 64, true));
  const int fine = b.Relu(b.Norm(b.Conv2d(lifted, kPlain, 64, false)));
  const int coarse = b.Relu(b.Conv2d(fine, kHalving, 128, true));
  const int inner = b.Conv2d(coarse, kPlain, 128, true);  // no ReLU: int8
  const int block = b.Relu(b.Sum(b.Conv2d(inner, kPlain, 128, true), coarse));
  const int up = b.Relu(b.Conv2d(block, kDoubling, 64, true));
  return b.Finish(b.FromDense(b.Conv2d(b.Concat({fine, up}), kPlain, 40, true), 0));
}

// Returns points of two dimensions whose features are exact in float16.
inline Points ImagePoints(uint32_t seed) {
  Points points = RandomPoints(seed, /*dimension=*/2);
  for (float& value : points.values) value = std::round(value * 64.0f) / 64.0f;
  return points;
}

}  // namespace voxserve
