#pragma once

// AttendTile computes attention of a tile of queries in float32, without tensor cores. It serves every type and number
// of channels. Only .cu files include this header.

#include <cstdint>
#include <cuda/std/limits>

#include "kernels/core/launch.cuh"
#include "kernels/rows/attention/attention.h"

namespace voxserve::kernels::cuda {

inline constexpr int32_t kTileWarps = kBlockThreads / 32;
inline constexpr int32_t kWarpQueries = 4;  // a warp reads a staged key once for all of its queries
inline constexpr int32_t kTileQueries = kTileWarps * kWarpQueries;
inline constexpr int32_t kTileKeys = 32;  // one per lane
inline constexpr int32_t kStagedChannels = 64;
// The pitch has four values more, so that lanes that read 16 bytes at one place of 8 neighbouring rows use 32 different
// banks.
inline constexpr int32_t kStagedPitch = kStagedChannels + 4;
inline constexpr int32_t kStagedValues = kTileKeys * kStagedPitch;
inline constexpr int32_t kLaneValues = kMaxAttentionHeadChannels / 32;  // a lane has channels lane + 32 i of the result
inline constexpr int32_t kLaneValuesStaged = kStagedChannels / 32;

// Rounds up to whole float4.
constexpr int32_t PaddedChannels(int32_t channels) { return (channels + 3) / 4 * 4; }

// Returns the bytes of shared memory that AttendTile needs: at most 41,472. A block may have 48 KiB on every GPU
// without opting in.
constexpr size_t AttentionTileBytes(int32_t key_channels) {
  return static_cast<size_t>(kTileQueries * PaddedChannels(key_channels) + kStagedValues) * sizeof(float);
}

__device__ inline float LargestOfWarp(float value) {
#pragma unroll
  for (int32_t offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, offset));
  return value;
}
// Returns the same bits in every lane, since in each step both lanes of a pair add the same two numbers.
__device__ inline float SumOfWarp(float value) {
#pragma unroll
  for (int32_t offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

// A tile of queries of one head, and the keys that all of them attend to. The numbers are places; row_of(place) gives
// the row.
struct AttentionTile {
  int64_t first_query = 0;
  int32_t num_queries = 0;  // 1 to kTileQueries
  int64_t keys_begin = 0, keys_end = 0;
  int32_t head = 0;
};

// Copies columns [column, column + width) of the rows at places [first, first + num_rows) to shared memory as float32.
// Rows from num_rows to kTileKeys, and columns from num_channels on, become 0. All threads of the block call it; width
// <= kStagedChannels.
template <typename T, typename RowOf>
__device__ void StageRows(const ConstRows& rows, const RowOf& row_of, int64_t first, int32_t num_rows, int32_t column,
                          int32_t width, int32_t num_channels, float* staged) {
  for (auto i = static_cast<int32_t>(threadIdx.x); i < kTileKeys * kStagedChannels; i += kBlockThreads) {
    const int32_t row = i / kStagedChannels, c = i % kStagedChannels;
    if (c >= width) continue;
    const bool exists = row < num_rows && c < num_channels;
    staged[row * kStagedPitch + c] =
        exists ? ToFloat(static_cast<const T*>(rows.data)[row_of(first + row) * rows.pitch + column + c]) : 0.0f;
  }
}

// Computes the sums of the tile's queries over its keys. All kBlockThreads threads of the block call it. Params:
// AttentionParams, or a struct with the same operands. shared: AttentionTileBytes; it holds the queries [kTileQueries,
// PaddedChannels(key channels)], scaled, then kStagedValues of keys or values.
//
// For each query of the tile, all lanes of a warp call store(query, largest, weights, sums): the query's number in the
// tile, its largest score, the sum of exp(score - largest), and the sums of the values with these weights, of which the
// lane has channels lane + 32 i.
template <typename T, typename Params, typename RowOf, typename Store>
__device__ void SumTile(const Params& params, const AttentionTile& tile, const RowOf& row_of, float4* shared,
                        const Store& store) {
  constexpr float kInfinity = ::cuda::std::numeric_limits<float>::infinity();
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % 32, first_query = thread / 32 * kWarpQueries;
  const int32_t key_channels = params.keys.channels / params.num_heads;
  const int32_t value_channels = params.values.channels / params.num_heads;
  const int32_t key_column = tile.head * key_channels, value_column = tile.head * value_channels;
  const int32_t query_pitch = PaddedChannels(key_channels);
  auto* const queries = reinterpret_cast<float*>(shared);
  float* const staged = queries + kTileQueries * query_pitch;
  const bool has_queries = first_query < tile.num_queries;  // if false, the warp only stages

  for (int32_t i = thread; i < kTileQueries * query_pitch; i += kBlockThreads) {
    const int32_t row = i / query_pitch, c = i - row * query_pitch;
    const bool exists = row < tile.num_queries && c < key_channels;
    queries[i] =
        exists ? params.scale *
                     ToFloat(static_cast<const T*>(
                         params.queries.data)[row_of(tile.first_query + row) * params.queries.pitch + key_column + c])
               : 0.0f;
  }

  float largest[kWarpQueries], sum[kWarpQueries], result[kWarpQueries][kLaneValues];
#pragma unroll
  for (int32_t q = 0; q < kWarpQueries; ++q) {
    largest[q] = -kInfinity;
    sum[q] = 0;
#pragma unroll
    for (int32_t i = 0; i < kLaneValues; ++i) result[q][i] = 0;
  }

  for (int64_t first_key = tile.keys_begin; first_key < tile.keys_end; first_key += kTileKeys) {
    const int64_t keys_left = tile.keys_end - first_key;
    const auto num_keys = static_cast<int32_t>(keys_left < kTileKeys ? keys_left : kTileKeys);

    // Computes the scores of the lane's key.
    float weight[kWarpQueries] = {};
    for (int32_t column = 0; column < query_pitch; column += kStagedChannels) {
      const int32_t width = min(kStagedChannels, query_pitch - column);
      __syncthreads();  // no thread reads the staged rows any more; in the first round, the queries are written
      StageRows<T>(params.keys, row_of, first_key, num_keys, key_column + column, width, key_channels - column, staged);
      __syncthreads();
      if (!has_queries) continue;
      for (int32_t c = 0; c < width; c += 4) {
        const float4 key = *reinterpret_cast<const float4*>(&staged[lane * kStagedPitch + c]);
#pragma unroll
        for (int32_t q = 0; q < kWarpQueries; ++q) {
          const float4 query = *reinterpret_cast<const float4*>(&queries[(first_query + q) * query_pitch + column + c]);
          weight[q] += query.x * key.x;
          weight[q] += query.y * key.y;
          weight[q] += query.z * key.z;
          weight[q] += query.w * key.w;
        }
      }
    }

    // Turns the scores into weights, and scales the sums so far to the new largest score. While all scores are
    // -infinity, the weights are 0.
    if (has_queries) {
#pragma unroll
      for (int32_t q = 0; q < kWarpQueries; ++q) {
        const float score = lane < num_keys ? weight[q] : -kInfinity;
        const float most = fmaxf(largest[q], LargestOfWarp(score));
        const float reference = most == -kInfinity ? 0.0f : most;
        const float factor = expf(largest[q] - reference);
        weight[q] = expf(score - reference);
        sum[q] = sum[q] * factor + SumOfWarp(weight[q]);
        largest[q] = most;
#pragma unroll
        for (int32_t i = 0; i < kLaneValues; ++i) result[q][i] *= factor;
      }
    }

    // Adds the weighted values.
#pragma unroll
    for (int32_t i = 0; i < kLaneValues; i += kLaneValuesStaged) {
      const int32_t column = i * 32;
      if (column >= value_channels) break;
      __syncthreads();
      StageRows<T>(params.values, row_of, first_key, num_keys, value_column + column, kStagedChannels,
                   value_channels - column, staged);
      __syncthreads();
      if (!has_queries) continue;
      for (int32_t key = 0; key < num_keys; ++key) {
        float value[kLaneValuesStaged];
#pragma unroll
        for (int32_t k = 0; k < kLaneValuesStaged; ++k) value[k] = staged[key * kStagedPitch + k * 32 + lane];
#pragma unroll
        for (int32_t q = 0; q < kWarpQueries; ++q) {
          const float key_weight = __shfl_sync(~0u, weight[q], key);
#pragma unroll
          for (int32_t k = 0; k < kLaneValuesStaged; ++k) result[q][i + k] += key_weight * value[k];
        }
      }
    }
  }

#pragma unroll
  for (int32_t q = 0; q < kWarpQueries; ++q) {
    if (first_query + q < tile.num_queries) store(first_query + q, largest[q], sum[q], result[q]);
  }
}

// Computes and stores the tile's results. The arguments are those of SumTile.
template <typename T, typename Out, typename Params, typename RowOf>
__device__ void AttendTile(const Params& params, const AttentionTile& tile, const RowOf& row_of, float4* shared) {
  const int32_t value_channels = params.values.channels / params.num_heads;
  SumTile<T>(params, tile, row_of, shared, [&](int32_t query, float, float weights, const float(&sums)[kLaneValues]) {
    const float factor = tile.keys_begin == tile.keys_end ? 0.0f : 1.0f / weights;
    Out* const row = static_cast<Out*>(params.out.data) + row_of(tile.first_query + query) * params.out.pitch +
                     tile.head * value_channels;
#pragma unroll
    for (int32_t i = 0; i < kLaneValues; ++i) {
      const auto c = i * 32 + static_cast<int32_t>(threadIdx.x) % 32;
      if (c < value_channels) row[c] = FromFloat<Out>(sums[i] * factor);
    }
  });
}

}  // namespace voxserve::kernels::cuda
