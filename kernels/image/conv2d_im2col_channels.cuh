#pragma once

// ChannelRows is the role of a multiplying warp group in the kernel of conv2d_im2col_kernel.cuh where channels are the
// rows of the products, and positions their columns. A product has 64 rows, but any multiple of 8 columns: so the
// number of a tile's positions can be one that divides an image evenly among the SMs. Only .cu files include this
// header.

#include <cstdint>

#include "kernels/image/conv2d_im2col_tile.cuh"

namespace voxserve::kernels::cuda {

// A warp passes the sums of 16 channels and 16 positions through shared memory, where it turns them. The lines of a
// position are longer than its 16 channels, so that neither writes nor reads meet in a bank.
inline constexpr int kTurnedPositions = 16;
inline constexpr int kTurnedPitch = 20;

template <typename T, typename Shape>
class ChannelRows;

// A block of two warp groups. Tiles of 128 channels have 64 for each group; of tiles of 64 channels each group takes
// half of the positions.
template <int kTileChannels, int kTilePositions, int kRingStages>
struct ChannelRowsShape
    : Im2colBlock<2, kTilePositions, kTileChannels, kRingStages, 2 * 4 * kTurnedPositions * kTurnedPitch> {
  template <typename T>
  using Copier = Im2colCopier<T, ChannelRowsShape>;
  template <typename T>
  using Products = ChannelRows<T, ChannelRowsShape>;
  static_assert(kTileChannels == 64 || kTileChannels == 128);
  static constexpr int kGroupPositions = kTileChannels == 128 ? kTilePositions : kTilePositions / 2;
  static_assert(kGroupPositions % 8 == 0);
};

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

template <typename T, typename Shape>
class ChannelRows {
 public:
  // turned: the shared memory in which warps turn their sums.
  __device__ ChannelRows(const Im2colArguments<T>& arguments, uint32_t stages, uint32_t full, uint32_t empty,
                         uint32_t turned)
      : arguments_(arguments), stages_(stages), full_(full), empty_(empty), turned_(turned) {}

  __device__ void Run() {
    WaitForEarlierKernels();  // which write the residual, and may still read the memory of the output
    const int32_t group = __shfl_sync(~0u, static_cast<int32_t>(threadIdx.x) / 128, 0);
    constexpr bool kSharesPositions = Shape::kChannels == 128;
    const int32_t first_channel = kSharesPositions ? group * 64 : 0;
    const int32_t first_position = kSharesPositions ? 0 : group * Shape::kGroupPositions;
    const uint64_t weights = SwizzledMatrix(stages_ + Shape::kInputBytes + first_channel * kStageRowBytes);
    const uint64_t inputs = SwizzledMatrix(stages_ + first_position * kStageRowBytes);
    Im2colPlace<Shape::kStages> place;
    for (auto number = static_cast<int32_t>(blockIdx.x); number < arguments_.num_tiles;
         number += static_cast<int32_t>(gridDim.x)) {
      const Im2colTile<T, Shape> tile(arguments_, number);
      if (tile.IsEmpty()) continue;
      float sums[Shape::kGroupPositions / 2] = {};
      const int32_t held =
          MultiplyChunks<T, Shape>(sums, weights, inputs, tile.NumChunks(arguments_.conv), full_, empty_, place);
      const Outputs outputs = OutputsOf(tile, first_channel, first_position);
      Pack<T, kCount> residuals[kPassesAhead];  // the first ones arrive while products run
#pragma unroll
      for (int pass = 0; pass < kPassesAhead; ++pass) LoadResidual(tile, outputs, pass, residuals[pass]);
      WaitForProducts<0>();
      HoldBackReads(sums);
      if (threadIdx.x % 32 == 0 && held >= 0) ArriveAtBarrier(empty_ + held * 8);
      if (arguments_.conv.is_out_float) {
        Store(tile, outputs, sums, residuals, static_cast<float*>(arguments_.conv.out));
      } else {
        Store(tile, outputs, sums, residuals, static_cast<T*>(arguments_.conv.out));
      }
    }
  }

 private:
  static constexpr int kCount = 8;  // neighbouring channels of a position that a lane stores in each pass
  static constexpr int kPasses = (Shape::kGroupPositions + kTurnedPositions - 1) / kTurnedPositions;
  static constexpr int kPassesAhead = 2;

  // The outputs that a lane stores: in each pass one position of the warp's, and half of its 16 channels.
  struct Outputs {
    int32_t position;  // of the first pass
    int32_t end;       // the end of the warp group's positions
    int32_t channel;   // the first; -1: the group has no such channel
  };

  __device__ Outputs OutputsOf(const Im2colTile<T, Shape>& tile, int32_t first_channel, int32_t first_position) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const auto warp = static_cast<int32_t>(threadIdx.x / 32 % 4);
    const int32_t channel = tile.first_channel + first_channel + warp * 16 + lane / kTurnedPositions * kCount;
    const int32_t channels = arguments_.conv.group_out_channels;
    return {.position = tile.first_position + first_position + lane % kTurnedPositions,
            .end = tile.first_position + first_position + Shape::kGroupPositions,
            .channel = channel < channels ? tile.group * channels + channel : -1};
  }

  // Returns the row of the output in which the lane stores; -1: in none.
  __device__ int64_t OutRow(const Im2colTile<T, Shape>& tile, const Outputs& outputs, int pass) const {
    const int32_t position = outputs.position + pass * kTurnedPositions;
    return outputs.channel < 0 || position >= outputs.end ? -1 : tile.OutRow(arguments_.conv, position);
  }

  __device__ void LoadResidual(const Im2colTile<T, Shape>& tile, const Outputs& outputs, int pass,
                               Pack<T, kCount>& residual) const {
    if (arguments_.conv.epilogue.residual == nullptr) return;
    const int64_t row = OutRow(tile, outputs, pass);
    if (row >= 0) residual = arguments_.conv.epilogue.template LoadResidual<kCount>(row, outputs.channel);
  }

  // Stores the sums with their epilogue. A lane holds sums of two channels and two positions of each eight
  // (warp_group_products.cuh).
  template <typename Out>
  __device__ void Store(const Im2colTile<T, Shape>& tile, const Outputs& outputs,
                        const float (&sums)[Shape::kGroupPositions / 2], Pack<T, kCount> (&residuals)[kPassesAhead],
                        Out* out) const {
    const Conv2dArguments<T>& conv = arguments_.conv;
    constexpr auto kFloat = static_cast<uint32_t>(sizeof(float));
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t lines = turned_ + threadIdx.x / 32 * (kTurnedPositions * kTurnedPitch * kFloat);
    const uint32_t to = lines + (lane % 4 * 2 * kTurnedPitch + lane / 4) * kFloat;
    const uint32_t from = lines + (lane % kTurnedPositions * kTurnedPitch + lane / kTurnedPositions * kCount) * kFloat;
    Pack<float, kCount> bias;
    if (outputs.channel >= 0 && conv.epilogue.bias != nullptr) {
      bias = conv.epilogue.template LoadBias<kCount>(outputs.channel);
    }
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      __syncwarp();  // all lanes have read the values of the pass before
#pragma unroll
      for (int eight = 0; eight < kTurnedPositions / 8; ++eight) {
        const int first = (pass * kTurnedPositions / 8 + eight) * 4;
        if (first >= Shape::kGroupPositions / 2) continue;
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const uint32_t line = to + (eight * 8 + odd) * kTurnedPitch * kFloat;
          StoreSharedFloat(line, sums[first + odd]);
          StoreSharedFloat(line + 8 * kFloat, sums[first + 2 + odd]);
        }
      }
      __syncwarp();
      float values[kCount];
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        const float4 four = LoadSharedFloats(from + i * kFloat);
        values[i] = four.x;
        values[i + 1] = four.y;
        values[i + 2] = four.z;
        values[i + 3] = four.w;
      }
      const Pack<T, kCount> residual = residuals[pass % kPassesAhead];
      if (pass + kPassesAhead < kPasses) {
        LoadResidual(tile, outputs, pass + kPassesAhead, residuals[pass % kPassesAhead]);
      }
      const int64_t row = OutRow(tile, outputs, pass);
      if (row >= 0) conv.epilogue.Finish(values, bias, residual, out + row * conv.out_pitch + outputs.channel);
    }
  }

  const Im2colArguments<T>& arguments_;
  const uint32_t stages_, full_, empty_, turned_;
};

#endif

}  // namespace voxserve::kernels::cuda
