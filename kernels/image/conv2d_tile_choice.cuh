#pragma once

// CheapestTiling chooses the tile of a convolution of images by a cost model, which each way to copy inputs has of its
// own. Only .cu files include this header.

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/image/conv2d_launch.cuh"

namespace voxserve::kernels::cuda {

struct TileShape {
  Conv2dTiling tiling;
  int32_t rows;
  int32_t columns;  // 0: 64 or 128, as the output channels fill them
  int32_t blocks_an_sm;
  ImageBox box = {};  // of the positions; without rows, positions are neighbours across rows and images
};

// Returns the positions that are copied for one cell in the mean. The inputs of a box serve the three cells of a
// column.
constexpr int32_t CopiedRows(const TileShape& shape) {
  return shape.box.rows > 0 ? (shape.box.rows + 2) * shape.box.columns / 3 : shape.rows;
}

// Returns the tiles of all positions of a phase.
template <typename T>
int64_t NumPositionTiles(const TileShape& shape, const Conv2dArguments<T>& arguments) {
  if (shape.box.rows > 0) return arguments.num_images * shape.box.NumIn(arguments.out_rows, arguments.out_columns);
  return (NumPositions(arguments) - 1) / shape.rows + 1;
}

// Returns the tiling with the least cost(shape, columns of a tile, number of tiles), the first of those with equal
// cost. Tiles of more than 64 columns are left out if the channels do not fill them.
template <typename T, size_t kCount, typename Cost>
Conv2dTiling CheapestTiling(const TileShape (&shapes)[kCount], const Conv2dArguments<T>& arguments, const Cost& cost) {
  const int32_t channels = arguments.group_out_channels;
  const int64_t num_launched =
      int64_t{arguments.geometry.groups} * NumPhases(arguments.geometry, 0) * NumPhases(arguments.geometry, 1);
  Conv2dTiling best = shapes[0].tiling;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const TileShape& shape : shapes) {
    if (shape.columns > 64 && !Fill(channels, shape.columns)) continue;
    const int64_t columns = shape.columns > 0 ? shape.columns : Fill(channels, 128) ? 128 : 64;
    const int64_t num_tiles = NumPositionTiles(shape, arguments) * ((channels - 1) / columns + 1) * num_launched;
    const int64_t of_shape = cost(shape, columns, num_tiles);
    if (of_shape < least) {
      least = of_shape;
      best = shape.tiling;
    }
  }
  return best;
}

}  // namespace voxserve::kernels::cuda
