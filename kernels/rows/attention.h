#pragma once

// Dot-product attention within each sample of a batch (A. Vaswani et al., "Attention Is All You Need", NeurIPS 2017):
//   out_i = sum over j of softmax_j(scale * q_i . k_j) v_j, over all rows j of the same sample.
//
// - The softmax is computed online (T. Dao et al., "FlashAttention", NeurIPS 2022): keys come in tiles, and what a row
//   has summed is scaled anew where a tile has a larger score. Scores are never stored, so memory is linear in the
//   rows. Time is queries x keys of each sample, however few queries there are: keys are not divided among threads.
// - Tiles begin at a sample's first row, and sums have a fixed order. A row depends on its own sample alone, bit for
// bit.
// - Scores, softmax and sums are float32 whatever the features are. A NaN or an infinite score makes its row NaN.
// - A sample without keys gives 0.

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

inline constexpr int32_t kMaxAttentionHeadChannels = 256;  // of a head's queries and keys, and of its values

// Says where the rows of each sample are.
struct SampleSpans {
  const int64_t* begin = nullptr;  // [samples + 1]; null: every sample has rows_per_sample rows
  int64_t rows_per_sample = 1;

  constexpr int64_t Begin(int64_t sample) const { return begin == nullptr ? sample * rows_per_sample : begin[sample]; }
  constexpr int64_t End(int64_t sample) const { return Begin(sample + 1); }
};

struct AttentionParams {
  int32_t num_samples = 0;
  int32_t num_heads = 1;  // head h has the h-th of num_heads equal parts of all channels
  float scale = 1;
  SampleSpans query_spans;  // of queries and out
  SampleSpans key_spans;    // of keys and values
  ConstRows queries;        // float32 only on the CPU
  ConstRows keys;           // queries' type and channels
  ConstRows values;         // queries' type
  Rows out;                 // values' channels, queries' type or float32; must not overlap the others
};
static_assert(std::is_trivially_copyable_v<AttentionParams>);

namespace cpu {

void Attention(const AttentionParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t Attention(const AttentionParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
