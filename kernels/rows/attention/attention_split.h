#pragma once

// SplitAttention computes attention of few queries (attention.h) on a GPU. The keys of a sample are cut
// into splits of kSplitKeys. First each block handles one split, one head and some queries, and writes their sums to
// the workspace. Then a second kernel adds up the splits of each query in their order. Only attention.cu calls it.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/rows/attention/attention.h"

namespace voxserve::kernels::cuda {

inline constexpr int32_t kMaxTensorCoreHeadChannels = 32;

// Returns true if the types and channels suit the tensor cores of a GPU that has them.
inline bool SuitsTensorCores(const AttentionParams& params) {
  const int32_t key_channels = params.keys.channels / params.num_heads;
  return params.queries.dtype != DType::kFloat32 && key_channels <= kMaxTensorCoreHeadChannels &&
         key_channels == params.values.channels / params.num_heads;
}

// Returns true if SplitAttention computes these params: the keys of a sample are several splits, or may be, or tensor
// cores multiply a single one faster. That depends on nothing that differs from batch to batch, so that a row's bits do
// not either.
inline bool DividesKeys(const AttentionParams& params) {
  if (params.query_spans.begin != nullptr || params.query_spans.rows_per_sample > kMaxSplitQueries) return false;
  return params.key_spans.begin != nullptr || params.key_spans.rows_per_sample > kSplitKeys || SuitsTensorCores(params);
}

// Returns a number that is not less than the number of splits of all samples.
inline int64_t MaxSplits(const AttentionParams& params) {
  if (params.key_spans.begin != nullptr) return params.keys.capacity / kSplitKeys + params.num_samples;
  return (params.key_spans.rows_per_sample + kSplitKeys - 1) / kSplitKeys * params.num_samples;
}

// The sums of a query and a head over one split, in the workspace: [splits, heads, queries of a sample] rows of
// SumColumns(params) float32 values. They are the sums of the weighted values, one for each channel of the head, then
// the sum of the weights, then their reference: a weight is exp(score - reference).
inline int64_t SumColumns(const AttentionParams& params) { return params.values.channels / params.num_heads + 2; }

inline size_t SplitWorkspaceBytes(const AttentionParams& params) {
  return static_cast<size_t>(MaxSplits(params) * params.num_heads * params.query_spans.rows_per_sample *
                             SumColumns(params)) *
         sizeof(float);
}

// The types and channels of params are those that Attention accepts.
cudaError_t SplitAttention(const AttentionParams& params, cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
