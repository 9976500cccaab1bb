#pragma once

// TileRun and AttendLargeGroup are the work of a block of kernels/rows/attention/group_attention.cu on tensor cores.
// Only .cu files include this header.
//
// TileRun is for groups whose keys and values of one head fit into shared memory. On Hopper, WarpGroupRun
// (group_attention_warp_groups.cuh) serves heads of up to 24 channels in its place if two groups fit. The units of work
// are tiles of kBlockRows queries of one head. All tiles are numbered: first the groups of a head, then the heads. A
// block gets a run of tiles, as long as those of the other blocks, and its warps take them in turns. The run may begin
// and end within a group. Shared memory has a ring of buffers with one group each, so that warps that have finished a
// group go on with the next, while others still work. All warps read keys and values of the next group.
//
// AttendLargeGroup is for larger groups. A block has one tile for each of its warps, and goes through the keys in
// chunks.

#include <cstdint>

#include "kernels/core/barriers.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/rows/attention/group_attention.h"
#include "kernels/rows/attention/group_attention_operands.cuh"
#include "kernels/rows/attention/group_attention_warps.cuh"
#include "kernels/rows/attention/site_groups.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int32_t kBlockTiles = 2;  // tiles of 16 queries of a warp
inline constexpr int32_t kBlockRows = 16 * kBlockTiles;
inline constexpr int32_t kMostWarps = 16;  // of a block of TileRun, and of all such blocks of a multiprocessor
inline constexpr int kBlockBatch = 4;      // vectors of keys that a thread reads at a time
inline constexpr int32_t kLargeGroupWarps = 8;
inline constexpr int32_t kLargeGroupRows = kLargeGroupWarps * kBlockRows;
inline constexpr int32_t kChunkKeys = 256;

template <typename T, int kChannels>
using BlockAttention = WarpAttention<T, kChannels, kBlockTiles, /*kHasPolynomial=*/true>;

// The tiles of a block's run that belong to one group and head. They are numbered within the run.
struct TilesOfGroup {
  GroupPart first;  // the first of the tiles
  int32_t head = 0;
  int64_t end_tile = 0;  // one after the last of the tiles
};

template <typename T, int kChannels>
class TileRun {
 public:
  using Head = HeadRows<kChannels>;

  __device__ TileRun(const GroupAttentionArguments& arguments, unsigned char* shared)
      : arguments_(arguments),
        reader_{arguments, static_cast<int32_t>(threadIdx.x), static_cast<int32_t>(blockDim.x)},
        buffers_(shared) {
    const SiteGroups& groups = arguments.params.groups;
    tiles_a_head_ = NumGroupParts(groups, kBlockRows);
    const int64_t num_tiles = tiles_a_head_ * arguments.params.num_heads;
    begin_ = num_tiles * blockIdx.x / gridDim.x;
    end_ = num_tiles * (blockIdx.x + 1) / gridDim.x;
  }

  __device__ void Run() {
    if (begin_ == end_) return;  // all threads of the block
    __shared__ uint64_t barriers[2 * kMaxBuffers];
    full_ = SharedAddress(barriers);
    empty_ = full_ + kMaxBuffers * sizeof(uint64_t);
    if (threadIdx.x == 0) {
      for (uint32_t barrier = 0; barrier < 2 * kMaxBuffers; ++barrier) {
        InitBarrier(full_ + barrier * sizeof(uint64_t), blockDim.x);
      }
    }
    __syncthreads();

    TilesOfGroup tiles{.end_tile = begin_}, next = TilesAt(begin_);
    int64_t tile = begin_ + Warp();  // the warp's next tile
    int32_t g = -1;                  // the number of the present group, that of `tiles`
    int32_t num_read = 0;            // groups that the warp has helped to read
    bool may_read = true, has_left = true;
    float longest_key = 0;
#pragma unroll 1
    while (true) {
      const bool has_next = NumTiles(next) > 0, must_read = has_next && num_read == g + 1;
      if (must_read && may_read) Read(next, num_read++);
      if (tile < tiles.end_tile) {
        Attend(tiles, static_cast<int32_t>(tile - (tiles.end_tile - NumTiles(tiles))), g, longest_key);
        tile += NumWarps();
        // The next group's buffer may have had the group before this one, which other warps leave meanwhile.
        may_read = arguments_.num_buffers > 1;
        continue;
      }
      if (!has_left) {
        ArriveAtBarrier(empty_ + Buffer(g) * sizeof(uint64_t));
        has_left = true;
      }
      if (!has_next) break;
      if (num_read == g + 1) {
        may_read = true;
        continue;
      }
      tiles = next;
      has_left = false;
      ++g;
      next = tiles.end_tile < end_ ? TilesAt(tiles.end_tile) : TilesOfGroup{};
      may_read = g + 1 < arguments_.num_buffers;  // a buffer that no group has had
      WaitForPhase(full_, g);
      longest_key = LongestKey(g);
    }
  }

 private:
  __device__ static int32_t Lane() { return static_cast<int32_t>(threadIdx.x) % 32; }
  __device__ static int32_t Warp() { return static_cast<int32_t>(threadIdx.x) / 32; }
  __device__ static int32_t NumWarps() { return static_cast<int32_t>(blockDim.x) / 32; }

  // Returns the tiles from `tile` on that belong to its group.
  __device__ TilesOfGroup TilesAt(int64_t tile) const {
    const int64_t head = tile / tiles_a_head_;
    TilesOfGroup tiles{.first = GroupPartAt(arguments_.params.groups, kBlockRows, tile - head * tiles_a_head_),
                       .head = static_cast<int32_t>(head)};
    tiles.end_tile = min(tile + tiles.first.parts_left, end_);
    tiles.first.parts_left = static_cast<int32_t>(tiles.end_tile - tile);
    return tiles;
  }
  __device__ static int32_t NumTiles(const TilesOfGroup& tiles) { return tiles.first.parts_left; }

  // Group g of the run is in buffer g % num_buffers. The barriers' phases are counted by the buffer's groups.
  __device__ int32_t Buffer(int32_t g) const { return arguments_.num_buffers > 1 ? g % 2 : 0; }
  __device__ void WaitForPhase(uint32_t barriers, int32_t g) const {
    const int32_t phase = arguments_.num_buffers > 1 ? g / 2 : g;
    WaitForBarrier(barriers + Buffer(g) * sizeof(uint64_t), static_cast<uint32_t>(phase % 2));
  }
  __device__ unsigned char* Keys(int32_t g) const {
    return buffers_ + Buffer(g) * 2 * arguments_.buffer_keys * Head::kPitch;
  }
  __device__ static float* LongestKeys() {
    __shared__ float longest_keys[kMaxBuffers][kMostWarps];
    return &longest_keys[0][0];
  }

  // Reads the warp's part of the keys and values of group g.
  __device__ void Read(const TilesOfGroup& tiles, int32_t g) {
    if (g >= arguments_.num_buffers) WaitForPhase(empty_, g - arguments_.num_buffers);
    unsigned char* const keys = Keys(g);
    const float longest = reader_.Read(tiles.head, tiles.first.keys_begin, tiles.first.num_keys, keys,
                                       keys + arguments_.buffer_keys * Head::kPitch);
    if (Lane() == 0) LongestKeys()[Buffer(g) * kMostWarps + Warp()] = longest;
    ArriveAtBarrier(full_ + Buffer(g) * sizeof(uint64_t));
  }

  __device__ float LongestKey(int32_t g) const {
    const float* const of_warps = LongestKeys() + Buffer(g) * kMostWarps;
    return LargestOfLanes(Lane() < NumWarps() ? of_warps[Lane()] : 0.0f);
  }

  // Computes a tile of group g; `tile` is its number among `tiles`.
  __device__ void Attend(const TilesOfGroup& tiles, int32_t tile, int32_t g, float longest_key) const {
    const int32_t first_row = tile * kBlockRows;
    const int64_t group_end = tiles.first.keys_begin + tiles.first.num_keys;
    const WarpQueries<BlockAttention<T, kChannels>> queries{
        .arguments = arguments_,
        .head = tiles.head,
        .begin = tiles.first.begin + first_row,
        .num_rows = static_cast<int32_t>(min(int64_t{kBlockRows}, group_end - tiles.first.begin - first_row))};
    if (queries.num_rows <= 0) return;  // the whole warp
    const int32_t num_keys = tiles.first.num_keys;
    const uint32_t keys = SharedAddress(Keys(g)), values = keys + arguments_.buffer_keys * Head::kPitch;
    AttendToGroup(queries, keys, values, num_keys, longest_key);
  }

  const GroupAttentionArguments& arguments_;
  const HeadReader<T, kChannels, kBlockBatch, /*kMeasures=*/true> reader_;
  unsigned char* const buffers_;  // [num_buffers] of [buffer_keys] keys, then as many values
  int64_t tiles_a_head_;
  int64_t begin_, end_;
  uint32_t full_ = 0, empty_ = 0;  // barriers, one for each buffer; all threads arrive
};

// Goes through the keys of up to kLargeGroupRows queries of a head in chunks. The block has kLargeGroupWarps warps, and
// all threads call it. shared: kChunkKeys keys, then as many values. Each warp that has queries calls store(queries,
// attention, totals, weights) in the end: totals[i][half][v][k] is the sum of the weighted values of row Row(i, half)
// and channel 8 v + Column() + k of WarpAttention, weights[i][half] that of the weights, to the reference of
// `attention`.
template <typename T, int kChannels, typename Store>
__device__ void AttendChunks(const GroupAttentionArguments& arguments, int32_t head, const GroupPart& part,
                             unsigned char* shared, const Store& store) {
  using Head = HeadRows<kChannels>;
  __shared__ float longest_keys[kLargeGroupWarps];
  const auto thread = static_cast<int32_t>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const HeadReader<T, kChannels, kBlockBatch, /*kMeasures=*/true> reader{arguments, thread, kLargeGroupWarps * 32};
  unsigned char* const shared_values = shared + kChunkKeys * Head::kPitch;
  const uint32_t keys = SharedAddress(shared), values = SharedAddress(shared_values);
  const WarpQueries<BlockAttention<T, kChannels>> queries{
      .arguments = arguments,
      .head = head,
      .begin = part.begin + warp * kBlockRows,
      .num_rows = min(kBlockRows, part.num_rows - warp * kBlockRows)};
  const bool has_queries = queries.num_rows > 0;
  BlockAttention<T, kChannels> attention;
  if (has_queries) queries.Read(attention);

  // The sums of the chunks so far, in the same places as the sums of WarpAttention.
  float totals[kBlockTiles][2][Head::kVectors][2] = {}, weights[kBlockTiles][2] = {};
  for (int32_t first = 0; first < part.num_keys; first += kChunkKeys) {
    const int32_t num_keys = min(kChunkKeys, part.num_keys - first);
    __syncthreads();  // the chunk before is not used any more
    const float longest = reader.Read(queries.head, part.keys_begin + first, num_keys, shared, shared_values);
    if (lane == 0) longest_keys[warp] = longest;
    __syncthreads();
    if (!has_queries) continue;
    const float longest_key = LargestOfLanes(lane < kLargeGroupWarps ? longest_keys[lane] : 0.0f);
    float factors[kBlockTiles][2];
    if (first == 0) attention.RaiseReferences(keys, min(kSampleKeys, num_keys), factors);
    for (bool is_again = false;; is_again = true) {
      attention.Clear();
      attention.AddKeys(keys, values, num_keys, longest_key);
      if (is_again || !attention.IsTooHigh()) break;
      attention.RaiseReferences(keys, num_keys, factors);
#pragma unroll
      for (int i = 0; i < kBlockTiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          weights[i][half] *= factors[i][half];
#pragma unroll
          for (int v = 0; v < Head::kVectors; ++v) {
            totals[i][half][v][0] *= factors[i][half];
            totals[i][half][v][1] *= factors[i][half];
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kBlockTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        weights[i][half] += attention.Weights(i, half);
#pragma unroll
        for (int v = 0; v < Head::kVectors; ++v) {
          totals[i][half][v][0] += attention.Sum(i, half, v, 0);
          totals[i][half][v][1] += attention.Sum(i, half, v, 1);
        }
      }
    }
  }
  if (has_queries) store(queries, attention, totals, weights);
}

// Computes the part of a group and the head that blockIdx names. shared: kChunkKeys keys, then as many values.
template <typename T, int kChannels>
__device__ void AttendLargeGroup(const GroupAttentionArguments& arguments, unsigned char* shared) {
  const GroupPart part = GroupPartAt(arguments.params.groups, kLargeGroupRows, blockIdx.x);
  if (part.num_rows == 0) return;  // all threads of the block
  AttendChunks<T, kChannels>(
      arguments, static_cast<int32_t>(blockIdx.y), part, shared,
      [](const auto& queries, const auto&, const auto& totals, const auto& weights) {
        queries.Store([&](int i, int half, int v, int k) { return totals[i][half][v][k] / weights[i][half]; });
      });
}

}  // namespace voxserve::kernels::cuda
