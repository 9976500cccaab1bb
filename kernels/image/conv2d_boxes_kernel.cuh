#pragma once

// A variant of the kernel of conv2d_im2col_kernel.cuh whose tiles are boxes of output positions times kChannels output
// channels. Only .cu files include this header.
//
// The inputs that one cell of the convolution's kernel reads for a box are a box too, which an ordinary tensor copy
// brings. In a convolution of 3 rows without strides, the boxes of the three cells of a column overlap: a copy brings
// two rows more, and serves all three. For a box of 12 rows that is 14 rows in place of 36; weights are copied as
// in the other kernel. So inputs and weights have rings of their own: a slot of inputs serves kSlotCells slots of
// weights.
//
// All boxes of the images are computed (BoxTiles), or those of a list (ListedBoxTiles, active_boxes.h). A list has one
// quiet box first, then the active ones: the blocks compute these in turns. Then each block copies its share of the
// other quiet boxes from the first one, once a flag says that it is stored. A block that waits keeps its
// multiprocessor. That is safe, since the GPU starts blocks in the order of their numbers, and the first ones store
// that box before they wait for anything.

#include <cstdint>
#include <type_traits>

#include "kernels/core/tensor_map.cuh"
#include "kernels/image/conv2d_im2col_channels.cuh"
#include "kernels/image/conv2d_im2col_kernel.cuh"
#include "kernels/image/conv2d_im2col_positions.cuh"

namespace voxserve::kernels::cuda {

template <typename T, typename Shape>
class BoxCopier;
template <typename T, typename Shape>
class BoxTiles;
template <typename T, typename Shape>
class ListedBoxTiles;
template <typename T, typename Shape>
class BoxRing;

// The sizes of a block whose tiles are boxes of kBoxRows x 16 output positions. A slot of inputs serves kCellsOfSlot
// cells, one below the other. kBytesOfRow and kFloats: as in Im2colBlock.
template <int kWarpGroups, int kRowsOfBox, int kTileChannels, int kCellsOfSlot, int kNumInputSlots, int kNumWeightSlots,
          int kFloats, int kBytesOfRow = kStageRowBytes>
struct BoxBlock : Im2colThreads<kWarpGroups> {
  static constexpr int kBoxColumns = kImageBoxColumns;
  static constexpr int kBoxRows = kRowsOfBox;
  static constexpr ImageBox kBox{kBoxRows, kBoxColumns};
  static constexpr int kPositions = kBoxRows * kBoxColumns;
  static constexpr int kChannels = kTileChannels;
  static constexpr int kRowBytes = kBytesOfRow;
  static constexpr int kSlotCells = kCellsOfSlot;
  static constexpr int kInputRows = kBoxRows + kSlotCells - 1;
  static constexpr int kInputSlots = kNumInputSlots;
  static constexpr int kWeightSlots = kNumWeightSlots;
  static constexpr int kSlots = kInputSlots + kWeightSlots;  // the barriers of the weights' slots come last
  static constexpr int kInputBytes = kInputRows * kBoxColumns * kRowBytes;
  static constexpr int kWeightBytes = kChannels * kRowBytes;
  static constexpr int kWeightsBegin = kInputSlots * kInputBytes;
  static constexpr int kSharedFloats = kFloats;
  static constexpr int kSharedBytes = kWeightsBegin + kWeightSlots * kWeightBytes + kSlotAlignment;
  static constexpr int kStaticBytes = StaticBytes(kSlots, kFloats);
  static_assert(kRowBytes == 128 || kRowBytes == 64);
  static_assert(kBoxColumns * kRowBytes % kSlotAlignment == 0 && kWeightBytes % kSlotAlignment == 0);
  static_assert(kSharedBytes + kStaticBytes <= kSharedBytesOfSm, "more shared memory than an SM has");
};

// A block whose positions are the rows of the products: 64 for each warp group. kIsListed: it computes listed boxes.
template <int kWarpGroups, int kTileChannels, int kCellsOfSlot, int kNumInputSlots, int kNumWeightSlots, bool kIsListed>
struct BoxShape : BoxBlock<kWarpGroups, kWarpGroups * 64 / kImageBoxColumns, kTileChannels, kCellsOfSlot,
                           kNumInputSlots, kNumWeightSlots, NumPositionRowsFloats(kWarpGroups, kTileChannels)> {
  static constexpr bool kHasPositionRows = true;

  template <typename T>
  using Copier = BoxCopier<T, BoxShape>;
  template <typename T>
  using Products = PositionRows<T, BoxShape>;
  template <typename T>
  using Tiles = std::conditional_t<kIsListed, ListedBoxTiles<T, BoxShape>, BoxTiles<T, BoxShape>>;
  template <typename T>
  using Ring = BoxRing<T, BoxShape>;
};

// A block whose channels are the rows of the products.
template <int kWarpGroups, int kRowsOfBox, int kTileChannels, int kNumInputSlots, int kNumWeightSlots>
struct BoxChannelRowsShape : BoxBlock<kWarpGroups, kRowsOfBox, kTileChannels, /*kCellsOfSlot=*/3, kNumInputSlots,
                                      kNumWeightSlots, kWarpGroups * 4 * kTurnedFloats>,
                             ChannelRowsParts<kWarpGroups, kTileChannels, kRowsOfBox * kImageBoxColumns> {
  static constexpr bool kHasPositionRows = false;
  template <typename T>
  using Copier = BoxCopier<T, BoxChannelRowsShape>;
  template <typename T>
  using Products = ChannelRows<T, BoxChannelRowsShape>;
  template <typename T>
  using Tiles = BoxTiles<T, BoxChannelRowsShape>;
  template <typename T>
  using Ring = BoxRing<T, BoxChannelRowsShape>;
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

// The tiles of all boxes.
template <typename T, typename Shape>
class BoxTiles {
 public:
  static constexpr bool kCopies = false;
  using Tile = BoxTile<T, Shape>;

  __device__ explicit BoxTiles(const Im2colArguments<T>& arguments) : arguments_(arguments) {}

  __device__ int32_t end() const { return arguments_.num_tiles; }
  __device__ Tile At(int32_t number) const {
    const int32_t box = number / arguments_.conv.num_column_tiles;
    return {arguments_.conv, box, false, number - box * arguments_.conv.num_column_tiles};
  }

 private:
  const Im2colArguments<T>& arguments_;
};

// The tiles of the listed boxes: those to compute, and those to copy. An object is made after WaitForEarlierKernels,
// and asked for tiles in the order of a block.
template <typename T, typename Shape>
class ListedBoxTiles {
 public:
  static constexpr bool kCopies = true;
  using Tile = BoxTile<T, Shape>;

  __device__ explicit ListedBoxTiles(const Im2colArguments<T>& arguments)
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

// The rings of inputs and of weights, as a multiplying warp group sees them. It has the functions of StageRing.
template <typename T, typename Shape>
class BoxRing {
 public:
  __device__ BoxRing(uint32_t full, uint32_t empty)
      : full_inputs_(full),
        full_weights_(full + Shape::kInputSlots * 8),
        empty_inputs_(empty),
        empty_weights_(empty + Shape::kInputSlots * 8) {}

  template <typename Sum, int kCount>
  __device__ void Multiply(Sum (&sums)[kCount], uint64_t rows, uint64_t columns, int32_t num_chunks) {
    for (int32_t chunk = 0; chunk < num_chunks; chunk += Shape::kSlotCells) {
      WaitForBarrier(full_inputs_ + inputs_.slot * 8, inputs_.parity);
      uint64_t input = static_cast<uint64_t>(inputs_.slot) * (Shape::kInputBytes / kAddressUnit);
#pragma unroll
      for (int cell = 0; cell < Shape::kSlotCells; ++cell) {
        WaitForBarrier(full_weights_ + weights_.slot * 8, weights_.parity);
        const uint64_t weight = static_cast<uint64_t>(weights_.slot) * (Shape::kWeightBytes / kAddressUnit);
        MultiplyChunk<T, Shape>(sums, rows + (Shape::kHasPositionRows ? input : weight),
                                columns + (Shape::kHasPositionRows ? weight : input), chunk + cell == 0);
        WaitForProducts<1>();
        ReleaseWeights();
        if (cell == 0) ReleaseInputs();
        held_weights_ = weights_.slot;
        weights_.Advance();
        input += Shape::kBoxColumns * Shape::kRowBytes / kAddressUnit;
      }
      held_inputs_ = inputs_.slot;
      inputs_.Advance();
    }
  }

  __device__ void Release() {
    ReleaseWeights();
    ReleaseInputs();
  }

 private:
  __device__ void ReleaseWeights() {
    if (threadIdx.x % 32 == 0 && held_weights_ >= 0) ArriveAtBarrier(empty_weights_ + held_weights_ * 8);
    held_weights_ = -1;
  }
  __device__ void ReleaseInputs() {
    if (threadIdx.x % 32 == 0 && held_inputs_ >= 0) ArriveAtBarrier(empty_inputs_ + held_inputs_ * 8);
    held_inputs_ = -1;
  }

  const uint32_t full_inputs_, full_weights_, empty_inputs_, empty_weights_;
  SlotPlace<Shape::kInputSlots> inputs_;
  SlotPlace<Shape::kWeightSlots> weights_;
  int32_t held_inputs_ = -1, held_weights_ = -1;  // the slots that products may still read
};

// The role of the thread that starts the copies.
template <typename T, typename Shape>
class BoxCopier {
 public:
  __device__ BoxCopier(const Im2colArguments<T>& arguments, uint32_t stages, uint32_t full, uint32_t empty)
      : arguments_(arguments), slots_(stages), full_(full), empty_(empty) {}

  __device__ void Run() {
    int32_t early = CopyFirstWeights();
    WaitForEarlierKernels();  // which write the inputs and the list of boxes
    const Conv2dArguments<T>& conv = arguments_.conv;
    const Conv2dGeometry& geometry = conv.geometry;
    SlotPlace<Shape::kInputSlots> inputs;
    SlotPlace<Shape::kWeightSlots> weights;
    Tiles tiles(arguments_);
    for (auto number = static_cast<int32_t>(blockIdx.x); number < tiles.end();
         number += static_cast<int32_t>(gridDim.x)) {
      const Tile tile = tiles.At(number);
      if (tile.IsEmpty()) continue;
      const int32_t row = tile.first_row * geometry.stride[0] - geometry.padding[0];
      const int32_t column = tile.first_column * geometry.stride[1] - geometry.padding[1];
      int32_t chunk = 0;  // in the order of Conv2dSummedAxis
      for (int32_t channel = 0; channel < conv.group_in_channels; channel += kIm2colChannels<T, Shape>) {
        for (int32_t column_cell = 0; column_cell < geometry.kernel_size[1]; ++column_cell) {
          for (int32_t row_cell = 0; row_cell < geometry.kernel_size[0]; row_cell += Shape::kSlotCells) {
            WaitForBarrier(empty_ + inputs.slot * 8, inputs.parity ^ 1);
            ArriveExpecting(full_ + inputs.slot * 8, Shape::kInputBytes);
            CopyImageBox(slots_ + inputs.slot * Shape::kInputBytes, arguments_.inputs[0], channel,
                         column + column_cell * geometry.dilation[1], row + row_cell * geometry.dilation[0], tile.image,
                         full_ + inputs.slot * 8);
            inputs.Advance();
            for (int cell = 0; cell < Shape::kSlotCells; ++cell, ++chunk) {
              if (early > 0) {
                --early;
              } else {
                WaitForBarrier(empty_ + (Shape::kInputSlots + weights.slot) * 8, weights.parity ^ 1);
                CopyWeights(tile, chunk, weights.slot);
              }
              weights.Advance();
            }
          }
        }
      }
    }
  }

 private:
  using Tiles = typename Shape::template Tiles<T>;
  using Tile = typename Tiles::Tile;

  __device__ void CopyWeights(const Tile& tile, int32_t chunk, int32_t slot) const {
    CopyChunkWeights<T, Shape>(arguments_.conv, tile, chunk, slots_ + Shape::kWeightsBegin + slot * Shape::kWeightBytes,
                               full_ + (Shape::kInputSlots + slot) * 8, /*other_bytes=*/0);
  }

  // Copies the weights of the first slots and returns their number, as in Im2colCopier. With a list it copies none,
  // since the block's first box is not known yet.
  __device__ int32_t CopyFirstWeights() const {
    if constexpr (Tiles::kCopies) return 0;
    const Tile tile(arguments_.conv, 0, false, static_cast<int32_t>(blockIdx.x) % arguments_.conv.num_column_tiles);
    const int32_t early = min(Shape::kWeightSlots, tile.NumChunks(arguments_.conv));
    for (int32_t chunk = 0; chunk < early; ++chunk) CopyWeights(tile, chunk, chunk);
    return early;
  }

  const Im2colArguments<T>& arguments_;
  const uint32_t slots_, full_, empty_;
};

#endif

}  // namespace voxserve::kernels::cuda
