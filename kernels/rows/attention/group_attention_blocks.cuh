#pragma once

// These functions are the work of a block of kernels/rows/attention/group_attention.cu on tensor cores: AttendTiles and
// AttendLargeGroup. Only .cu files include this header.
//
// AttendTiles is for groups whose keys and values of one head fit into shared memory. The units of work are tiles of
// kWarpRows queries of one head. All tiles are numbered: first the groups of a head, then the heads. A block gets a run
// of tiles, as long as those of the other blocks, and its warps take them in turns. The run may begin and end within a
// group. Shared memory has a ring of buffers with one group each, so that warps that have finished a group go on with
// the next, while others still work. All warps read keys and values of the next group.
//
// AttendLargeGroup is for larger groups. A block has one tile for each of its warps, and goes through the keys in
// chunks.

#include <algorithm>
#include <cstdint>

#include "kernels/core/barriers.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/rows/attention/group_attention.h"
#include "kernels/rows/attention/group_attention_warps.cuh"
#include "kernels/rows/attention/site_groups.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int32_t kMostWarps = 16;  // of a block of AttendTiles, and of all such blocks of a multiprocessor
inline constexpr int32_t kMaxBuffers = 2;
inline constexpr int32_t kLargeGroupWarps = 8;
inline constexpr int32_t kLargeGroupRows = kLargeGroupWarps * kWarpRows;
inline constexpr int32_t kChunkKeys = 256;

struct GroupAttentionArguments {
  GroupAttentionParams params;
  int32_t vector_bytes = 2;   // 2, 4 or 16: how many bytes of keys and values are aligned everywhere
  bool reads_pairs = false;   // two neighbouring channels of queries are aligned
  bool writes_pairs = false;  // two neighbouring results are aligned
  bool is_out_float = false;
  int32_t num_buffers = 1;  // up to kMaxBuffers
  int32_t buffer_keys = 0;  // a multiple of kStepKeys
};

// Returns the arguments without buffers. T: the type of queries, keys and values.
template <typename T>
GroupAttentionArguments ArgumentsOf(const GroupAttentionParams& params) {
  const int64_t head_bytes = params.keys.channels / params.num_heads * int64_t{sizeof(T)};
  const auto alignment = [&](const ConstRows& rows) { return CommonAlignment().Add(rows).Add(head_bytes).bytes(); };
  const int64_t of_keys = std::min(alignment(params.keys), alignment(params.values));
  return {.params = params,
          .vector_bytes = of_keys == 16  ? 16
                          : of_keys >= 4 ? 4
                                         : 2,
          .reads_pairs = alignment(params.queries) >= 4,
          .writes_pairs = head_bytes % 4 == 0 &&
                          CommonAlignment().Add(ConstRows(params.out)).bytes() >= 2 * SizeOf(params.out.dtype),
          .is_out_float = params.out.dtype == DType::kFloat32};
}

// Returns vector v of a head's row, with zeros in place of the bytes after head_bytes.
template <int kBytes>
__device__ uint4 ReadVector(const char* row, int32_t v, int32_t head_bytes) {
  if constexpr (kBytes == 16) {
    return v * 16 < head_bytes ? *reinterpret_cast<const uint4*>(row + v * 16) : uint4{};
  } else {
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t at = v * 16 + i * 4;
      if constexpr (kBytes == 4) {
        if (at < head_bytes) words[i] = *reinterpret_cast<const uint32_t*>(row + at);
      } else {
        if (at < head_bytes) words[i] = *reinterpret_cast<const uint16_t*>(row + at);
        if (at + 2 < head_bytes) words[i] |= uint32_t{*reinterpret_cast<const uint16_t*>(row + at + 2)} << 16;
      }
    }
    return {words[0], words[1], words[2], words[3]};
  }
}

// The keys and values of a head in global memory.
template <typename T, int kChannels>
struct HeadReader {
  using Head = HeadRows<kChannels>;
  using Pair = typename PairOf<T>::Type;

  const GroupAttentionArguments& arguments;
  int32_t head_bytes = arguments.params.keys.channels / arguments.params.num_heads * int32_t{sizeof(T)};

  // Copies keys and values of a head to shared memory, the rows at places [begin, begin + num_keys), and zeros up to a
  // multiple of kStepKeys. Returns a bound of the lengths of the keys that the warp has copied; NaN or infinity if they
  // have values that are not finite or very large. All threads of the block call it.
  __device__ float Read(int32_t head, int64_t begin, int32_t num_keys, unsigned char* keys,
                        unsigned char* values) const {
    if (arguments.vector_bytes == 16) return ReadBy<16>(head, begin, num_keys, keys, values);
    if (arguments.vector_bytes == 4) return ReadBy<4>(head, begin, num_keys, keys, values);
    return ReadBy<2>(head, begin, num_keys, keys, values);
  }

 private:
  template <int kBytes>
  __device__ float ReadBy(int32_t head, int64_t begin, int32_t num_keys, unsigned char* keys,
                          unsigned char* values) const {
    const GroupAttentionParams& params = arguments.params;
    const int64_t key_pitch = params.keys.pitch * int64_t{sizeof(T)};
    const int64_t value_pitch = params.values.pitch * int64_t{sizeof(T)};
    const int64_t column = int64_t{head} * head_bytes;
    const char* const all_keys = static_cast<const char*>(params.keys.data) + column;
    const char* const all_values = static_cast<const char*>(params.values.data) + column;
    const int32_t padded_keys = (num_keys + kStepKeys - 1) / kStepKeys * kStepKeys;
    const int32_t num_vectors = padded_keys * Head::kVectors;
    const auto threads = static_cast<int32_t>(blockDim.x);
    float longest = 0;
    // A thread reads kBatch vectors of keys and of values before it stores them.
    constexpr int kBatch = 4;
    for (auto first = static_cast<int32_t>(threadIdx.x); first < num_vectors; first += kBatch * threads) {
      uint4 key[kBatch], value[kBatch];
      int64_t row[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int32_t i = min((first + b * threads) / Head::kVectors, num_keys - 1);
        row[b] = RowAt(params.groups, begin + i);
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int32_t i = (first + b * threads) / Head::kVectors, v = (first + b * threads) % Head::kVectors;
        const int32_t width = i < num_keys ? head_bytes : 0;
        key[b] = ReadVector<kBytes>(all_keys + row[b] * key_pitch, v, width);
        value[b] = ReadVector<kBytes>(all_values + row[b] * value_pitch, v, width);
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int32_t i = (first + b * threads) / Head::kVectors, v = (first + b * threads) % Head::kVectors;
        if (i < padded_keys) {
          *reinterpret_cast<uint4*>(keys + Head::Offset(i, v)) = key[b];
          *reinterpret_cast<uint4*>(values + Head::Offset(i, v)) = value[b];
        }
        const uint32_t zeros = 0, words[4] = {key[b].x, key[b].y, key[b].z, key[b].w};
        Pair square = reinterpret_cast<const Pair&>(zeros);
#pragma unroll
        for (const uint32_t word : words) {
          const auto pair = reinterpret_cast<const Pair&>(word);
          square = __hfma2(pair, pair, square);
        }
        longest = LargerNotNegative(longest, fabsf(ToFloat(square.x) + ToFloat(square.y)));
      }
    }
    // The vectors of a key are in different lanes, so the longest vector stands for all.
    longest *= Head::kVectors;
    // Covers the rounding of the sums, and squares that are too small for float16.
    return sqrtf(LargestOfLanes(longest) * 1.25f + 1e-6f);
  }
};

// The queries of a warp: places of one group.
template <typename T, int kChannels>
struct WarpQueries {
  const GroupAttentionArguments& arguments;
  int32_t head;
  int64_t begin;
  int32_t num_rows;  // up to kWarpRows

  __device__ int32_t NumChannels() const { return arguments.params.keys.channels / arguments.params.num_heads; }

  __device__ void Read(WarpAttention<T, kChannels>& attention) const {
    const GroupAttentionParams& params = arguments.params;
    attention.ReadQueries(
        [&](int32_t row) {
          return static_cast<const T*>(params.queries.data) + RowAt(params.groups, begin + row) * params.queries.pitch +
                 int64_t{head} * NumChannels();
        },
        num_rows, NumChannels(), arguments.reads_pairs, params.scale);
  }

  // Stores the results. value_of(i, half, v, k) is that of row Row(i, half) and channel 8 v + Column() + k of
  // WarpAttention.
  template <typename ValueOf>
  __device__ void Store(const ValueOf& value_of) const {
    if (arguments.is_out_float) {
      StoreAs<float>(value_of);
    } else {
      StoreAs<T>(value_of);
    }
  }

 private:
  template <typename Out, typename ValueOf>
  __device__ void StoreAs(const ValueOf& value_of) const {
    using Attention = WarpAttention<T, kChannels>;
    const GroupAttentionParams& params = arguments.params;
    const int32_t channels = NumChannels();
    Out* rows[kWarpTiles][2];
#pragma unroll
    for (int i = 0; i < kWarpTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = RowAt(params.groups, begin + min(Attention::Row(i, half), num_rows - 1));
        rows[i][half] = static_cast<Out*>(params.out.data) + row * params.out.pitch + int64_t{head} * channels;
      }
    }
#pragma unroll
    for (int i = 0; i < kWarpTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (Attention::Row(i, half) >= num_rows) continue;
#pragma unroll
        for (int v = 0; v < Attention::kVectors; ++v) {
          const int32_t c = v * 8 + Attention::Column();
          Out* const out = rows[i][half] + c;
          const Out first = FromFloat<Out>(value_of(i, half, v, 0)), second = FromFloat<Out>(value_of(i, half, v, 1));
          if (arguments.writes_pairs) {
            if (c < channels) *reinterpret_cast<Pack<Out, 2>*>(out) = {first, second};
          } else {
            if (c < channels) out[0] = first;
            if (c + 1 < channels) out[1] = second;
          }
        }
      }
    }
  }
};

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
      : arguments_(arguments), reader_{arguments}, buffers_(shared) {
    const SiteGroups& groups = arguments.params.groups;
    tiles_a_head_ = NumGroupParts(groups, kWarpRows);
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
    TilesOfGroup tiles{.first = GroupPartAt(arguments_.params.groups, kWarpRows, tile - head * tiles_a_head_),
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
    const int32_t first_row = tile * kWarpRows;
    const int64_t group_end = tiles.first.keys_begin + tiles.first.num_keys;
    const WarpQueries<T, kChannels> queries{
        .arguments = arguments_,
        .head = tiles.head,
        .begin = tiles.first.begin + first_row,
        .num_rows = static_cast<int32_t>(min(int64_t{kWarpRows}, group_end - tiles.first.begin - first_row))};
    if (queries.num_rows <= 0) return;  // the whole warp
    const int32_t num_keys = tiles.first.num_keys;
    const uint32_t keys = SharedAddress(Keys(g)), values = keys + arguments_.buffer_keys * Head::kPitch;
    WarpAttention<T, kChannels> attention;
    queries.Read(attention);
    int32_t num_sampled = min(kSampleKeys, num_keys);
    for (bool is_again = false;; is_again = true) {
      float factors[kWarpTiles][2];
      attention.RaiseReferences(keys, num_sampled, factors);
      attention.Clear();
      attention.AddKeys(keys, values, num_keys, longest_key);
      if (is_again || !attention.IsTooHigh()) break;
      num_sampled = num_keys;
    }
    float factors[kWarpTiles][2];
#pragma unroll
    for (int i = 0; i < kWarpTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) factors[i][half] = 1.0f / attention.Weights(i, half);
    }
    queries.Store([&](int i, int half, int v, int k) { return attention.Sum(i, half, v, k) * factors[i][half]; });
  }

  const GroupAttentionArguments& arguments_;
  const HeadReader<T, kChannels> reader_;
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
  const HeadReader<T, kChannels> reader{arguments};
  const auto thread = static_cast<int32_t>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  unsigned char* const shared_values = shared + kChunkKeys * Head::kPitch;
  const uint32_t keys = SharedAddress(shared), values = SharedAddress(shared_values);
  const WarpQueries<T, kChannels> queries{.arguments = arguments,
                                          .head = head,
                                          .begin = part.begin + warp * kWarpRows,
                                          .num_rows = min(kWarpRows, part.num_rows - warp * kWarpRows)};
  const bool has_queries = queries.num_rows > 0;
  WarpAttention<T, kChannels> attention;
  if (has_queries) queries.Read(attention);

  // The sums of the chunks so far, in the same places as the sums of WarpAttention.
  float totals[kWarpTiles][2][Head::kVectors][2] = {}, weights[kWarpTiles][2] = {};
  for (int32_t first = 0; first < part.num_keys; first += kChunkKeys) {
    const int32_t num_keys = min(kChunkKeys, part.num_keys - first);
    __syncthreads();  // the chunk before is not used any more
    const float longest = reader.Read(queries.head, part.keys_begin + first, num_keys, shared, shared_values);
    if (lane == 0) longest_keys[warp] = longest;
    __syncthreads();
    if (!has_queries) continue;
    const float longest_key = LargestOfLanes(lane < kLargeGroupWarps ? longest_keys[lane] : 0.0f);
    float factors[kWarpTiles][2];
    if (first == 0) attention.RaiseReferences(keys, min(kSampleKeys, num_keys), factors);
    for (bool is_again = false;; is_again = true) {
      attention.Clear();
      attention.AddKeys(keys, values, num_keys, longest_key);
      if (is_again || !attention.IsTooHigh()) break;
      attention.RaiseReferences(keys, num_keys, factors);
#pragma unroll
      for (int i = 0; i < kWarpTiles; ++i) {
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
    for (int i = 0; i < kWarpTiles; ++i) {
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
