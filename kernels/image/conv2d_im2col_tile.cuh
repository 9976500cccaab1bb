#pragma once

// This header has what the parts of the kernel in conv2d_im2col_kernel.cuh share: its arguments, the sizes of a block,
// places in its ring, tiles, and the loop over a tile's chunks. Only .cu files include this header.

#include <cuda.h>

#include <cstdint>

#include "kernels/core/barriers.cuh"
#include "kernels/core/warp_group_products.cuh"
#include "kernels/image/conv2d_arguments.cuh"
#include "kernels/image/conv2d_im2col_limits.h"
#include "kernels/image/conv2d_phase.h"
#include "kernels/image/sites/active_boxes.h"

namespace voxserve::kernels::cuda {

// Im2colOutputs holds the arguments that a kernel with factors of T needs to store its sums, beside Conv2dArguments. In
// 8 bits it is Int8Im2colOutputs (int8/int8_im2col_positions.cuh).
template <typename T>
struct Im2colOutputs {};

template <typename T>
struct Im2colArguments {
  CUtensorMap inputs[kMaxIm2colPhases];  // one for each phase
  Conv2dArguments<T> conv;
  int32_t num_tiles;  // of all phases, groups, positions and columns; those of a list are counted on the device
  int32_t num_position_tiles;  // of the phase with the most positions; boxes of all images
  Im2colOutputs<T> outputs;
  ActiveBoxList active;  // of the kernels that compute boxes (conv2d_boxes_kernel.cuh)
};

// The role of the thread that starts the copies of an Im2colBlock (conv2d_im2col_kernel.cuh).
template <typename T, typename Shape>
class Im2colCopier;

// The tiles that the blocks of the kernel compute. An object belongs to one role, which asks for them in order.
template <typename T, typename Shape>
class Im2colTiles;

// Returns the bytes of shared memory that a block has beside its slots: two barriers a slot, and values of float32.
constexpr int StaticBytes(int num_slots, int num_floats) { return 2 * num_slots * 8 + num_floats * 4 + 16; }
inline constexpr int kSlotAlignment = 1024;
inline constexpr int kSharedBytesOfSm = 227 * 1024;  // that a block can have

// The threads of a block, which has an SM to itself.
template <int kWarpGroups>
struct Im2colThreads {
  static constexpr int kGroups = kWarpGroups;
  static constexpr int kCopyThread = kWarpGroups * 128;
  static constexpr int kThreads = kCopyThread + 128;  // registers move between whole warp groups
  // kRegisters is a thread's share of an SM's registers at launch. The warp group of the copier lowers its number to
  // kCopyRegisters, and the multiplying threads raise theirs to kProductRegisters.
  static constexpr int kRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kCopyRegisters = kWarpGroups > 3 ? 24 : 40;
  static constexpr int kLeftRegisters = (kRegisters * kThreads - kCopyRegisters * 128) / kCopyThread / 8 * 8;
  static constexpr int kProductRegisters = kLeftRegisters > 240 ? 240 : kLeftRegisters;
  // The parts of 32 channels whose residuals a thread loads ahead. Threads of large blocks have few registers.
  static constexpr int kPartsAhead = kWarpGroups > 3 ? 1 : 2;
};

// The ring of stages, as a multiplying warp group sees it.
template <typename T, typename Shape>
class StageRing;

// The sizes of a block. A tile is kTilePositions output positions times kTileChannels output channels. A chunk has
// kBytesOfRow, 128 or 64, of each position and of each output channel. A slot holds a stage: a chunk's inputs, and then
// its weights. kFloats: the float32 values that the multiplying threads keep in shared memory beside the ring.
template <int kWarpGroups, int kTilePositions, int kTileChannels, int kRingStages, int kFloats,
          int kBytesOfRow = kStageRowBytes>
struct Im2colBlock : Im2colThreads<kWarpGroups> {
  static constexpr int kPositions = kTilePositions;
  static constexpr int kChannels = kTileChannels;
  static constexpr int kSlots = kRingStages;
  static constexpr int kRowBytes = kBytesOfRow;
  static constexpr int kSharedFloats = kFloats;
  static constexpr int kInputBytes = kPositions * kRowBytes;
  static constexpr int kWeightsBegin = kInputBytes;
  static constexpr int kStageBytes = kInputBytes + kChannels * kRowBytes;
  static constexpr int kSharedBytes = kSlots * kStageBytes + kSlotAlignment;
  static constexpr int kStaticBytes = StaticBytes(kSlots, kFloats);
  static_assert(kRowBytes == 128 || kRowBytes == 64);
  static_assert(kStageBytes % kSlotAlignment == 0 && kInputBytes % kSlotAlignment == 0);
  static_assert(kSharedBytes + kStaticBytes <= kSharedBytesOfSm, "more shared memory than an SM has");
};

// The input channels of a chunk.
template <typename T, typename Shape>
inline constexpr int kIm2colChannels = Shape::kRowBytes / static_cast<int>(sizeof(T));

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

// A place in a ring of slots. `parity` is that of the slot's current phase, which changes with each round of the ring.
template <int kSlots>
struct SlotPlace {
  int32_t slot = 0;
  uint32_t parity = 0;

  __device__ void Advance() {
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// Describes a tile. Channels vary fastest with its number, then phases, positions and groups. The phases of
// neighbouring positions are stored side by side, so blocks that run at the same time fill whole stretches of the
// output.
template <typename T, typename Shape>
struct Im2colTile {
  int32_t phase;
  int32_t group;
  int32_t first_channel;  // of the group
  int32_t first_position;
  int32_t num_positions;  // of the phase; if it is not above first_position, the tile is empty
  Conv2dPhase rows;
  Conv2dPhase columns;

  __device__ Im2colTile(const Im2colArguments<T>& arguments, int32_t number) {
    const Conv2dArguments<T>& conv = arguments.conv;
    const int32_t column_phases = NumPhases(conv.geometry, 1);
    const int32_t phases = NumPhases(conv.geometry, 0) * column_phases;
    const int32_t of_channels = number / conv.num_column_tiles;
    first_channel = (number - of_channels * conv.num_column_tiles) * Shape::kChannels;
    const int32_t of_phases = of_channels / phases;
    phase = of_channels - of_phases * phases;
    group = of_phases / arguments.num_position_tiles;
    first_position = (of_phases - group * arguments.num_position_tiles) * Shape::kPositions;
    rows = PhaseOf(conv.geometry, 0, conv.in_rows, phase / column_phases);
    columns = PhaseOf(conv.geometry, 1, conv.in_columns, phase % column_phases);
    num_positions = static_cast<int32_t>(conv.num_images) * rows.num_outputs * columns.num_outputs;
  }

  __device__ bool IsEmpty() const { return first_position >= num_positions; }
  __device__ int32_t NumChunks(const Conv2dArguments<T>& conv) const {
    return rows.num_cells * columns.num_cells * (conv.group_in_channels / kIm2colChannels<T, Shape>);
  }

  // Returns the row of the output at which a position of the tile's phase is; -1 if there is no such position.
  __device__ int64_t OutRow(const Conv2dArguments<T>& conv, int32_t position) const {
    if (position >= num_positions) return -1;
    if (!conv.geometry.is_transposed) return position;
    const int32_t in_row_of_images = position / columns.num_outputs;
    const int32_t column = position - in_row_of_images * columns.num_outputs;
    const int32_t image = in_row_of_images / rows.num_outputs;
    const int32_t row = in_row_of_images - image * rows.num_outputs;
    const int64_t out_row = int64_t{image} * conv.out_rows + rows.out_begin + row * rows.out_step;
    return out_row * conv.out_columns + columns.out_begin + column * columns.out_step;
  }
};

template <typename T, typename Shape>
class Im2colTiles {
 public:
  static constexpr bool kCopies = false;
  using Tile = Im2colTile<T, Shape>;

  __device__ explicit Im2colTiles(const Im2colArguments<T>& arguments) : arguments_(arguments) {}

  __device__ int32_t end() const { return arguments_.num_tiles; }
  __device__ Tile At(int32_t number) const { return Tile(arguments_, number); }

 private:
  const Im2colArguments<T>& arguments_;
};

inline constexpr int kAddressUnit = 16;  // bytes of one step of the address in a matrix descriptor

// Queues the products of a chunk, whose factors `rows` and `columns` describe.
//
// The first products of a tile in 8 bits ignore the values that the sums have. If they were cleared instead, the
// compiler would make products wait for each other.
template <typename T, typename Shape, typename Sum, int kCount>
__device__ void MultiplyChunk(Sum (&sums)[kCount], uint64_t rows, uint64_t columns, bool is_first) {
  constexpr int kStepBytes = 32;  // bytes of a row that one product takes
  constexpr int kStepAddress = kStepBytes / kAddressUnit;
  BeginProducts();
#pragma unroll
  for (int step = 0; step < Shape::kRowBytes / kStepBytes; ++step) {
    const int32_t adds = sizeof(T) > 1 || !is_first || step > 0 ? 1 : 0;
    MultiplyAddGroup<T>(sums, rows + step * kStepAddress, columns + step * kStepAddress, adds);
  }
  CommitProducts();
}

template <typename T, typename Shape>
class StageRing {
 public:
  __device__ StageRing(uint32_t full, uint32_t empty) : full_(full), empty_(empty) {}

  // Adds a tile's chunks to the sums. `rows` and `columns` describe the factors in the first slot. The last products
  // may still run at the end: the caller waits for them, and then calls Release.
  template <typename Sum, int kCount>
  __device__ void Multiply(Sum (&sums)[kCount], uint64_t rows, uint64_t columns, int32_t num_chunks) {
    for (int32_t chunk = 0; chunk < num_chunks; ++chunk) {
      WaitForBarrier(full_ + place_.slot * 8, place_.parity);
      const uint64_t stage = static_cast<uint64_t>(place_.slot) * (Shape::kStageBytes / kAddressUnit);
      MultiplyChunk<T, Shape>(sums, rows + stage, columns + stage, chunk == 0);
      WaitForProducts<1>();
      Release();
      held_ = place_.slot;
      place_.Advance();
    }
  }

  // Says that no product reads the slot of the chunk before.
  __device__ void Release() {
    if (threadIdx.x % 32 == 0 && held_ >= 0) ArriveAtBarrier(empty_ + held_ * 8);
    held_ = -1;
  }

 private:
  const uint32_t full_, empty_;
  SlotPlace<Shape::kSlots> place_;
  int32_t held_ = -1;  // the slot that products may still read
};

#endif

}  // namespace voxserve::kernels::cuda
