#pragma once

// GroupAttention computes dot-product attention within groups of a level's sites (X. Wu et al., "Point Transformer V3:
// Simpler, Faster, Stronger", CVPR 2024):
//   out_i = sum over j of softmax_j(scale * q_i . k_j) v_j, over the rows j of row i's group.
//
// The sites of a sample stand in an order (kernels/coordinates/curves/site_order.h). The order is cut into groups of
// `size` places. A sample of at most `size` sites has one group. Otherwise its last group may be short; with
// GroupTail::kBorrows it then reads, as keys and values only, as many places of the group before as it lacks: with r
// places of its own, the places r .. size - 1 of that group. With GroupTail::kSpread the groups are those of windows
// (kernels/coordinates/curves/spread_group.h), each of at most `size` places.
//
// - Scores, softmax and weighted sums are float32, whatever the type of the features is. The softmax subtracts the
//   row's largest score, so scores of thousands make no infinity.
// - A row's bits depend only on the rows of its group and on their order: not on the sample's number, on other samples,
//   or on the capacity of the rows.
// - A score of NaN or +infinity makes its row NaN. A score of -infinity has weight 0; a row of nothing but -infinity is
//   NaN.

#include <cstdint>
#include <type_traits>

#include "kernels/coordinates/curves/spread_group.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

inline constexpr int32_t kMaxGroupSize = 4096;

enum class GroupTail { kBorrows, kShort, kSpread };

// The groups of a level. All pointers are to memory of the device that reads them.
struct SiteGroups {
  const int32_t* row_of_place = nullptr;  // [sites] the row at each place; null: place i is row i
  // [samples + 1] The first place of each sample, which is its first row too: an order never leaves its sample.
  const int64_t* sample_begin = nullptr;
  int32_t num_samples = 0;
  int32_t size = 1;  // 1 to kMaxGroupSize
  GroupTail tail = GroupTail::kBorrows;
  // For kSpread. Each row is in [own_begin, end) of one group.
  const SpreadGroup* spread_groups = nullptr;
  const int32_t* num_spread_groups = nullptr;  // [1]
  int64_t max_spread_groups = 0;               // CUDA only: there are no more
};

struct GroupAttentionParams {
  SiteGroups groups;
  int32_t num_heads = 1;  // the channels are cut into num_heads equal parts; head h uses part h
  float scale = 1;
  ConstRows queries;  // the CPU only supports float32
  ConstRows keys;     // queries' type, channels and rows
  ConstRows values;   // queries' type and rows
  Rows out;           // values' channels, queries' type or float32; must not overlap the others
};
static_assert(std::is_trivially_copyable_v<GroupAttentionParams>);

namespace cpu {

void GroupAttention(const GroupAttentionParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

// Returns cudaErrorInvalidValue if a head has more than kMaxAttentionHeadChannels channels
// (kernels/rows/attention/attention.h), or if the types do not match.
cudaError_t GroupAttention(const GroupAttentionParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
