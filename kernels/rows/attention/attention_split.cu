#include <cuda/std/limits>
#include <limits>

#include "kernels/core/launch.cuh"
#include "kernels/rows/attention/attention_split.h"
#include "kernels/rows/attention/attention_tile.cuh"
#include "kernels/rows/attention/group_attention_blocks.cuh"

namespace voxserve::kernels::cuda {
namespace {

constexpr float kLn2 = 0.6931471805599453f;

__host__ __device__ int64_t NumSplits(const AttentionParams& params, int32_t sample) {
  return (params.key_spans.End(sample) - params.key_spans.Begin(sample) + kSplitKeys - 1) / kSplitKeys;
}

// Calls visit(sample, first split) for samples in their order until it returns true. The splits are numbered over all
// samples.
template <typename Visit>
__device__ void FindSample(const AttentionParams& params, const Visit& visit) {
  int64_t first = 0;
  for (int32_t sample = 0; sample < params.num_samples; ++sample) {
    if (visit(sample, first)) return;
    first += NumSplits(params, sample);
  }
}

// A split's keys, and the queries of its sample.
struct Split {
  int64_t first_query = 0;
  int64_t first_key = 0;
  int32_t num_keys = 0;  // 0: there is no split of this number
};
__device__ Split SplitAt(const AttentionParams& params, int64_t index) {
  Split split;
  FindSample(params, [&](int32_t sample, int64_t first) {
    if (index >= first + NumSplits(params, sample)) return false;
    const int64_t first_key = params.key_spans.Begin(sample) + (index - first) * kSplitKeys;
    split = {.first_query = params.query_spans.Begin(sample),
             .first_key = first_key,
             .num_keys = static_cast<int32_t>(min(int64_t{kSplitKeys}, params.key_spans.End(sample) - first_key))};
    return true;
  });
  return split;
}

// Returns the row of the workspace that has a query's sums.
__device__ float* SumsAt(const AttentionParams& params, int64_t split, int32_t head, int64_t query) {
  const int64_t row = (split * params.num_heads + head) * params.query_spans.rows_per_sample + query;
  return static_cast<float*>(params.workspace) + row * (params.values.channels / params.num_heads + 2);
}

// A block handles a split, a head and kLargeGroupRows queries.
template <typename T, int kChannels>
__global__ void __launch_bounds__(kLargeGroupWarps * 32, 2)
    SumSplitsByChunksKernel([[maybe_unused]] const __grid_constant__ GroupAttentionArguments arguments,
                            [[maybe_unused]] const __grid_constant__ AttentionParams params) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  extern __shared__ float4 shared[];
  const Split split = SplitAt(params, blockIdx.x);
  if (split.num_keys == 0) return;  // all threads of the block
  const auto head = static_cast<int32_t>(blockIdx.y), first_query = static_cast<int32_t>(blockIdx.z) * kLargeGroupRows;
  const int32_t num_queries = static_cast<int32_t>(params.query_spans.rows_per_sample) - first_query;
  const GroupPart part{.begin = static_cast<int32_t>(split.first_query) + first_query,
                       .num_rows = min(kLargeGroupRows, num_queries),
                       .keys_begin = static_cast<int32_t>(split.first_key),
                       .num_keys = split.num_keys};
  AttendChunks<T, kChannels>(arguments, head, part, reinterpret_cast<unsigned char*>(shared),
                             [&](const auto& queries, const auto& attention, const auto& totals, const auto& weights) {
                               using Attention = BlockAttention<T, kChannels>;
                               const int32_t channels = queries.arguments.head_channels;
#pragma unroll
                               for (int i = 0; i < kBlockTiles; ++i) {
#pragma unroll
                                 for (int half = 0; half < 2; ++half) {
                                   const int32_t row = Attention::Row(i, half);
                                   if (row >= queries.num_rows) continue;
                                   float* const sums =
                                       SumsAt(params, blockIdx.x, head, queries.begin - split.first_query + row);
#pragma unroll
                                   for (int v = 0; v < Attention::kVectors; ++v) {
#pragma unroll
                                     for (int k = 0; k < 2; ++k) {
                                       const int32_t c = v * 8 + Attention::Column() + k;
                                       if (c < channels) sums[c] = totals[i][half][v][k];
                                     }
                                   }
                                   if (Attention::Column() == 0) {
                                     sums[channels] = weights[i][half];
                                     sums[channels + 1] = attention.Reference(i, half) * kLn2;
                                   }
                                 }
                               }
                             });
#endif
}

// A block handles a split, a head and kTileQueries queries, without tensor cores.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads) SumSplitsKernel(const __grid_constant__ AttentionParams params) {
  extern __shared__ float4 shared[];
  const Split split = SplitAt(params, blockIdx.x);
  if (split.num_keys == 0) return;  // all threads of the block
  const auto head = static_cast<int32_t>(blockIdx.y), first_query = static_cast<int32_t>(blockIdx.z) * kTileQueries;
  const int32_t num_queries = static_cast<int32_t>(params.query_spans.rows_per_sample) - first_query;
  const AttentionTile tile{.first_query = split.first_query + first_query,
                           .num_queries = min(kTileQueries, num_queries),
                           .keys_begin = split.first_key,
                           .keys_end = split.first_key + split.num_keys,
                           .head = head};
  SumTile<T>(
      params, tile, [](int64_t place) { return place; }, shared,
      [&](int32_t query, float largest, float weights, const float(&of_lane)[kLaneValues]) {
        const int32_t channels = params.values.channels / params.num_heads;
        const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
        float* const sums = SumsAt(params, blockIdx.x, head, first_query + query);
#pragma unroll
        for (int32_t i = 0; i < kLaneValues; ++i) {
          const int32_t c = i * 32 + lane;
          if (c < channels) sums[c] = of_lane[i];
        }
        if (lane == 0) {
          sums[channels] = weights;
          sums[channels + 1] = largest;
        }
      });
}

// Adds up the splits of a query, one after the other: blockIdx is (query of a sample, sample). A thread has a channel.
template <typename Out>
__global__ void __launch_bounds__(kBlockThreads) MergeSplitsKernel(const __grid_constant__ AttentionParams params) {
  constexpr float kInfinity = ::cuda::std::numeric_limits<float>::infinity();
  const auto sample = static_cast<int32_t>(blockIdx.y);
  int64_t first = 0;
  FindSample(params, [&](int32_t at, int64_t first_of_sample) {
    first = first_of_sample;
    return at == sample;
  });
  const int64_t num_splits = NumSplits(params, sample);
  const int32_t channels = params.values.channels / params.num_heads;
  Out* const out =
      static_cast<Out*>(params.out.data) + (params.query_spans.Begin(sample) + blockIdx.x) * params.out.pitch;
  for (auto c = static_cast<int32_t>(threadIdx.x); c < params.values.channels; c += kBlockThreads) {
    const int32_t head = c / channels, of_head = c - head * channels;
    const float* const sums = SumsAt(params, first, head, blockIdx.x);
    const int64_t stride = int64_t{params.num_heads} * params.query_spans.rows_per_sample * (channels + 2);
    float most = -kInfinity;
#pragma unroll 8  // so that the loads of several splits wait together
    for (int64_t split = 0; split < num_splits; ++split) most = fmaxf(most, sums[split * stride + channels + 1]);
    // While all scores are -infinity, all weights are 0.
    const float reference = most == -kInfinity ? 0.0f : most;
    float total = 0, weights = 0;
#pragma unroll 8
    for (int64_t split = 0; split < num_splits; ++split) {
      const float* const of_split = sums + split * stride;
      const float factor = expf(of_split[channels + 1] - reference);
      total += of_split[of_head] * factor;
      weights += of_split[channels] * factor;
    }
    out[c] = FromFloat<Out>(num_splits == 0 ? 0.0f : total / weights);
  }
}

dim3 GridOfSplits(const AttentionParams& params, int32_t block_queries) {
  return {static_cast<unsigned>(MaxSplits(params)), static_cast<unsigned>(params.num_heads),
          static_cast<unsigned>((params.query_spans.rows_per_sample + block_queries - 1) / block_queries)};
}

template <typename T, int kChannels>
cudaError_t SumOnTensorCores(const AttentionParams& params, cudaStream_t stream) {
  const GroupAttentionParams operands{.num_heads = params.num_heads,
                                      .scale = params.scale,
                                      .queries = params.queries,
                                      .keys = params.keys,
                                      .values = params.values,
                                      .out = params.out};
  constexpr size_t kSharedBytes = size_t{2} * kChunkKeys * HeadRows<kChannels>::kPitch;
  static_assert(kSharedBytes <= 48 * 1024);
  SumSplitsByChunksKernel<T, kChannels>
      <<<GridOfSplits(params, kLargeGroupRows), kLargeGroupWarps * 32, kSharedBytes, stream>>>(ArgumentsOf<T>(operands),
                                                                                               params);
  return LaunchStatus(stream);
}

template <typename T>
cudaError_t SumForChannels(const AttentionParams& params, int32_t channels, cudaStream_t stream) {
  if (channels <= 16) return SumOnTensorCores<T, 16>(params, stream);
  if (channels <= 24) return SumOnTensorCores<T, 24>(params, stream);
  return SumOnTensorCores<T, 32>(params, stream);
}

cudaError_t SumSplits(const AttentionParams& params, cudaStream_t stream) {
  const int32_t key_channels = params.keys.channels / params.num_heads;
  const bool has_int32_rows =
      std::max(params.keys.capacity, params.out.capacity) <= std::numeric_limits<int32_t>::max();
  if (SuitsTensorCores(params) && has_int32_rows && CodeVersion() >= kTensorCoreCode) {
    if (params.queries.dtype == DType::kFloat16) return SumForChannels<__half>(params, key_channels, stream);
    if (params.queries.dtype == DType::kBfloat16) return SumForChannels<__nv_bfloat16>(params, key_channels, stream);
  }
  return VisitFeatureType(params.queries.dtype, [&](auto value) {
    SumSplitsKernel<decltype(value)>
        <<<GridOfSplits(params, kTileQueries), kBlockThreads, AttentionTileBytes(key_channels), stream>>>(params);
    return LaunchStatus(stream);
  });
}

}  // namespace

cudaError_t SplitAttention(const AttentionParams& params, cudaStream_t stream) {
  if (MaxSplits(params) > 0) VOXSERVE_RETURN_IF_CUDA(SumSplits(params, stream));
  const dim3 blocks(static_cast<unsigned>(params.query_spans.rows_per_sample),
                    static_cast<unsigned>(params.num_samples));
  return VisitFeatureType(params.out.dtype, [&](auto out) {
    MergeSplitsKernel<decltype(out)><<<blocks, kBlockThreads, 0, stream>>>(params);
    return LaunchStatus(stream);
  });
}

}  // namespace voxserve::kernels::cuda
