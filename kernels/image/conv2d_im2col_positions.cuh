#pragma once

// PositionRows is the role of a multiplying warp group in the kernel of conv2d_im2col_kernel.cuh where positions are
// the rows of the products, and channels their columns. A tile then has a multiple of 64 positions. Only .cu files
// include this header.

#include <cstdint>

#include "kernels/image/conv2d_im2col_tile.cuh"
#include "kernels/image/conv2d_turned_sums.cuh"

namespace voxserve::kernels::cuda {

// The float32 values of shared memory that a block of PositionRows needs: for each warp group the bias of a tile's
// channels, and what its warps turn.
constexpr int NumPositionRowsFloats(int warp_groups, int channels) {
  return warp_groups * (channels + 4 * kTurnedFloats);
}

template <typename T, typename Shape>
class PositionRows;

// A block of two to four warp groups, each of which has 64 positions of a tile and all its channels.
template <int kWarpGroups, int kTileChannels, int kRingStages>
struct PositionRowsShape : Im2colBlock<kWarpGroups, kWarpGroups * 64, kTileChannels, kRingStages,
                                       NumPositionRowsFloats(kWarpGroups, kTileChannels)> {
  template <typename T>
  using Copier = Im2colCopier<T, PositionRowsShape>;
  template <typename T>
  using Products = PositionRows<T, PositionRowsShape>;
  template <typename T>
  using Tiles = Im2colTiles<T, PositionRowsShape>;
  template <typename T>
  using Ring = StageRing<T, PositionRowsShape>;
};

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

// The bias of a tile's channels in a warp group's shared memory. It is copied again if the next tile has other
// channels.
template <typename T, typename Shape>
class TileBias {
 public:
  // floats: the memory of all warp groups.
  __device__ TileBias(const Conv2dArguments<T>& conv, uint32_t floats, int32_t warp_group)
      : conv_(conv),
        kept_(floats + warp_group * Shape::kChannels * static_cast<uint32_t>(sizeof(float))),
        warp_group_(warp_group) {}

  // Begins to load the bias of the tile's channels. All threads of the warp group call it, and then Keep.
  template <typename Tile>
  __device__ void Load(const Tile& tile) {
    const int32_t group_begin = tile.group * conv_.group_out_channels, first = group_begin + tile.first_channel;
    is_new_ = conv_.epilogue.bias != nullptr && first != first_;
    first_ = first;
    if (!is_new_) return;
    const int32_t channel = first + static_cast<int32_t>(threadIdx.x % 128);
    value_ = channel < group_begin + conv_.group_out_channels ? __ldg(conv_.epilogue.bias + channel) : 0.0f;
  }
  __device__ void Keep() const {
    if (!is_new_) return;
    SyncWarpGroup(warp_group_);  // no thread reads the bias of the tile before
    if (const auto thread = static_cast<int32_t>(threadIdx.x % 128); thread < Shape::kChannels) {
      StoreSharedFloat(kept_ + thread * static_cast<uint32_t>(sizeof(float)), value_);
    }
    SyncWarpGroup(warp_group_);
  }

  // Returns the bias of the sums that a thread has in 16 channels of the tile, from `first` on; zeros without a bias.
  __device__ Pack<float, 8> Of(int32_t first) const {
    Pack<float, 8> bias = {};
    if (conv_.epilogue.bias == nullptr) return bias;
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const int32_t channel = first + eight * 8 + static_cast<int32_t>(threadIdx.x % 4) * 2;
      const float2 two = LoadTwoSharedFloats(kept_ + channel * static_cast<uint32_t>(sizeof(float)));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        bias.values[eight * 4 + half * 2] = two.x;
        bias.values[eight * 4 + half * 2 + 1] = two.y;
      }
    }
    return bias;
  }

 private:
  const Conv2dArguments<T>& conv_;
  const uint32_t kept_;
  const int32_t warp_group_;
  int32_t first_ = -1;
  bool is_new_ = false;
  float value_ = 0;
};

// The role of a warp group that computes and stores the sums of 64 positions of each tile.
template <typename T, typename Shape>
class PositionRows {
 public:
  __device__ PositionRows(const Im2colArguments<T>& arguments, uint32_t stages, uint32_t full, uint32_t empty,
                          uint32_t floats)
      : arguments_(arguments), stages_(stages), full_(full), empty_(empty), floats_(floats) {}

  __device__ void Run() {
    WaitForEarlierKernels();  // which write the residual, and may still read the memory of the output
    const int32_t group = __shfl_sync(~0u, static_cast<int32_t>(threadIdx.x) / 128, 0);
    Bias bias(arguments_.conv, floats_, group);
    const uint64_t inputs = SwizzledMatrix(stages_ + group * 64 * kStageRowBytes);
    const uint64_t weights = SwizzledMatrix(stages_ + Shape::kWeightsBegin);
    typename Shape::template Ring<T> ring(full_, empty_);
    Tiles tiles(arguments_);
    for (auto number = static_cast<int32_t>(blockIdx.x); number < tiles.end();
         number += static_cast<int32_t>(gridDim.x)) {
      const auto tile = tiles.At(number);
      if (tile.IsEmpty()) continue;
      bias.Load(tile);
      float sums[Shape::kChannels / 2] = {};
      ring.Multiply(sums, inputs, weights, tile.NumChunks(arguments_.conv));
      const Outputs outputs = OutputsOf(tile);
      Residuals residuals;  // the first ones arrive while products run
#pragma unroll
      for (int part = 0; part < Shape::kPartsAhead; ++part) LoadResiduals(outputs, part, residuals);
      bias.Keep();
      WaitForProducts<0>();
      HoldBackReads(sums);
      ring.Release();
      if (arguments_.conv.is_out_float) {
        Store(outputs, bias, sums, residuals, static_cast<float*>(arguments_.conv.out));
      } else {
        Store(outputs, bias, sums, residuals, static_cast<T*>(arguments_.conv.out));
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
  using Bias = TileBias<T, Shape>;
  static constexpr int kParts = Shape::kChannels / 32;
  static constexpr int kCount = 8;  // neighbouring channels of a row that a thread stores in each part

  // The outputs that a thread stores.
  struct Outputs {
    int64_t rows[2];  // rows of the output; -1: there is no such position
    int32_t first;    // the tile's first channel, the same for all threads
    int32_t channel;  // the first channel of the first part
    int32_t end;      // the end of the group's channels
  };

  // A part's residuals in both rows.
  struct Residuals {
    uint4 of[Shape::kPartsAhead][2];
  };

  template <typename Tile>
  __device__ Outputs OutputsOf(const Tile& tile) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t position = tile.first_position + static_cast<int32_t>(threadIdx.x / 32) * 16 + lane / 4;
    const int32_t group_begin = tile.group * arguments_.conv.group_out_channels,
                  first = group_begin + tile.first_channel;
    return {.rows = {tile.OutRow(arguments_.conv, position), tile.OutRow(arguments_.conv, position + 8)},
            .first = first,
            .channel = first + lane % 4 * kCount,
            .end = group_begin + arguments_.conv.group_out_channels};
  }

  __device__ void LoadResiduals(const Outputs& outputs, int part, Residuals& to) const {
    if (arguments_.conv.epilogue.residual == nullptr) return;
    const int32_t channel = outputs.channel + part * 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (channel >= outputs.end || outputs.rows[half] < 0) continue;
      const Pack<T, kCount> values =
          arguments_.conv.epilogue.template LoadResidual<kCount>(outputs.rows[half], channel);
      to.of[part % Shape::kPartsAhead][half] = reinterpret_cast<const uint4&>(values);
    }
  }

  // Stores the sums with their epilogue, 32 channels at a time.
  template <typename Out>
  __device__ void Store(const Outputs& outputs, const Bias& bias, const float (&sums)[Shape::kChannels / 2],
                        Residuals& residuals, Out* out) const {
    const Conv2dArguments<T>& conv = arguments_.conv;
    const TurnedPositions turned(floats_ + Shape::kGroups * Shape::kChannels * static_cast<uint32_t>(sizeof(float)));
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (outputs.first + part * 32 >= outputs.end) break;  // all threads
      Pack<T, 8> residual[2];
      if (conv.epilogue.residual != nullptr) {
        turned.ToSums(reinterpret_cast<const uint4(&)[2]>(residuals.of[part % Shape::kPartsAhead]),
                      reinterpret_cast<uint32_t(&)[8]>(residual));
        if (part + Shape::kPartsAhead < kParts) LoadResiduals(outputs, part + Shape::kPartsAhead, residuals);
      }
      Pack<Out, 8> results[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float values[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = sums[part * 16 + half * 8 + i];
        conv.epilogue.Finish(values, bias.Of(part * 32 + half * 16), residual[half], results[half].values);
      }
      Pack<Out, kCount> rows[2];
      turned.ToRows(results, rows);
      const int32_t channel = outputs.channel + part * 32;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (channel >= outputs.end || outputs.rows[half] < 0) continue;
        *reinterpret_cast<Pack<Out, kCount>*>(out + outputs.rows[half] * conv.out_pitch + channel) = rows[half];
      }
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
  const uint32_t stages_, full_, empty_, floats_;
};

#endif

}  // namespace voxserve::kernels::cuda
