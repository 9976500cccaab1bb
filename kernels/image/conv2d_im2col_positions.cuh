#pragma once

// PositionRows is the role of a multiplying warp group in the kernel of conv2d_im2col_kernel.cuh where positions are
// the rows of the products, and channels their columns. A tile then has a multiple of 64 positions. Only .cu files
// include this header.

#include <cstdint>

#include "kernels/image/conv2d_im2col_tile.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int kKeptBias = 384;  // values that are kept in shared memory; a longer bias is read from memory

template <typename T, typename Shape>
class PositionRows;

// A block of two to four warp groups, each of which has 64 positions of a tile and all its channels.
template <int kWarpGroups, int kTileChannels, int kRingStages>
struct PositionRowsShape : Im2colBlock<kWarpGroups, kWarpGroups * 64, kTileChannels, kRingStages, kKeptBias> {
  template <typename T>
  using Copier = Im2colCopier<T, PositionRowsShape>;
  template <typename T>
  using Products = PositionRows<T, PositionRowsShape>;
  template <typename T>
  using Tiles = Im2colTiles<T, PositionRowsShape>;
  // The parts of 32 channels whose residuals a thread loads ahead. Threads of large blocks have few registers.
  static constexpr int kPartsAhead = kWarpGroups > 3 ? 1 : 2;
};

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

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
class PositionRows {
 public:
  __device__ PositionRows(const Im2colArguments<T>& arguments, uint32_t stages, uint32_t full, uint32_t empty,
                          uint32_t kept_bias)
      : arguments_(arguments), stages_(stages), full_(full), empty_(empty), kept_bias_(kept_bias) {}

  __device__ void Run() {
    KeepBias();
    WaitForEarlierKernels();  // which write the residual, and may still read the memory of the output
    const int32_t group = __shfl_sync(~0u, static_cast<int32_t>(threadIdx.x) / 128, 0);
    const uint64_t inputs = SwizzledMatrix(stages_ + group * 64 * kStageRowBytes);
    const uint64_t weights = SwizzledMatrix(stages_ + Shape::kInputBytes);
    Im2colPlace<Shape::kStages> place;
    Tiles tiles(arguments_);
    for (auto number = static_cast<int32_t>(blockIdx.x); number < tiles.end();
         number += static_cast<int32_t>(gridDim.x)) {
      const auto tile = tiles.At(number);
      if (tile.IsEmpty()) continue;
      float sums[Shape::kChannels / 2] = {};
      const int32_t held =
          MultiplyChunks<T, Shape>(sums, inputs, weights, tile.NumChunks(arguments_.conv), full_, empty_, place);
      const Outputs outputs = OutputsOf(tile);
      Residuals residuals;  // the first ones arrive while products run
#pragma unroll
      for (int part = 0; part < Shape::kPartsAhead; ++part) LoadResiduals(outputs, part, residuals);
      WaitForProducts<0>();
      HoldBackReads(sums);
      if (threadIdx.x % 32 == 0 && held >= 0) ArriveAtBarrier(empty_ + held * 8);
      if (arguments_.conv.is_out_float) {
        Store(outputs, sums, residuals, static_cast<float*>(arguments_.conv.out));
      } else {
        Store(outputs, sums, residuals, static_cast<T*>(arguments_.conv.out));
      }
      if constexpr (Tiles::kCopies) tiles.Stored(tile);
    }
    if constexpr (Tiles::kCopies) {
      if (arguments_.conv.is_out_float) {
        CopyTiles(tiles, static_cast<float*>(arguments_.conv.out));
      } else {
        CopyTiles(tiles, static_cast<T*>(arguments_.conv.out));
      }
    }
  }

 private:
  using Tiles = typename Shape::template Tiles<T>;
  static constexpr int kParts = Shape::kChannels / 32;
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
    return conv.epilogue.bias != nullptr && conv.group_out_channels * conv.geometry.groups <= Shape::kSharedFloats;
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

  template <typename Tile>
  __device__ Outputs OutputsOf(const Tile& tile) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t position = tile.first_position + static_cast<int32_t>(threadIdx.x / 32) * 16 + lane / 4;
    const int32_t first_channel = tile.group * arguments_.conv.group_out_channels;
    return {.rows = {tile.OutRow(arguments_.conv, position), tile.OutRow(arguments_.conv, position + 8)},
            .channel = first_channel + tile.first_channel + lane % 4 * kCount,
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
  __device__ void Store(const Outputs& outputs, const float (&sums)[Shape::kChannels / 2], Residuals& residuals,
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

  // Stores the tiles that are copies of the first one.
  template <typename Out>
  __device__ void CopyTiles(Tiles& tiles, Out* out) const {
    for (auto number = static_cast<int32_t>(blockIdx.x); number < tiles.end_of_copies();
         number += static_cast<int32_t>(gridDim.x)) {
      const auto tile = tiles.CopyAt(number);
      const Outputs outputs = OutputsOf(tile), first = OutputsOf(tiles.AwaitFirst(tile));
      for (int part = 0; part < kParts; ++part) {
        const int32_t channel = outputs.channel + part * 32;
        if (channel >= outputs.end) break;
        constexpr int kVectors = kCount * static_cast<int>(sizeof(Out)) / static_cast<int>(sizeof(uint4));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const auto* const from =
              reinterpret_cast<const uint4*>(out + first.rows[half] * arguments_.conv.out_pitch + channel);
          auto* const to = reinterpret_cast<uint4*>(out + outputs.rows[half] * arguments_.conv.out_pitch + channel);
#pragma unroll
          for (int v = 0; v < kVectors; ++v) to[v] = __ldcg(from + v);
        }
      }
    }
  }

  const Im2colArguments<T>& arguments_;
  const uint32_t stages_, full_, empty_, kept_bias_;
};

#endif

}  // namespace voxserve::kernels::cuda
