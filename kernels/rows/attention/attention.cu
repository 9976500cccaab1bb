#include "kernels/core/launch.cuh"
#include "kernels/rows/attention/attention.h"
#include "kernels/rows/attention/attention_split.h"
#include "kernels/rows/attention/attention_tile.cuh"

namespace voxserve::kernels::cuda {
namespace {

// Returns the block's tile of queries of one sample. A block after the last tile has no queries.
__device__ AttentionTile TileOfBlock(const AttentionParams& params, int64_t tile) {
  for (int32_t sample = 0; sample < params.num_samples; ++sample) {
    const int64_t begin = params.query_spans.Begin(sample), end = params.query_spans.End(sample);
    const int64_t num_tiles = (end - begin + kTileQueries - 1) / kTileQueries;
    if (tile < num_tiles) {
      const int64_t first = begin + tile * kTileQueries;
      const int64_t left = end - first;
      return {.first_query = first,
              .num_queries = static_cast<int32_t>(left < kTileQueries ? left : kTileQueries),
              .keys_begin = params.key_spans.Begin(sample),
              .keys_end = params.key_spans.End(sample),
              .head = static_cast<int32_t>(blockIdx.y)};
    }
    tile -= num_tiles;
  }
  return {};
}

// A block handles one tile of queries and one head.
template <typename T, typename Out>
__global__ void __launch_bounds__(kBlockThreads) AttentionKernel(const __grid_constant__ AttentionParams params) {
  extern __shared__ float4 shared[];
  const AttentionTile tile = TileOfBlock(params, blockIdx.x);
  if (tile.num_queries == 0) return;  // all threads of the block
  AttendTile<T, Out>(
      params, tile, [](int64_t place) { return place; }, shared);
}

}  // namespace

size_t AttentionWorkspaceBytes(const AttentionParams& params) {
  return DividesKeys(params) ? SplitWorkspaceBytes(params) : 0;
}

cudaError_t Attention(const AttentionParams& params, cudaStream_t stream) {
  if (params.out.capacity == 0 || params.out.channels == 0 || params.num_samples == 0) return cudaSuccess;
  const int32_t key_channels = params.keys.channels / params.num_heads;
  if (key_channels > kMaxAttentionHeadChannels ||
      params.values.channels / params.num_heads > kMaxAttentionHeadChannels ||
      params.keys.dtype != params.queries.dtype || params.values.dtype != params.queries.dtype) {
    return cudaErrorInvalidValue;
  }
  const NvtxRange range("Attention");
  if (DividesKeys(params)) return SplitAttention(params, stream);
  // The last tile of each sample may be partial.
  const int64_t num_tiles = (params.out.capacity + kTileQueries - 1) / kTileQueries + params.num_samples;
  const dim3 blocks(static_cast<unsigned>(num_tiles), static_cast<unsigned>(params.num_heads));
  return VisitInAndOutType(params.queries.dtype, params.out.dtype, [&](auto in, auto out) {
    AttentionKernel<decltype(in), decltype(out)>
        <<<blocks, kBlockThreads, AttentionTileBytes(key_channels), stream>>>(params);
    return LaunchStatus(stream);
  });
}

}  // namespace voxserve::kernels::cuda
