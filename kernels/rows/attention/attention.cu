#include <cuda/std/limits>

#include "kernels/core/launch.cuh"
#include "kernels/rows/attention/attention.h"

namespace voxserve::kernels::cuda {
namespace {

constexpr int32_t kWarps = kBlockThreads / 32;
constexpr int32_t kWarpQueries = 4;  // a warp reads a staged key once for all of its queries
constexpr int32_t kTileQueries = kWarps * kWarpQueries;
constexpr int32_t kTileKeys = 32;  // one per lane
constexpr int32_t kStagedChannels = 64;
// The pitch has four values more, so that lanes that read 16 bytes at one place of 8 neighbouring rows use 32 different
// banks.
constexpr int32_t kStagedPitch = kStagedChannels + 4;
constexpr int32_t kStagedValues = kTileKeys * kStagedPitch;
constexpr int32_t kLaneValues = kMaxAttentionHeadChannels / 32;  // a lane has channels lane + 32 i of the result
constexpr int32_t kLaneValuesStaged = kStagedChannels / 32;
constexpr unsigned kAllLanes = 0xffffffff;

// Rounds up to whole float4.
constexpr int32_t PaddedChannels(int32_t channels) { return (channels + 3) / 4 * 4; }

__device__ float LargestOfWarp(float value) {
#pragma unroll
  for (int32_t offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  return value;
}
// Returns the same bits in every lane, since in each step both lanes of a pair add the same two numbers.
__device__ float SumOfWarp(float value) {
#pragma unroll
  for (int32_t offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

// A block's tile of queries: rows [first, first + num_rows) of one sample. A block after the last tile has no rows.
struct QueryTile {
  int32_t sample = 0;
  int64_t first = 0;
  int32_t num_rows = 0;
};
__device__ QueryTile TileOfBlock(const AttentionParams& params, int64_t tile) {
  for (int32_t sample = 0; sample < params.num_samples; ++sample) {
    const int64_t begin = params.query_spans.Begin(sample), end = params.query_spans.End(sample);
    const int64_t num_tiles = (end - begin + kTileQueries - 1) / kTileQueries;
    if (tile < num_tiles) {
      const int64_t first = begin + tile * kTileQueries;
      const int64_t left = end - first;
      return {.sample = sample,
              .first = first,
              .num_rows = static_cast<int32_t>(left < kTileQueries ? left : kTileQueries)};
    }
    tile -= num_tiles;
  }
  return {};
}

// Copies columns [column, column + width) of rows [first, first + num_rows) to shared memory as float32. Rows from
// num_rows to kTileKeys, and columns from num_channels on, become 0. All threads of the block call it; width <=
// kStagedChannels.
template <typename T>
__device__ void Stage(const ConstRows& rows, int64_t first, int32_t num_rows, int32_t column, int32_t width,
                      int32_t num_channels, float* staged) {
  for (auto i = static_cast<int32_t>(threadIdx.x); i < kTileKeys * kStagedChannels; i += kBlockThreads) {
    const int32_t row = i / kStagedChannels, c = i % kStagedChannels;
    if (c >= width) continue;
    const bool exists = row < num_rows && c < num_channels;
    staged[row * kStagedPitch + c] =
        exists ? ToFloat(static_cast<const T*>(rows.data)[(first + row) * rows.pitch + column + c]) : 0.0f;
  }
}

// A block handles one tile of queries and one head. shared: the queries [kTileQueries, PaddedChannels(key channels)],
// scaled, then kStagedValues of keys or values.
template <typename T, typename Out>
__global__ void __launch_bounds__(kBlockThreads) AttentionKernel(const __grid_constant__ AttentionParams params) {
  extern __shared__ float4 shared[];
  const QueryTile tile = TileOfBlock(params, blockIdx.x);
  if (tile.num_rows == 0) return;  // all threads of the block

  const auto thread = static_cast<int32_t>(threadIdx.x), head = static_cast<int32_t>(blockIdx.y);
  const int32_t lane = thread % 32, first_query = thread / 32 * kWarpQueries;
  const int32_t key_channels = params.keys.channels / params.num_heads;
  const int32_t value_channels = params.values.channels / params.num_heads;
  const int32_t key_column = head * key_channels, value_column = head * value_channels;
  const int32_t query_pitch = PaddedChannels(key_channels);
  auto* const queries = reinterpret_cast<float*>(shared);
  float* const staged = queries + kTileQueries * query_pitch;
  const bool has_queries = first_query < tile.num_rows;  // if false, the warp only stages

  for (int32_t i = thread; i < kTileQueries * query_pitch; i += kBlockThreads) {
    const int32_t row = i / query_pitch, c = i - row * query_pitch;
    const bool exists = row < tile.num_rows && c < key_channels;
    queries[i] =
        exists ? params.scale * ToFloat(static_cast<const T*>(
                                    params.queries.data)[(tile.first + row) * params.queries.pitch + key_column + c])
               : 0.0f;
  }

  float largest[kWarpQueries], sum[kWarpQueries], result[kWarpQueries][kLaneValues];
#pragma unroll
  for (int32_t q = 0; q < kWarpQueries; ++q) {
    largest[q] = -::cuda::std::numeric_limits<float>::infinity();
    sum[q] = 0;
#pragma unroll
    for (int32_t i = 0; i < kLaneValues; ++i) result[q][i] = 0;
  }

  const int64_t key_begin = params.key_spans.Begin(tile.sample), key_end = params.key_spans.End(tile.sample);
  for (int64_t first_key = key_begin; first_key < key_end; first_key += kTileKeys) {
    const auto num_keys = static_cast<int32_t>(key_end - first_key < kTileKeys ? key_end - first_key : kTileKeys);

    // Computes the scores of the lane's key.
    float weight[kWarpQueries] = {};
    for (int32_t column = 0; column < query_pitch; column += kStagedChannels) {
      const int32_t width = min(kStagedChannels, query_pitch - column);
      __syncthreads();  // no thread reads the staged rows any more; in the first round, the queries are written
      Stage<T>(params.keys, first_key, num_keys, key_column + column, width, key_channels - column, staged);
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

    // Turns the scores into weights, and scales the sums so far to the new largest score.
    if (has_queries) {
#pragma unroll
      for (int32_t q = 0; q < kWarpQueries; ++q) {
        const float score = lane < num_keys ? weight[q] : -::cuda::std::numeric_limits<float>::infinity();
        const float most = fmaxf(largest[q], LargestOfWarp(score));
        const float factor = expf(largest[q] - most);
        weight[q] = lane < num_keys ? expf(score - most) : 0.0f;
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
      Stage<T>(params.values, first_key, num_keys, value_column + column, kStagedChannels, value_channels - column,
               staged);
      __syncthreads();
      if (!has_queries) continue;
      for (int32_t key = 0; key < num_keys; ++key) {
        float value[kLaneValuesStaged];
#pragma unroll
        for (int32_t k = 0; k < kLaneValuesStaged; ++k) value[k] = staged[key * kStagedPitch + k * 32 + lane];
#pragma unroll
        for (int32_t q = 0; q < kWarpQueries; ++q) {
          const float key_weight = __shfl_sync(kAllLanes, weight[q], key);
#pragma unroll
          for (int32_t k = 0; k < kLaneValuesStaged; ++k) result[q][i + k] += key_weight * value[k];
        }
      }
    }
  }

#pragma unroll
  for (int32_t q = 0; q < kWarpQueries; ++q) {
    if (first_query + q >= tile.num_rows) break;
    const float factor = key_begin == key_end ? 0.0f : 1.0f / sum[q];
    Out* const row =
        static_cast<Out*>(params.out.data) + (tile.first + first_query + q) * params.out.pitch + value_column;
#pragma unroll
    for (int32_t i = 0; i < kLaneValues; ++i) {
      const int32_t c = i * 32 + lane;
      if (c < value_channels) row[c] = FromFloat<Out>(result[q][i] * factor);
    }
  }
}

}  // namespace

cudaError_t Attention(const AttentionParams& params, cudaStream_t stream) {
  if (params.out.capacity == 0 || params.out.channels == 0 || params.num_samples == 0) return cudaSuccess;
  const int32_t key_channels = params.keys.channels / params.num_heads;
  if (key_channels > kMaxAttentionHeadChannels ||
      params.values.channels / params.num_heads > kMaxAttentionHeadChannels ||
      params.keys.dtype != params.queries.dtype || params.values.dtype != params.queries.dtype) {
    return cudaErrorInvalidValue;
  }
  const NvtxRange range("Attention");
  // The last tile of each sample may be partial.
  const int64_t num_tiles = (params.out.capacity + kTileQueries - 1) / kTileQueries + params.num_samples;
  const dim3 blocks(static_cast<unsigned>(num_tiles), static_cast<unsigned>(params.num_heads));
  const size_t shared_bytes =  // at most 41,472; a block may have 48 KiB on every GPU without opting in
      static_cast<size_t>(kTileQueries * PaddedChannels(key_channels) + kStagedValues) * sizeof(float);
  return VisitInAndOutType(params.queries.dtype, params.out.dtype, [&](auto in, auto out) {
    AttentionKernel<decltype(in), decltype(out)><<<blocks, kBlockThreads, shared_bytes, stream>>>(params);
    return LaunchStatus(stream);
  });
}

}  // namespace voxserve::kernels::cuda
