#pragma once

// A variant of the kernel of conv2d_im2col_kernel.cuh that computes the active boxes of images (active_boxes.h), and
// copies one quiet box to the others. Only .cu files include this header.
//
// A tile is a box of output positions times kChannels output channels. Its inputs of one cell are a box too, which an
// ordinary tensor copy brings. The list of boxes has one quiet box first, then the active ones: the blocks compute
// these in turns. Then each block copies its share of the other quiet boxes from the first one, once a flag says that
// it is stored. A block that waits keeps its multiprocessor. That is safe, since the GPU starts blocks in the order of
// their numbers, and the first ones store that box before they wait for anything.

#include <cstdint>

#include "kernels/core/tensor_map.cuh"
#include "kernels/image/conv2d_im2col_kernel.cuh"
#include "kernels/image/conv2d_im2col_positions.cuh"

namespace voxserve::kernels::cuda {

template <typename T, typename Shape>
class BoxCopier;
template <typename T, typename Shape>
class BoxTiles;

// A block whose tiles are boxes of 16 columns.
template <int kWarpGroups, int kTileChannels, int kRingStages>
struct BoxShape : PositionRowsShape<kWarpGroups, kTileChannels, kRingStages> {
  static constexpr int kBoxColumns = 16;
  static constexpr int kBoxRows = kWarpGroups * 64 / kBoxColumns;
  static constexpr ImageBox kBox{kBoxRows, kBoxColumns};
  template <typename T>
  using Copier = BoxCopier<T, BoxShape>;
  template <typename T>
  using Products = PositionRows<T, BoxShape>;
  template <typename T>
  using Tiles = BoxTiles<T, BoxShape>;
};

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

// A box of outputs times a tile of channels. It has the members of Im2colTile that the roles need.
template <typename T, typename Shape>
struct BoxTile {
  static constexpr int32_t phase = 0;
  static constexpr int32_t group = 0;
  static constexpr int32_t first_position = 0;  // of the box
  bool is_empty;
  bool is_first;  // of the list, so that others are copies of it
  int32_t first_channel;
  int32_t image;
  int32_t first_row;
  int32_t first_column;

  // box: its number among those of all images; -1: there is no such box.
  __device__ BoxTile(const Conv2dArguments<T>& conv, int32_t box, bool is_first_box, int32_t column_tile)
      : is_empty(box < 0), is_first(is_first_box), first_channel(column_tile * Shape::kChannels) {
    const int32_t boxes_a_row = (conv.out_columns - 1) / Shape::kBoxColumns + 1;
    const int32_t boxes_an_image = ((conv.out_rows - 1) / Shape::kBoxRows + 1) * boxes_a_row;
    image = box / boxes_an_image;
    const int32_t of_image = box - image * boxes_an_image, row = of_image / boxes_a_row;
    first_row = row * Shape::kBoxRows;
    first_column = (of_image - row * boxes_a_row) * Shape::kBoxColumns;
  }

  __device__ bool IsEmpty() const { return is_empty; }
  __device__ static int32_t NumChunks(const Conv2dArguments<T>& conv) {
    return conv.geometry.kernel_size[0] * conv.geometry.kernel_size[1] *
           (conv.group_in_channels / kIm2colChannels<T, Shape>);
  }
  // Returns the row of the output at which a position of the box is; -1 if it is outside of the image.
  __device__ int64_t OutRow(const Conv2dArguments<T>& conv, int32_t position) const {
    const int32_t row = first_row + position / Shape::kBoxColumns,
                  column = first_column + position % Shape::kBoxColumns;
    if (row >= conv.out_rows || column >= conv.out_columns) return -1;
    return (int64_t{image} * conv.out_rows + row) * conv.out_columns + column;
  }
};

// The tiles of the listed boxes: those to compute, and those to copy. An object is made after WaitForEarlierKernels,
// and asked for tiles in the order of a block.
template <typename T, typename Shape>
class BoxTiles {
 public:
  static constexpr bool kCopies = true;
  using Tile = BoxTile<T, Shape>;

  __device__ explicit BoxTiles(const Im2colArguments<T>& arguments)
      : arguments_(arguments),
        num_active_(arguments.active.header[ActiveBoxList::kActive]),
        num_quiet_(arguments.active.header[ActiveBoxList::kQuiet]) {
    next_ = BoxOf(static_cast<int32_t>(blockIdx.x));
  }

  __device__ int32_t end() const { return (num_active_ + 1) * arguments_.conv.num_column_tiles; }
  // The box of the block's next tile is looked up while the block computes this one.
  __device__ Tile At(int32_t number) {
    const int32_t box = next_;
    next_ = BoxOf(number + static_cast<int32_t>(gridDim.x));
    const int32_t column_tiles = arguments_.conv.num_column_tiles;
    return {arguments_.conv, box, number < column_tiles, number % column_tiles};
  }

  // All multiplying threads call it when they have stored the tile's values.
  __device__ void Stored(const Tile& tile) const {
    if (!tile.is_first) return;
    __threadfence();
    SyncFirstThreads<Shape::kCopyThread>();
    if (threadIdx.x == 0) {
      asm volatile("st.release.gpu.global.s32 [%0], %1;\n" ::"l"(FlagOf(tile)), "r"(1) : "memory");
    }
  }

  __device__ int32_t end_of_copies() const { return max(num_quiet_ - 1, 0) * arguments_.conv.num_column_tiles; }
  __device__ Tile CopyAt(int32_t number) const {
    const Conv2dArguments<T>& conv = arguments_.conv;
    const int32_t place = number / conv.num_column_tiles;
    const int32_t last = arguments_.num_position_tiles;  // the boxes of all images
    return {conv, arguments_.active.boxes[last - place], false, number - place * conv.num_column_tiles};
  }
  // Waits until the first box's tile of the same channels is stored, and returns it.
  __device__ Tile AwaitFirst(const Tile& tile) const {
    if (threadIdx.x % 32 == 0) {
      int32_t is_stored = 0;
      while (true) {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(is_stored) : "l"(FlagOf(tile)) : "memory");
        if (is_stored != 0) break;
        __nanosleep(100);
      }
    }
    __syncwarp();
    return {arguments_.conv, arguments_.active.boxes[0], true, tile.first_channel / Shape::kChannels};
  }

 private:
  // Returns the box of a tile's number, -1 if there is no such tile.
  __device__ int32_t BoxOf(int32_t number) const {
    const int32_t place = number / arguments_.conv.num_column_tiles;
    return place > num_active_ || (place == 0 && num_quiet_ == 0) ? -1 : arguments_.active.boxes[place];
  }
  __device__ int32_t* FlagOf(const Tile& tile) const {
    return arguments_.active.header + ActiveBoxList::kFirstFlag + tile.first_channel / Shape::kChannels;
  }

  const Im2colArguments<T>& arguments_;
  const int32_t num_active_, num_quiet_;
  int32_t next_;
};

// The role of the thread that starts the copies.
template <typename T, typename Shape>
class BoxCopier {
 public:
  __device__ BoxCopier(const Im2colArguments<T>& arguments, uint32_t stages, uint32_t full, uint32_t empty)
      : arguments_(arguments), stages_(stages), full_(full), empty_(empty) {}

  __device__ void Run() {
    WaitForEarlierKernels();  // which write the inputs and the list of boxes
    const Conv2dArguments<T>& conv = arguments_.conv;
    const Conv2dGeometry& geometry = conv.geometry;
    Im2colPlace<Shape::kStages> place;
    BoxTiles<T, Shape> tiles(arguments_);
    for (auto number = static_cast<int32_t>(blockIdx.x); number < tiles.end();
         number += static_cast<int32_t>(gridDim.x)) {
      const auto tile = tiles.At(number);
      if (tile.IsEmpty()) continue;
      const int32_t row = tile.first_row * geometry.stride[0] - geometry.padding[0];
      const int32_t column = tile.first_column * geometry.stride[1] - geometry.padding[1];
      int32_t chunk = 0;
      for (int32_t row_cell = 0; row_cell < geometry.kernel_size[0]; ++row_cell) {
        for (int32_t column_cell = 0; column_cell < geometry.kernel_size[1]; ++column_cell) {
          for (int32_t channel = 0; channel < conv.group_in_channels; channel += kIm2colChannels<T, Shape>) {
            WaitForBarrier(empty_ + place.slot * 8, place.parity ^ 1);
            const uint32_t stage = stages_ + place.slot * Shape::kStageBytes, full = full_ + place.slot * 8;
            CopyStageWeights<T, Shape>(conv, tile, chunk, stage, full);
            CopyImageBox(stage, arguments_.inputs[0], channel, column + column_cell * geometry.dilation[1],
                         row + row_cell * geometry.dilation[0], tile.image, full);
            place.Advance();
            ++chunk;
          }
        }
      }
    }
  }

 private:
  const Im2colArguments<T>& arguments_;
  const uint32_t stages_, full_, empty_;
};

#endif

}  // namespace voxserve::kernels::cuda
