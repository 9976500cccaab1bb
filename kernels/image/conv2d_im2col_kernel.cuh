#pragma once

// Im2colKernel is the kernel of kernels/image/conv2d_im2col.cuh, an implicit GEMM. Only .cu files include this header.
//
// A tile is kRows neighbouring output positions of a phase, across rows and images, times kColumns output channels of a
// group. Blocks are persistent: block b computes tiles b, b + gridDim.x, and so on. A stage is one slot of a ring in
// shared memory. It holds one chunk of the summed axis: 64 input channels of one cell for the tile's positions, and
// their weights, both with the 128-byte swizzle. The warps of a block have roles:
// - Copier, 1 thread: starts two copies a stage. A tensor copy in im2col mode gathers the inputs: the hardware walks
//   along the positions, from row to row and from image to image, and writes zeros for positions outside the image. A
//   bulk copy brings the weights, which are packed in the layout of a stage. The copier runs ahead into the next tile.
// - Products, kGroups warp groups: each computes 64 positions and stores its sums from registers.
//
// Two barriers guard a slot. `full` ends a phase when the bytes of both copies have landed; one arrival expects them.
// `empty` ends a phase when every multiplying warp has read the slot. The copies and the products are both of the
// asynchronous proxy, so the barriers alone order them.
//
// Chunks are added in ascending order, 16 channels at a time, like those of conv2d.cuh. So the results have the bytes
// of the other kernels of warp groups, whatever the tile and the other images of the batch.
//
// The kernel starts before its predecessor on the stream has ended. It reads the weights and the bias at once, so the
// predecessor must not write them.

#include <cuda.h>

#include <cstdint>

#include "kernels/core/barriers.cuh"
#include "kernels/core/warp_group_products.cuh"
#include "kernels/image/conv2d_arguments.cuh"
#include "kernels/image/conv2d_phase.h"

namespace voxserve::kernels::cuda {

inline constexpr int kMaxIm2colPhases = 4;
inline constexpr int kIm2colChannels = 64;  // a chunk of 16-bit values

template <typename T>
struct Im2colArguments {
  CUtensorMap inputs[kMaxIm2colPhases];  // one for each phase
  Conv2dArguments<T> conv;
  int32_t num_tiles;           // of all phases, groups, positions and columns
  int32_t num_position_tiles;  // of the phase with the most positions
};

// The sizes of a block, which has an SM to itself.
template <int kWarpGroups, int kTileColumns, int kRingStages>
struct Im2colShape {
  static constexpr int kGroups = kWarpGroups;
  static constexpr int kRows = kWarpGroups * 64;
  static constexpr int kColumns = kTileColumns;
  static constexpr int kStages = kRingStages;
  static constexpr int kCopyThread = kWarpGroups * 128;
  static constexpr int kThreads = kCopyThread + 128;  // registers move between whole warp groups
  // kRegisters is a thread's share of an SM's registers at launch. The warp group of the copier lowers its number to
  // kCopyRegisters, and the multiplying threads raise theirs to kProductRegisters.
  static constexpr int kRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kCopyRegisters = kWarpGroups > 3 ? 24 : 40;
  static constexpr int kLeftRegisters = (kRegisters * kThreads - kCopyRegisters * 128) / kCopyThread / 8 * 8;
  static constexpr int kProductRegisters = kLeftRegisters > 240 ? 240 : kLeftRegisters;
  static constexpr int kInputBytes = kRows * kStageRowBytes;
  static constexpr int kStageBytes = kInputBytes + kColumns * kStageRowBytes;
  static constexpr int kAlignment = 1024;
  static constexpr int kSharedBytes = kStages * kStageBytes + kAlignment;
  static constexpr int kStaticBytes = 2048;  // barriers and bias, at most
  static constexpr int kKeptBias = 384;      // values; a longer bias is read from global memory
  // The parts of 32 columns whose residuals a thread loads ahead. Threads of large blocks have few registers.
  static constexpr int kPartsAhead = kWarpGroups > 3 ? 1 : 2;
  static_assert(kStageBytes % kAlignment == 0 && kInputBytes % kAlignment == 0);
  static_assert(kSharedBytes + kStaticBytes <= 227 * 1024, "more shared memory than an SM has");
};

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

// Starts a tensor copy in im2col mode: 64 channels, from `channel` on, of as many positions as the map says. The first
// position's first cell is at (column, row) of the image, possibly outside. The offsets lead from a position's first
// cell to the cell that is read.
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

// A place in the ring. `parity` is that of the slot's current phase, which changes with each round of the ring.
template <int kStages>
struct Im2colPlace {
  int32_t slot = 0;
  uint32_t parity = 0;

  __device__ void Advance() {
    if (++slot == kStages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// Describes a tile.
template <typename T, typename Shape>
struct Im2colTile {
  int32_t phase;
  int32_t group;
  int32_t first_column;
  int32_t first_position;
  int32_t num_positions;  // of the phase; if it is not above first_position, the tile is empty
  Conv2dPhase rows;
  Conv2dPhase columns;

  __device__ Im2colTile(const Im2colArguments<T>& arguments, int32_t number) {
    const Conv2dArguments<T>& conv = arguments.conv;
    int32_t rest = number / conv.num_column_tiles;
    first_column = (number - rest * conv.num_column_tiles) * Shape::kColumns;
    const int32_t groups_and_phases = rest / arguments.num_position_tiles;
    first_position = (rest - groups_and_phases * arguments.num_position_tiles) * Shape::kRows;
    phase = groups_and_phases / conv.geometry.groups;
    group = groups_and_phases - phase * conv.geometry.groups;
    const int32_t column_phases = NumPhases(conv.geometry, 1);
    rows = PhaseOf(conv.geometry, 0, conv.in_rows, phase / column_phases);
    columns = PhaseOf(conv.geometry, 1, conv.in_columns, phase % column_phases);
    num_positions = static_cast<int32_t>(conv.num_images) * rows.num_outputs * columns.num_outputs;
  }

  __device__ bool IsEmpty() const { return first_position >= num_positions; }
  __device__ int32_t NumChunks(const Conv2dArguments<T>& conv) const {
    return rows.num_cells * columns.num_cells * (conv.group_in_channels / kIm2colChannels);
  }
};

// The role of the thread that starts the copies.
template <typename T, typename Shape>
class Im2colCopier {
 public:
  __device__ Im2colCopier(const Im2colArguments<T>& arguments, uint32_t stages, uint32_t full, uint32_t empty)
      : arguments_(arguments), stages_(stages), full_(full), empty_(empty) {}

  __device__ void Run() {
    int32_t early = CopyFirstWeights();
    WaitForEarlierKernels();  // which write the inputs
    Im2colPlace<Shape::kStages> place;
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
      int32_t chunk = 0;
      for (int32_t row_cell = 0; row_cell < tile.rows.num_cells; ++row_cell) {
        for (int32_t column_cell = 0; column_cell < tile.columns.num_cells; ++column_cell) {
          for (int32_t channel = 0; channel < arguments_.conv.group_in_channels; channel += kIm2colChannels) {
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
  // Copies the weights of the first stages of the block's first tile and returns the number of these stages. The ring
  // is empty then, so there is nothing to wait for.
  __device__ int32_t CopyFirstWeights() const {
    const Im2colTile<T, Shape> tile(arguments_, static_cast<int32_t>(blockIdx.x));
    if (tile.IsEmpty()) return 0;
    const int32_t early = min(Shape::kStages, tile.NumChunks(arguments_.conv));
    for (int32_t chunk = 0; chunk < early; ++chunk) CopyWeights(tile, chunk, chunk);
    return early;
  }

  // Expects the bytes of a stage and starts to copy its weights. Rows after the last output channel are not copied;
  // what the slot holds there only reaches sums that are not stored.
  __device__ void CopyWeights(const Im2colTile<T, Shape>& tile, int32_t chunk, int32_t slot) const {
    const Conv2dArguments<T>& conv = arguments_.conv;
    const int32_t bytes = min(Shape::kColumns, conv.padded_out_channels - tile.first_column) * kStageRowBytes;
    const int64_t packed_slot = int64_t{tile.phase} * conv.geometry.groups + tile.group;
    const int64_t row = (packed_slot * conv.num_chunks + chunk) * conv.padded_out_channels + tile.first_column;
    ArriveExpecting(full_ + slot * 8, static_cast<uint32_t>(Shape::kInputBytes + bytes));
    CopyBulk(stages_ + slot * Shape::kStageBytes + Shape::kInputBytes, conv.weights + row * kStageRowBytes,
             static_cast<uint32_t>(bytes), full_ + slot * 8);
  }

  const Im2colArguments<T>& arguments_;
  const uint32_t stages_, full_, empty_;
};

// Gives lane t of each four neighbouring lanes the four values number t of these lanes, in the order of the lanes.
__device__ inline void TransposeInFourLanes(float (&values)[4]) {
  const uint32_t lane = threadIdx.x;
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool is_upper = (lane & bit) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      float& low = values[i];
      float& high = values[i + bit];
      const float got = __shfl_xor_sync(~0u, is_upper ? low : high, bit);
      low = is_upper ? got : low;
      high = is_upper ? high : got;
    }
  }
}

// The role of a warp group that computes and stores the sums of 64 positions of each tile.
template <typename T, typename Shape>
class Im2colProducts {
 public:
  __device__ Im2colProducts(const Im2colArguments<T>& arguments, uint32_t stages, uint32_t full, uint32_t empty,
                            uint32_t kept_bias)
      : arguments_(arguments), stages_(stages), full_(full), empty_(empty), kept_bias_(kept_bias) {}

  __device__ void Run() {
    KeepBias();
    WaitForEarlierKernels();  // which write the residual, and may still read the memory of the output
    const int32_t group = __shfl_sync(~0u, static_cast<int32_t>(threadIdx.x) / 128, 0);
    const uint64_t inputs = SwizzledMatrix(stages_ + group * 64 * kStageRowBytes);
    const uint64_t weights = SwizzledMatrix(stages_ + Shape::kInputBytes);
    const bool arrives = threadIdx.x % 32 == 0;
    Im2colPlace<Shape::kStages> place;
    for (auto number = static_cast<int32_t>(blockIdx.x); number < arguments_.num_tiles;
         number += static_cast<int32_t>(gridDim.x)) {
      const Im2colTile<T, Shape> tile(arguments_, number);
      if (tile.IsEmpty()) continue;
      const int32_t num_chunks = tile.NumChunks(arguments_.conv);
      float sums[Shape::kColumns / 2] = {};
      int32_t held = -1;  // the slot whose products may still run
      for (int32_t chunk = 0; chunk < num_chunks; ++chunk) {
        WaitForBarrier(full_ + place.slot * 8, place.parity);
        constexpr int kAddressUnit = 16;  // bytes of one step of the address in a matrix descriptor
        const uint64_t stage = static_cast<uint64_t>(place.slot) * (Shape::kStageBytes / kAddressUnit);
        BeginProducts();
#pragma unroll
        for (int step = 0; step < kIm2colChannels / 16; ++step) {
          constexpr int kStepAddress = 32 / kAddressUnit;
          MultiplyAddGroup<T>(sums, inputs + stage + step * kStepAddress, weights + stage + step * kStepAddress);
        }
        CommitProducts();
        WaitForProducts<1>();
        if (arrives && held >= 0) ArriveAtBarrier(empty_ + held * 8);
        held = place.slot;
        place.Advance();
      }
      const Outputs outputs = OutputsOf(tile);
      Residuals residuals;  // the first ones arrive while products run
#pragma unroll
      for (int part = 0; part < Shape::kPartsAhead; ++part) LoadResiduals(outputs, part, residuals);
      WaitForProducts<0>();
      HoldBackReads(sums);
      if (arrives && held >= 0) ArriveAtBarrier(empty_ + held * 8);
      if (arguments_.conv.is_out_float) {
        Store(outputs, sums, residuals, static_cast<float*>(arguments_.conv.out));
      } else {
        Store(outputs, sums, residuals, static_cast<T*>(arguments_.conv.out));
      }
    }
  }

 private:
  static constexpr int kParts = Shape::kColumns / 32;
  static constexpr int kCount = 8;  // neighbouring channels of a row that a thread stores in each part

  // The outputs that a thread stores.
  struct Outputs {
    int64_t rows[2];  // rows of the output; -1: there is no such position
    int32_t channel;  // the first channel of the first part
    int32_t end;      // the end of the group's channels
  };

  // Residuals are packed in 32-bit words, since single values of 16 bits would take a register each.
  using Words = Pack<uint32_t, kCount / 2>;
  struct Residuals {
    Words of[Shape::kPartsAhead][2];
  };

  // Copies the bias into shared memory, since it does not stay in the L1 cache. The predecessor on the stream does not
  // write it, so this happens before the wait.
  __device__ void KeepBias() const {
    if (!KeepsBias()) return;
    const Conv2dArguments<T>& conv = arguments_.conv;
    const int32_t num_channels = conv.group_out_channels * conv.geometry.groups;
    for (auto i = static_cast<int32_t>(threadIdx.x); i < num_channels; i += Shape::kCopyThread) {
      StoreSharedFloat(kept_bias_ + i * static_cast<uint32_t>(sizeof(float)), __ldg(conv.epilogue.bias + i));
    }
    SyncFirstThreads<Shape::kCopyThread>();
  }

  __device__ bool KeepsBias() const {
    const Conv2dArguments<T>& conv = arguments_.conv;
    return conv.epilogue.bias != nullptr && conv.group_out_channels * conv.geometry.groups <= Shape::kKeptBias;
  }

  // There must be a bias.
  __device__ Pack<float, kCount> LoadBias(int32_t channel) const {
    if (!KeepsBias()) return arguments_.conv.epilogue.template LoadBias<kCount>(channel);
    Pack<float, kCount> bias;
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float4 four = LoadSharedFloats(kept_bias_ + (channel + i) * static_cast<uint32_t>(sizeof(float)));
      bias.values[i] = four.x;
      bias.values[i + 1] = four.y;
      bias.values[i + 2] = four.z;
      bias.values[i + 3] = four.w;
    }
    return bias;
  }

  // Returns the row of the output at which a position of the tile's phase is; -1 if there is no such position.
  __device__ int64_t OutRow(const Im2colTile<T, Shape>& tile, int32_t position) const {
    if (position >= tile.num_positions) return -1;
    if (!arguments_.conv.geometry.is_transposed) return position;
    const int32_t in_row_of_images = position / tile.columns.num_outputs;
    const int32_t column = position - in_row_of_images * tile.columns.num_outputs;
    const int32_t image = in_row_of_images / tile.rows.num_outputs;
    const int32_t row = in_row_of_images - image * tile.rows.num_outputs;
    const int64_t out_row = int64_t{image} * arguments_.conv.out_rows + tile.rows.out_begin + row * tile.rows.out_step;
    return out_row * arguments_.conv.out_columns + tile.columns.out_begin + column * tile.columns.out_step;
  }

  __device__ Outputs OutputsOf(const Im2colTile<T, Shape>& tile) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t position = tile.first_position + static_cast<int32_t>(threadIdx.x / 32) * 16 + lane / 4;
    const int32_t first_channel = tile.group * arguments_.conv.group_out_channels;
    return {.rows = {OutRow(tile, position), OutRow(tile, position + 8)},
            .channel = first_channel + tile.first_column + lane % 4 * kCount,
            .end = first_channel + arguments_.conv.group_out_channels};
  }

  __device__ void LoadResiduals(const Outputs& outputs, int part, Residuals& to) const {
    if (arguments_.conv.epilogue.residual == nullptr) return;
    const int32_t channel = outputs.channel + part * 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (channel >= outputs.end || outputs.rows[half] < 0) continue;
      const Pack<T, kCount> values =
          arguments_.conv.epilogue.template LoadResidual<kCount>(outputs.rows[half], channel);
      to.of[part % Shape::kPartsAhead][half] = reinterpret_cast<const Words&>(values);
    }
  }

  // Stores the sums with their epilogue. In every 32 columns, a thread holds two columns of each eight, for two rows
  // (warp_group_products.cuh). The lanes that share a row exchange them, so that each stores eight neighbouring ones.
  template <typename Out>
  __device__ void Store(const Outputs& outputs, const float (&sums)[Shape::kColumns / 2], Residuals& residuals,
                        Out* out) const {
    const Conv2dArguments<T>& conv = arguments_.conv;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int32_t channel = outputs.channel + part * 32;
      const bool is_there = channel < outputs.end;
      Pack<float, kCount> bias;
      if (is_there && conv.epilogue.bias != nullptr) bias = LoadBias(channel);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float values[kCount];
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          float of_lanes[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) of_lanes[i] = sums[(part * 4 + i) * 4 + half * 2 + odd];
          TransposeInFourLanes(of_lanes);
#pragma unroll
          for (int i = 0; i < 4; ++i) values[2 * i + odd] = of_lanes[i];
        }
        if (!is_there || outputs.rows[half] < 0) continue;
        const Words& residual = residuals.of[part % Shape::kPartsAhead][half];
        conv.epilogue.Finish(values, bias, reinterpret_cast<const Pack<T, kCount>&>(residual),
                             out + outputs.rows[half] * conv.out_pitch + channel);
      }
      if (part + Shape::kPartsAhead < kParts) LoadResiduals(outputs, part + Shape::kPartsAhead, residuals);
    }
  }

  const Im2colArguments<T>& arguments_;
  const uint32_t stages_, full_, empty_, kept_bias_;
};

#endif

template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    Im2colKernel([[maybe_unused]] const __grid_constant__ Im2colArguments<T> arguments) {
#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS
  extern __shared__ unsigned char shared[];
  __shared__ uint64_t barriers[2 * Shape::kStages];
  __shared__ alignas(16) float bias[Shape::kKeptBias];
  static_assert(sizeof(barriers) + sizeof(bias) <= Shape::kStaticBytes);
  const uint32_t stages = (SharedAddress(shared) + Shape::kAlignment - 1) / Shape::kAlignment * Shape::kAlignment;
  const uint32_t full = SharedAddress(barriers);
  const uint32_t empty = full + Shape::kStages * 8;
  if (threadIdx.x < 2 * Shape::kStages) {
    const bool is_full = threadIdx.x < Shape::kStages;
    InitBarrier(full + threadIdx.x * 8, is_full ? 1 : Shape::kGroups * 4);
    PublishBarriers();
  }
  __syncthreads();
  if (threadIdx.x < Shape::kCopyThread) {
    SetRegisters<Shape::kProductRegisters, true>();
    Im2colProducts<T, Shape>(arguments, stages, full, empty, SharedAddress(bias)).Run();
  } else {
    SetRegisters<Shape::kCopyRegisters, false>();
    if (threadIdx.x == Shape::kCopyThread) Im2colCopier<T, Shape>(arguments, stages, full, empty).Run();
  }
#else
  __trap();  // unreachable: CodeVersion tells callers that this code is missing
#endif
}

}  // namespace voxserve::kernels::cuda
