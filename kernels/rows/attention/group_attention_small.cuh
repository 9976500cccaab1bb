#pragma once

// AttendSmallGroups is the work of kernels/rows/attention/group_attention.cu on tensor cores for groups of at most
// kMostSmallKeys places, such as windows. One warp computes one group of one head: it reads the group's keys and values
// to memory of its own, and waits for no other warp. The heads of a group are in neighbouring warps, which read the
// same rows. Only .cu files include this header.

#include <cstdint>

#include "kernels/core/launch.cuh"
#include "kernels/rows/attention/group_attention.h"
#include "kernels/rows/attention/group_attention_operands.cuh"
#include "kernels/rows/attention/group_attention_warps.cuh"
#include "kernels/rows/attention/site_groups.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int32_t kMostSmallKeys = 128;
inline constexpr int kSmallGroupTiles = 1;       // tiles of 16 queries of a warp
inline constexpr int32_t kSmallGroupWarps = 8;   // of a block
inline constexpr int32_t kSmallGroupBlocks = 3;  // of a multiprocessor
inline constexpr int kSmallGroupBatch = 2;       // vectors of keys that a thread reads at a time

// Computes the groups and heads of a warp. shared: arguments.buffer_keys keys for each warp of the block, and as many
// values behind them.
template <typename T, int kChannels>
__device__ void AttendSmallGroups(const GroupAttentionArguments& arguments, unsigned char* shared) {
  using Head = HeadRows<kChannels>;
  using Attention = WarpAttention<T, kChannels, kSmallGroupTiles, /*kHasPolynomial=*/false>;
  const SiteGroups& groups = arguments.params.groups;
  const int32_t num_heads = arguments.params.num_heads;
  const auto thread = static_cast<int32_t>(threadIdx.x), warp = thread / kWarpThreads;
  const HeadReader<T, kChannels, kSmallGroupBatch, /*kMeasures=*/false> reader{arguments, thread % kWarpThreads,
                                                                               kWarpThreads};
  const int32_t buffer_bytes = arguments.buffer_keys * Head::kPitch;
  unsigned char* const shared_keys = shared + warp * 2 * buffer_bytes;
  unsigned char* const shared_values = shared_keys + buffer_bytes;
  const uint32_t keys = SharedAddress(shared_keys), values = SharedAddress(shared_values);
  // A group is one part of `size` rows.
  const int64_t num_units = NumGroupParts(groups, groups.size) * num_heads;
  for (int64_t unit = int64_t{blockIdx.x} * kSmallGroupWarps + warp; unit < num_units;
       unit += int64_t{gridDim.x} * kSmallGroupWarps) {
    const int64_t group = unit / num_heads;
    const auto head = static_cast<int32_t>(unit - group * num_heads);
    const GroupPart part = GroupPartAt(groups, groups.size, group);
    if (part.num_rows == 0) continue;
    __syncwarp();  // no lane reads the group before any more
    reader.Read(head, part.keys_begin, part.num_keys, shared_keys, shared_values);
    __syncwarp();
    for (int32_t first = 0; first < part.num_rows; first += Attention::kRows) {
      const WarpQueries<Attention> queries{.arguments = arguments,
                                           .head = head,
                                           .begin = part.begin + first,
                                           .num_rows = min(Attention::kRows, part.num_rows - first)};
      AttendToGroup(queries, keys, values, part.num_keys, /*longest_key=*/0);
    }
  }
}

}  // namespace voxserve::kernels::cuda
