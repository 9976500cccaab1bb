#pragma once

// Attention computes dot-product attention within each sample of a batch (A. Vaswani et al., "Attention Is All You
// Need", NeurIPS 2017):
//   out_i = sum over j of softmax_j(scale * q_i . k_j) v_j, over all rows j of the same sample.
//
// - The softmax is computed online (T. Dao et al., "FlashAttention", NeurIPS 2022). Keys come in tiles; if a tile has a
//   larger score than the tiles before it, a row's sums so far are scaled down. Only the scores of one tile are stored
//   at a time, so memory is linear in the rows.
// - A GPU divides the keys of few queries among blocks: where samples have the same number of queries, at most
//   kMaxSplitQueries, each split is kSplitKeys keys, and the splits' sums are added in their order. For other queries,
//   and for at most kSplitKeys keys that do not suit tensor cores, the threads of a query go through all keys of
//   its sample.
// - Tiles and splits begin at a sample's first row, and sums have a fixed order. So a row's bits depend only on its own
//   sample.
// - Scores and weighted sums are float32, whatever the type of the features is. Where a GPU could divide keys, and a
//   head has at most 32 channels of queries and of values, tensor cores multiply 16-bit values by weights of their
//   type.
// - A score (scale * q_i . k_j) of NaN or +infinity makes its row NaN. A score of -infinity has weight 0, but makes the
//   row NaN if all scores of the row's first tile are -infinity.
// - A sample without keys gives 0.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

inline constexpr int32_t kMaxAttentionHeadChannels = 256;  // limit of a head's key channels, and of its value channels
inline constexpr int32_t kMaxSplitQueries = 1024;          // of a sample
inline constexpr int32_t kSplitKeys = 1024;

// SampleSpans says where the rows of each sample are.
struct SampleSpans {
  const int64_t* begin = nullptr;  // [samples + 1]; null: every sample has rows_per_sample rows
  int64_t rows_per_sample = 1;

  constexpr int64_t Begin(int64_t sample) const { return begin == nullptr ? sample * rows_per_sample : begin[sample]; }
  constexpr int64_t End(int64_t sample) const { return Begin(sample + 1); }
};

struct AttentionParams {
  int32_t num_samples = 0;
  int32_t num_heads = 1;  // the channels are cut into num_heads equal parts; head h uses part h
  float scale = 1;
  SampleSpans query_spans;    // the rows of queries and out
  SampleSpans key_spans;      // the rows of keys and values
  ConstRows queries;          // the CPU only supports float32
  ConstRows keys;             // queries' type and channels
  ConstRows values;           // queries' type
  Rows out;                   // values' channels, queries' type or float32; must not overlap the others
  void* workspace = nullptr;  // on a GPU: AttentionWorkspaceBytes, 256-byte aligned
};
static_assert(std::is_trivially_copyable_v<AttentionParams>);

namespace cpu {

void Attention(const AttentionParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

// Returns the bytes of params.workspace. Reads the numbers in params, not the pointers, except that it tests
// SampleSpans::begin for null. Needs no GPU.
size_t AttentionWorkspaceBytes(const AttentionParams& params);
// Returns cudaErrorInvalidValue if a head has too many channels, or if the types do not match.
cudaError_t Attention(const AttentionParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
