#pragma once

// ChannelRows is the role of a multiplying warp group in the kernel of conv2d_im2col_kernel.cuh where channels are the
// rows of the products, and positions their columns. A product has 64 rows, but any multiple of 8 columns: so the
// number of a tile's positions can be one that divides an image evenly among the SMs. Only .cu files include this
// header.

#include <cstdint>

#include "kernels/image/conv2d_im2col_tile.cuh"
#include "kernels/image/conv2d_turned_sums.cuh"

namespace voxserve::kernels::cuda {

template <typename T, typename Shape>
class ChannelRows;

// The parts of a tile that the warp groups of a block take: 64 channels each, and a share of the positions.
template <int kWarpGroups, int kTileChannels, int kTilePositions>
struct ChannelRowsParts {
  static_assert(kTileChannels == 64 || kTileChannels == 128);
  static constexpr int kGroupsOfPositions = kWarpGroups / (kTileChannels / 64);
  static constexpr int kGroupPositions = kTilePositions / kGroupsOfPositions;
  static_assert(kGroupPositions % 8 == 0);
};

// A block of two warp groups.
template <int kTileChannels, int kTilePositions, int kRingStages>
struct ChannelRowsShape : Im2colBlock<2, kTilePositions, kTileChannels, kRingStages, 2 * 4 * kTurnedFloats>,
                          ChannelRowsParts<2, kTileChannels, kTilePositions> {
  template <typename T>
  using Copier = Im2colCopier<T, ChannelRowsShape>;
  template <typename T>
  using Products = ChannelRows<T, ChannelRowsShape>;
  template <typename T>
  using Tiles = Im2colTiles<T, ChannelRowsShape>;
  template <typename T>
  using Ring = StageRing<T, ChannelRowsShape>;
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
    const int32_t first_channel = group / Shape::kGroupsOfPositions * 64;
    const int32_t first_position = group % Shape::kGroupsOfPositions * Shape::kGroupPositions;
    const uint64_t weights = SwizzledMatrix(stages_ + Shape::kWeightsBegin + first_channel * kStageRowBytes);
    const uint64_t inputs = SwizzledMatrix(stages_ + first_position * kStageRowBytes);
    typename Shape::template Ring<T> ring(full_, empty_);
    Tiles tiles(arguments_);
    for (auto number = static_cast<int32_t>(blockIdx.x); number < tiles.end();
         number += static_cast<int32_t>(gridDim.x)) {
      const Tile tile = tiles.At(number);
      if (tile.IsEmpty()) continue;
      float sums[Shape::kGroupPositions / 2] = {};
      ring.Multiply(sums, weights, inputs, tile.NumChunks(arguments_.conv));
      const Outputs outputs = OutputsOf(tile, first_channel, first_position);
      uint4 residuals[kPassesAhead];  // the first ones arrive while products run
#pragma unroll
      for (int pass = 0; pass < kPassesAhead; ++pass) LoadResidual(tile, outputs, pass, residuals[pass]);
      WaitForProducts<0>();
      HoldBackReads(sums);
      ring.Release();
      if (arguments_.conv.is_out_float) {
        Store(tile, outputs, sums, residuals, static_cast<float*>(arguments_.conv.out));
      } else {
        Store(tile, outputs, sums, residuals, static_cast<T*>(arguments_.conv.out));
      }
    }
  }

 private:
  using Tiles = typename Shape::template Tiles<T>;
  using Tile = typename Tiles::Tile;
  static_assert(!Tiles::kCopies);
  static constexpr int kCount = 8;           // neighbouring channels of a position that a lane stores in each pass
  static constexpr int kPassPositions = 16;  // that a warp stores at a time
  static constexpr int kPasses = (Shape::kGroupPositions + kPassPositions - 1) / kPassPositions;
  static constexpr int kPassesAhead = 2;

  // The outputs that a lane stores: in each pass one position of the warp's, and half of its 16 channels.
  struct Outputs {
    int32_t position;       // of the first pass
    int32_t end;            // the end of the warp group's positions
    int32_t channel;        // the first; -1: the group has no such channel
    int32_t first_channel;  // of the warp
    int32_t end_channel;    // of the group
  };

  __device__ Outputs OutputsOf(const Tile& tile, int32_t first_channel, int32_t first_position) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const auto warp = static_cast<int32_t>(threadIdx.x / 32 % 4);
    const int32_t begin = tile.group * arguments_.conv.group_out_channels;
    const int32_t end = begin + arguments_.conv.group_out_channels;
    const int32_t first = begin + tile.first_channel + first_channel + warp * 16;
    const int32_t channel = first + lane % 2 * kCount;
    return {.position = tile.first_position + first_position + lane / 2,
            .end = tile.first_position + first_position + Shape::kGroupPositions,
            .channel = channel < end ? channel : -1,
            .first_channel = first,
            .end_channel = end};
  }

  // Returns the row of the output in which the lane stores; -1: in none.
  __device__ int64_t OutRow(const Tile& tile, const Outputs& outputs, int pass) const {
    const int32_t position = outputs.position + pass * kPassPositions;
    return outputs.channel < 0 || position >= outputs.end ? -1 : tile.OutRow(arguments_.conv, position);
  }

  __device__ void LoadResidual(const Tile& tile, const Outputs& outputs, int pass, uint4& residual) const {
    if (arguments_.conv.epilogue.residual == nullptr) return;
    const int64_t row = OutRow(tile, outputs, pass);
    if (row < 0) return;
    const Pack<T, kCount> values = arguments_.conv.epilogue.template LoadResidual<kCount>(row, outputs.channel);
    residual = reinterpret_cast<const uint4&>(values);
  }

  // Returns the bias of the sums that a lane has in a pass. There must be a bias.
  __device__ Pack<float, 8> LoadBias(const Outputs& outputs) const {
    Pack<float, 8> bias;
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t first = outputs.first_channel + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t channel = first + half * 8;
      const float value = channel < outputs.end_channel ? __ldg(arguments_.conv.epilogue.bias + channel) : 0.0f;
#pragma unroll
      for (int i = 0; i < 4; ++i) bias.values[i / 2 * 4 + half * 2 + i % 2] = value;
    }
    return bias;
  }

  // Stores the sums with their epilogue.
  template <typename Out>
  __device__ void Store(const Tile& tile, const Outputs& outputs, const float (&sums)[Shape::kGroupPositions / 2],
                        uint4 (&residuals)[kPassesAhead], Out* out) const {
    const Conv2dArguments<T>& conv = arguments_.conv;
    const TurnedChannels turned(turned_);
    Pack<float, 8> bias;
    if (conv.epilogue.bias != nullptr) bias = LoadBias(outputs);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      Pack<T, 8> residual;
      if (conv.epilogue.residual != nullptr) {
        turned.ToSums(residuals[pass % kPassesAhead], reinterpret_cast<uint32_t(&)[4]>(residual));
        if (pass + kPassesAhead < kPasses) {
          LoadResidual(tile, outputs, pass + kPassesAhead, residuals[pass % kPassesAhead]);
        }
      }
      float values[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] = pass * 8 + i < Shape::kGroupPositions / 2 ? sums[pass * 8 + i] : 0.0f;
      Pack<Out, 8> results, row;
      conv.epilogue.Finish(values, bias, residual, results.values);
      turned.ToRow(results, row);
      const int64_t to = OutRow(tile, outputs, pass);
      if (to >= 0) *reinterpret_cast<Pack<Out, 8>*>(out + to * conv.out_pitch + outputs.channel) = row;
    }
  }

  const Im2colArguments<T>& arguments_;
  const uint32_t stages_, full_, empty_, turned_;
};

#endif

}  // namespace voxserve::kernels::cuda
