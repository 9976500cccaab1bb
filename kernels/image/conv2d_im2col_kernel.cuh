#pragma once

// Im2colKernel is the kernel of kernels/image/conv2d_im2col.cuh, an implicit GEMM. Only .cu files include this header.
//
// A tile is kPositions neighbouring output positions of a phase, across rows and images, times kChannels output
// channels of a group. Blocks are persistent: block b computes tiles b, b + gridDim.x, and so on. A stage is one slot
// of a ring in shared memory. It holds one chunk of the summed axis: 128 or 64 bytes of the input channels of one cell
// for the tile's positions, and their weights, both swizzled. The warps of a block have roles:
// - Copier, 1 thread: starts two copies a stage. A tensor copy in im2col mode gathers the inputs: the hardware walks
//   along the positions, from row to row and from image to image, and writes zeros for positions outside the image. A
//   bulk copy brings the weights, which are packed in the layout of a stage. The copier runs ahead into the next tile.
// - Products, kGroups warp groups: each computes a part of the tile and stores its sums. Either positions or channels
//   are the rows of the products (PositionRows, ChannelRows; in 8 bits Int8PositionRows).
//
// Two barriers guard a slot. `full` ends a phase when the bytes of both copies have landed; one arrival expects them.
// `empty` ends a phase when every multiplying warp has read the slot. The copies and the products are both of the
// asynchronous proxy, so the barriers alone order them.
//
// Chunks are added in ascending order, 16 channels at a time, like those of conv2d.cuh. So the results have the bytes
// of the other kernels of warp groups, whatever the tile and the other images of the batch. Sums in 8 bits are exact.
//
// The kernel starts before its predecessor on the stream has ended. It may read the weights and the bias at once, so
// the predecessor must not write them.

#include <cstdint>

#include "kernels/image/conv2d_im2col_tile.cuh"

namespace voxserve::kernels::cuda {

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

// Starts a tensor copy in im2col mode: as many channels, from `channel` on, of as many positions as the map says. The
// first position's first cell is at (column, row) of the image, possibly outside. The offsets lead from a position's
// first cell to the cell that is read.
__device__ inline void CopyIm2col(uint32_t to, const CUtensorMap& map, int32_t channel, int32_t column, int32_t row,
                                  int32_t image, int32_t column_offset, int32_t row_offset, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
      "%5}], "
      "[%6], {%7, %8};\n" ::"r"(to),
      "l"(&map), "r"(channel), "r"(column), "r"(row), "r"(image), "r"(barrier),
      "h"(static_cast<uint16_t>(column_offset)), "h"(static_cast<uint16_t>(row_offset))
      : "memory");
}

// Expects the bytes of a chunk's weights and `other_bytes`, and starts to copy the weights. Rows after the last output
// channel are not copied; what the slot holds there only reaches sums that are not stored.
template <typename T, typename Shape, typename Tile>
__device__ void CopyChunkWeights(const Conv2dArguments<T>& conv, const Tile& tile, int32_t chunk, uint32_t to,
                                 uint32_t full, int32_t other_bytes) {
  const int32_t bytes = min(Shape::kChannels, conv.padded_out_channels - tile.first_channel) * Shape::kRowBytes;
  const int64_t packed_slot = int64_t{tile.phase} * conv.geometry.groups + tile.group;
  const int64_t row = (packed_slot * conv.num_chunks + chunk) * conv.padded_out_channels + tile.first_channel;
  ArriveExpecting(full, static_cast<uint32_t>(other_bytes + bytes));
  CopyBulk(to, conv.weights + row * Shape::kRowBytes, static_cast<uint32_t>(bytes), full);
}

template <typename T, typename Shape>
class Im2colCopier {
 public:
  __device__ Im2colCopier(const Im2colArguments<T>& arguments, uint32_t stages, uint32_t full, uint32_t empty)
      : arguments_(arguments), stages_(stages), full_(full), empty_(empty) {}

  __device__ void Run() {
    int32_t early = CopyFirstWeights();
    WaitForEarlierKernels();  // which write the inputs
    SlotPlace<Shape::kSlots> place;
    for (auto number = static_cast<int32_t>(blockIdx.x); number < arguments_.num_tiles;
         number += static_cast<int32_t>(gridDim.x)) {
      const Im2colTile<T, Shape> tile(arguments_, number);
      if (tile.IsEmpty()) continue;
      const int32_t in_row_of_images = tile.first_position / tile.columns.num_outputs;
      const int32_t image = in_row_of_images / tile.rows.num_outputs;
      const int32_t row = tile.rows.in_begin + (in_row_of_images - image * tile.rows.num_outputs) * tile.rows.in_step;
      const int32_t column = tile.columns.in_begin +
                             (tile.first_position - in_row_of_images * tile.columns.num_outputs) * tile.columns.in_step;
      const int32_t first_channel = tile.group * arguments_.conv.group_in_channels;
      const CUtensorMap& map = arguments_.inputs[tile.phase];
      int32_t chunk = 0;  // in the order of Conv2dSummedAxis
      for (int32_t channel = 0; channel < arguments_.conv.group_in_channels; channel += kIm2colChannels<T, Shape>) {
        for (int32_t column_cell = 0; column_cell < tile.columns.num_cells; ++column_cell) {
          for (int32_t row_cell = 0; row_cell < tile.rows.num_cells; ++row_cell) {
            if (early > 0) {
              --early;
            } else {
              WaitForBarrier(empty_ + place.slot * 8, place.parity ^ 1);
              CopyWeights(tile, chunk, place.slot);
            }
            CopyIm2col(stages_ + place.slot * Shape::kStageBytes, map, first_channel + channel, column, row, image,
                       column_cell * tile.columns.cell_reach, row_cell * tile.rows.cell_reach, full_ + place.slot * 8);
            place.Advance();
            ++chunk;
          }
        }
      }
    }
  }

 private:
  __device__ void CopyWeights(const Im2colTile<T, Shape>& tile, int32_t chunk, int32_t slot) const {
    CopyChunkWeights<T, Shape>(arguments_.conv, tile, chunk, stages_ + slot * Shape::kStageBytes + Shape::kWeightsBegin,
                               full_ + slot * 8, Shape::kInputBytes);
  }

  // Copies the weights of the first stages of the block's first tile and returns the number of these stages. The ring
  // is empty then, so there is nothing to wait for.
  __device__ int32_t CopyFirstWeights() const {
    const Im2colTile<T, Shape> tile(arguments_, static_cast<int32_t>(blockIdx.x));
    if (tile.IsEmpty()) return 0;
    const int32_t early = min(Shape::kSlots, tile.NumChunks(arguments_.conv));
    for (int32_t chunk = 0; chunk < early; ++chunk) CopyWeights(tile, chunk, chunk);
    return early;
  }

  const Im2colArguments<T>& arguments_;
  const uint32_t stages_, full_, empty_;
};

#endif

// Shape: an Im2colBlock or a BoxBlock (conv2d_boxes_kernel.cuh) with the classes Copier<T> and Products<T>, the roles
// of its threads, and what these share: Tiles<T>, the tiles of a block, and Ring<T>, its slots as the products see
// them.
template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    Im2colKernel([[maybe_unused]] const __grid_constant__ Im2colArguments<T> arguments) {
#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS
  extern __shared__ unsigned char shared[];
  __shared__ uint64_t barriers[2 * Shape::kSlots];
  __shared__ alignas(128) float floats[Shape::kSharedFloats];
  static_assert(sizeof(barriers) + sizeof(floats) <= Shape::kStaticBytes);
  const uint32_t stages = (SharedAddress(shared) + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  const uint32_t full = SharedAddress(barriers);
  const uint32_t empty = full + Shape::kSlots * 8;
  if (threadIdx.x < 2 * Shape::kSlots) {
    const bool is_full = threadIdx.x < Shape::kSlots;
    InitBarrier(full + threadIdx.x * 8, is_full ? 1 : Shape::kGroups * 4);
    PublishBarriers();
  }
  __syncthreads();
  if (threadIdx.x < Shape::kCopyThread) {
    SetRegisters<Shape::kProductRegisters, true>();
    typename Shape::template Products<T>(arguments, stages, full, empty, SharedAddress(floats)).Run();
  } else {
    SetRegisters<Shape::kCopyRegisters, false>();
    if (threadIdx.x == Shape::kCopyThread) {
      typename Shape::template Copier<T>(arguments, stages, full, empty).Run();
    }
  }
#else
  __trap();  // unreachable: CodeVersion tells callers that this code is missing
#endif
}

}  // namespace voxserve::kernels::cuda
