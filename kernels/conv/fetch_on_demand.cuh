#pragma once

// The kernel of fetch-on-demand (kernels/conv/fetch_on_demand.h). Included by .cu files alone.
//
// A block owns a tile of output rows and a slice of output channels, whose float32 sums it keeps in shared memory. It
// lists the pairs of each offset within the tile, then goes through stages: some pairs of an offset and a chunk of
// input channels. A stage's weights and gathered input rows are copied to a ring of buffers ahead of time, across
// offsets, so that the copies never drain. Products are taken the other way round, sums^T = weights^T inputs^T: pairs
// are then the short side of the tensor cores' product and are padded to 8, not to 16, and what padding holds stays in
// its own columns. After an offset's last chunk a warp adds its products to the sums of the pairs' rows. Rows are
// distinct within an offset, and a barrier lies between stages: no atomics, and one order of additions.

#include <cstdint>

#include "kernels/conv/fetch_on_demand_stages.cuh"
#include "kernels/core/epilogue.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/tensor_cores.cuh"

namespace voxserve::kernels::cuda {

template <int kChannels, int kGroups>
struct FetchOnDemandBlock {
  static constexpr int kBlockChannels = kChannels;
  static constexpr int kPairGroups = kGroups;
  static constexpr int kChannelGroups = kBlockChannels / kWarpChannels;
  static constexpr int kWarps = kChannelGroups * kPairGroups;
  static constexpr int kThreads = kWarps * kWarpLanes;
  static constexpr int kTiles = kMaxStagePairs / kPairTile / kPairGroups;  // of a warp, in a stage
  static_assert(kTiles % 2 == 0 && kThreads % (kBlockChannels / kVectorChannels) == 0);
  // What the launch bounds ask for: 16 warps an SM where a block has not that many by itself.
  static constexpr int kBlocksAnSm = kWarps >= 12 ? 1 : kWarps <= 4 ? 4 : 2;
};

// Copies up to 8 values, the others become 0. `from` need not be a valid address where there are none.
template <typename T>
__device__ inline void CopyVector(T* to, const T* from, int32_t count, bool is_aligned, const T* anywhere) {
  if (is_aligned) {
    CopyAsync16(SharedAddress(to), count > 0 ? from : anywhere, count * int32_t{sizeof(T)});
    return;
  }
  Pack<T, kVectorChannels> values;
#pragma unroll
  for (int i = 0; i < kVectorChannels; ++i) values.values[i] = i < count ? from[i] : FromFloat<T>(0);
  *reinterpret_cast<Pack<T, kVectorChannels>*>(to) = values;
}

// All but the thread's last num_pending groups, which are kMinStages - 2 to kMaxStages - 2.
__device__ inline void WaitForStage(int32_t num_pending) {
  static_assert(kMinStages == 3 && kMaxStages == 4);
  if (num_pending == 1) {
    WaitForCopies<1>();
  } else {
    WaitForCopies<2>();
  }
}

// The place of an offset's weights: its position in WalkOrder.
__device__ inline int32_t WalkPosition(int32_t offset, int32_t num_offsets, bool is_symmetric) {
  if (!is_symmetric) return offset;
  const int32_t mirrored = num_offsets - 1 - offset;
  return offset <= mirrored ? 2 * offset : 2 * mirrored + 1;
}

// Where a warp's matrices of a stage lie: the lane's rows of the first ones, and the steps to others, in bytes.
struct StageMatrices {
  uint32_t weights;
  uint32_t weight_step;  // to the next 16 input channels
  uint32_t features;
  uint32_t two_tiles;  // to the warp's tile after the next
  int32_t num_steps;   // of 16 input channels
};

// Products of kTiles tiles of pairs, every kPairGroups-th one, with 32 channels. Channels of tile m of a product:
// 16 m + 8 h + g, with h the upper half of registers.
template <typename T, int kTiles, int kMaxTiles>
__device__ __forceinline__ void MultiplyTiles(bool is_first, float (&products)[kMaxTiles][2][4],
                                              StageMatrices matrices) {
  constexpr uint32_t kStepBytes = 16 * sizeof(T);  // of 16 channels, of the input or the output
  if (is_first) {
#pragma unroll
    for (int i = 0; i < kTiles * 8; ++i) products[i / 8][i / 4 % 2][i % 4] = 0;
  }
#pragma unroll 2
  for (int32_t step = 0; step < matrices.num_steps; ++step) {
    uint32_t a[2][4];
    LoadMatricesTransposed(a[0], matrices.weights);
    LoadMatricesTransposed(a[1], matrices.weights + kStepBytes);
#pragma unroll
    for (int tile = 0; tile < kTiles; tile += 2) {
      const uint32_t rows = matrices.features + static_cast<uint32_t>(tile / 2) * matrices.two_tiles;
      if (tile + 1 < kTiles) {
        uint32_t b[4];
        LoadMatrices(b, rows);
        MultiplyAdd<T>(products[tile][0], a[0], b[0], b[1]);
        MultiplyAdd<T>(products[tile][1], a[1], b[0], b[1]);
        MultiplyAdd<T>(products[tile + 1][0], a[0], b[2], b[3]);
        MultiplyAdd<T>(products[tile + 1][1], a[1], b[2], b[3]);
      } else {
        uint32_t b[2];
        LoadMatrices(b, rows);
        MultiplyAdd<T>(products[tile][0], a[0], b[0], b[1]);
        MultiplyAdd<T>(products[tile][1], a[1], b[0], b[1]);
      }
    }
    matrices.weights += matrices.weight_step;
    matrices.features += kStepBytes;
  }
}

// MultiplyTiles<T, num_tiles>, for kTiles <= num_tiles <= kMaxTiles.
template <typename T, int kTiles, int kMaxTiles>
__device__ __forceinline__ void MultiplyFrom(int32_t num_tiles, bool is_first, float (&products)[kMaxTiles][2][4],
                                             const StageMatrices& matrices) {
  if constexpr (kTiles <= kMaxTiles) {
    if (num_tiles == kTiles) {
      MultiplyTiles<T, kTiles>(is_first, products, matrices);
    } else {
      MultiplyFrom<T, kTiles + 1>(num_tiles, is_first, products, matrices);
    }
  }
}

__device__ inline void SwapIf(bool condition, float& a, float& b) {
  const float old_a = a;
  a = condition ? b : a;
  b = condition ? old_a : b;
}

// Adds the products of two tiles to the sums of their pairs' rows. sums: the lane's channel g of the warp's first row.
// out_rows: the two tiles' pairs 2t, 2t+1 in the list, of which num_pairs exist.
//
// The lanes of one access have different rows, so that the same eight channels of each would meet in the same banks.
// Lanes of different t take different blocks of eight channels instead, block s ^ t in step s; rows are multiples of 32
// channels long, and all 32 lanes meet different banks whatever the rows.
template <int kBlockChannels>
__device__ __forceinline__ void AddToSums(float* sums, const float (&first)[2][4], const float (&second)[2][4],
                                          const uint16_t* const (&out_rows)[2], const int32_t (&num_pairs)[2],
                                          int32_t t) {
  constexpr int kColumns = 4;  // pairs of a lane
  constexpr int kBlocks = 4;
  float values[kColumns][kBlocks];
  float* rows[kColumns];
  bool is_pair[kColumns];
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    const int tile = column / 2, odd = column % 2;
    const float(&of_tile)[2][4] = tile == 0 ? first : second;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) values[column][block] = of_tile[block / 2][block % 2 * 2 + odd];
    SwapIf((t & 1) != 0, values[column][0], values[column][1]);
    SwapIf((t & 1) != 0, values[column][2], values[column][3]);
    SwapIf((t & 2) != 0, values[column][0], values[column][2]);
    SwapIf((t & 2) != 0, values[column][1], values[column][3]);
    is_pair[column] = odd < num_pairs[tile];
  }
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const uint32_t two_rows = is_pair[2 * tile] ? *reinterpret_cast<const uint32_t*>(out_rows[tile]) : 0;
    rows[2 * tile] = sums + (two_rows & 0xffff) * kBlockChannels;
    rows[2 * tile + 1] = sums + (two_rows >> 16) * kBlockChannels;
  }
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
#pragma unroll
    for (int step = 0; step < kBlocks; ++step) {
      if (is_pair[column]) values[column][step] += rows[column][(step ^ t) * kPairTile];
    }
  }
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
#pragma unroll
    for (int step = 0; step < kBlocks; ++step) {
      if (is_pair[column]) rows[column][(step ^ t) * kPairTile] = values[column][step];
    }
  }
}

// What the threads of a block share, and what they do with it.
template <typename T, typename Block>
class FetchOnDemandTile {
 public:
  __device__ FetchOnDemandTile(const FetchOnDemandArguments<T>& arguments, unsigned char* shared)
      : arguments_(arguments),
        shape_(arguments.shape),
        first_row_(blockIdx.x / arguments.num_slices * int64_t{arguments.shape.tile_rows}),
        num_rows_(static_cast<int32_t>(min(int64_t{shape_.tile_rows}, arguments.num_out_rows - first_row_))),
        first_channel_(static_cast<int32_t>(blockIdx.x % arguments.num_slices) * Block::kBlockChannels),
        stage_bytes_(shape_.StageBytes()),
        sums_(reinterpret_cast<float*>(shared)),
        stages_(shared + shape_.SumBytes()) {
    unsigned char* const ranges = stages_ + shape_.num_stages * stage_bytes_;
    lists_.state = reinterpret_cast<ListState*>(ranges);
    lists_.ranges = reinterpret_cast<PairRange*>(ranges + sizeof(ListState));
    lists_.in_rows = reinterpret_cast<int32_t*>(ranges + shape_.RangeBytes());
    lists_.out_rows = reinterpret_cast<uint16_t*>(lists_.in_rows + shape_.list_entries);
  }

  __device__ void Run() {
    for (int32_t i = threadIdx.x; i < shape_.tile_rows * Block::kBlockChannels / 4; i += Block::kThreads) {
      reinterpret_cast<float4*>(sums_)[i] = make_float4(0, 0, 0, 0);
    }
    // All offsets, as far as their lists have room; then as many at a time as surely have.
    int32_t wanted = arguments_.num_offsets;
    for (int32_t first = 0; first < arguments_.num_offsets;) {
      const int32_t end = ListPairs(first, min(first + wanted, arguments_.num_offsets));
      AddOffsets(first, end);
      first = end;
      wanted = shape_.list_entries / shape_.tile_rows;
    }
    __syncthreads();
    if (arguments_.is_out_float) {
      Store(static_cast<float*>(arguments_.out));
    } else {
      Store(static_cast<T*>(arguments_.out));
    }
  }

 private:
  static constexpr int32_t kWeightPitch = Block::kBlockChannels + kRowPadding;

  // The offset where it ended. Nobody uses the lists of before any more.
  __device__ int32_t ListPairs(int32_t first, int32_t end) const {
    if (threadIdx.x == 0) {
      lists_.state->used = 0;
      lists_.state->end = end;
    }
    __syncthreads();
    if (shape_.tile_rows <= 4 * kWarpLanes) {
      lists_.template Fill<Block::kWarps, 4>(arguments_, first_row_, num_rows_, first, end);
    } else if (shape_.tile_rows <= 8 * kWarpLanes) {
      lists_.template Fill<Block::kWarps, 8>(arguments_, first_row_, num_rows_, first, end);
    } else {
      lists_.template Fill<Block::kWarps, kMaxRowGroups>(arguments_, first_row_, num_rows_, first, end);
    }
    __syncthreads();
    return lists_.state->end;
  }

  // Goes through the stages of listed offsets [first, end). All copies have arrived at its end, and all threads are
  // there.
  __device__ void AddOffsets(int32_t first, int32_t end) const {
    StageCursor ahead(first, end, lists_.ranges);
    StageCursor now = ahead;
    const auto load_ahead = [&](int32_t stage) {
      if (!ahead.IsAtEnd()) {
        LoadStage(ahead, stage);
        ahead.Advance(shape_, lists_.ranges);
      }
      CommitCopies();  // an empty group too: they are counted
    };
    for (int32_t stage = 0; stage < shape_.num_stages - 1; ++stage) load_ahead(stage);

    float products[Block::kTiles][2][4];
    int32_t stage = 0;
    while (!now.IsAtEnd()) {
      WaitForStage(shape_.num_stages - 2);
      __syncthreads();  // the stage is there for all, and all have left the one before
      load_ahead(stage == 0 ? shape_.num_stages - 1 : stage - 1);
      MultiplyStage(now, stage, products);
      now.Advance(shape_, lists_.ranges);
      if (++stage == shape_.num_stages) stage = 0;
    }
    WaitForCopies<0>();
    __syncthreads();
  }

  __device__ T* StageWeights(int32_t stage) const { return reinterpret_cast<T*>(stages_ + stage * stage_bytes_); }
  __device__ T* StageFeatures(int32_t stage) const {
    return StageWeights(stage) + shape_.chunk_channels * kWeightPitch;
  }

  __device__ void LoadStage(const StageCursor& cursor, int32_t stage) const {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const int32_t first_in_channel = cursor.chunk * shape_.chunk_channels;
    const int32_t num_in_channels = arguments_.in_channels - first_in_channel;  // may be more than the chunk's
    {
      constexpr int32_t kVectors = Block::kBlockChannels / kVectorChannels;
      const int32_t channel = thread % kVectors * kVectorChannels;
      const int32_t out_channel = first_channel_ + channel;
      const int32_t count = min(kVectorChannels, arguments_.out_channels - out_channel);
      const int64_t position = WalkPosition(cursor.offset, arguments_.num_offsets, arguments_.is_symmetric);
      const T* const weights = arguments_.weights +
                               (position * arguments_.in_channels + first_in_channel) * arguments_.out_channels +
                               out_channel;
      constexpr int32_t kRows = Block::kThreads / kVectors;  // at once
      T* to = StageWeights(stage) + channel + thread / kVectors * kWeightPitch;
      const T* from = weights + int64_t{thread / kVectors} * arguments_.out_channels;
      for (int32_t row = thread / kVectors; row < shape_.chunk_channels; row += kRows) {
        CopyVector(to, from, row < num_in_channels ? max(count, 0) : 0, arguments_.weight_vectors, arguments_.weights);
        to += kRows * kWeightPitch;
        from += int64_t{kRows} * arguments_.out_channels;
      }
    }
    {
      constexpr int32_t kVectors = kMaxChunkChannels / kVectorChannels;
      const int32_t channel = thread % kVectors * kVectorChannels;
      if (channel >= shape_.chunk_channels) return;
      const int32_t count = max(0, min(kVectorChannels, num_in_channels - channel));
      const int32_t* const in_rows = lists_.in_rows + cursor.range.begin + cursor.pair;
      const T* const in = arguments_.in + first_in_channel + channel;
      T* const to = StageFeatures(stage) + channel;
      const int32_t num_pairs = cursor.NumPairs(shape_);
#pragma unroll 2
      for (int32_t pair = thread / kVectors; pair < num_pairs; pair += Block::kThreads / kVectors) {
        CopyVector(to + pair * shape_.FeaturePitch(), in + in_rows[pair] * arguments_.in_pitch, count,
                   arguments_.in_vectors, arguments_.in);
      }
    }
  }

  // products: of the pairs under way, kept from chunk to chunk.
  __device__ __forceinline__ void MultiplyStage(const StageCursor& cursor, int32_t stage,
                                                float (&products)[Block::kTiles][2][4]) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
    const auto warp = static_cast<int32_t>(threadIdx.x / kWarpLanes);
    const int32_t channel_group = warp % Block::kChannelGroups;
    const int32_t pair_group = warp / Block::kChannelGroups;
    const int32_t num_pairs = cursor.NumPairs(shape_);
    // Of the warp: tiles pair_group, pair_group + kPairGroups, ...
    const int32_t num_tiles =
        ((num_pairs + kPairTile - 1) / kPairTile - pair_group + Block::kPairGroups - 1) / Block::kPairGroups;
    if (num_tiles <= 0) return;
    // Matrices of weights: (input channels 0-7, output channels 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15).
    const T* const weights = StageWeights(stage) + (lane % 8 + lane / 16 * 8) * kWeightPitch +
                             channel_group * kWarpChannels + lane / 8 % 2 * 8;
    // Of features: (pairs of the first tile, input channels 0-7), (first, 8-15), (second, 0-7), (second, 8-15).
    const int32_t first_tile = pair_group + lane / 16 * Block::kPairGroups;
    const T* const features =
        StageFeatures(stage) + (first_tile * kPairTile + lane % 8) * shape_.FeaturePitch() + lane / 8 % 2 * 8;
    constexpr uint32_t kBytes = sizeof(T);
    const StageMatrices matrices{
        .weights = SharedAddress(weights),
        .weight_step = 16 * kBytes * kWeightPitch,
        .features = SharedAddress(features),
        .two_tiles = 2 * Block::kPairGroups * kPairTile * kBytes * static_cast<uint32_t>(shape_.FeaturePitch()),
        .num_steps = shape_.chunk_channels / 16};
    MultiplyFrom<T, 1>(num_tiles, cursor.chunk == 0, products, matrices);
    if (cursor.chunk + 1 < shape_.num_chunks) return;

    const int32_t g = lane / 4, t = lane % 4;
    float* const sums = sums_ + channel_group * kWarpChannels + g;
    const uint16_t* const out_rows = lists_.out_rows + cursor.range.begin + cursor.pair;
#pragma unroll
    for (int tile = 0; tile < Block::kTiles; tile += 2) {
      if (tile >= num_tiles) break;
      const int32_t first_pair = (pair_group + tile * Block::kPairGroups) * kPairTile + 2 * t;
      const int32_t second_pair = first_pair + Block::kPairGroups * kPairTile;
      AddToSums<Block::kBlockChannels>(sums, products[tile], products[tile + 1],
                                       {out_rows + first_pair, out_rows + second_pair},
                                       {num_pairs - first_pair, num_pairs - second_pair}, t);
    }
  }

  template <typename Out>
  __device__ void Store(Out* out) const {
    if (arguments_.out_vectors) {
      StoreVectors<kVectorChannels>(out);
    } else {
      StoreVectors<1>(out);
    }
  }

  template <int kCount, typename Out>
  __device__ void StoreVectors(Out* out) const {
    constexpr int32_t kVectors = Block::kBlockChannels / kCount;
    for (int32_t i = threadIdx.x; i < num_rows_ * kVectors; i += Block::kThreads) {
      const int32_t row = i / kVectors;
      const int32_t channel = i % kVectors * kCount;
      if (first_channel_ + channel >= arguments_.out_channels) continue;
      Pack<float, kCount> sums =
          LoadPack<kCount>(static_cast<const float*>(sums_) + row * Block::kBlockChannels + channel);
      const int64_t out_row = first_row_ + row;
      arguments_.epilogue.Store(sums.values, out_row, first_channel_ + channel,
                                out + out_row * arguments_.out_pitch + first_channel_ + channel);
    }
  }

  const FetchOnDemandArguments<T>& arguments_;
  const FetchOnDemandShape& shape_;
  const int64_t first_row_;
  const int32_t num_rows_;
  const int32_t first_channel_;
  const int32_t stage_bytes_;
  float* const sums_;  // [tile_rows, kBlockChannels]
  unsigned char* const stages_;
  PairLists lists_;
};

// A block a tile of rows and a slice of channels.
template <typename T, typename Block>
__global__ void __launch_bounds__(Block::kThreads, Block::kBlocksAnSm)
    FetchOnDemandKernel([[maybe_unused]] const __grid_constant__ FetchOnDemandArguments<T> arguments) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) unsigned char shared[];
  FetchOnDemandTile<T, Block>(arguments, shared).Run();
#endif
}

}  // namespace voxserve::kernels::cuda
