#pragma once

// GroupPartAt finds the groups of sites (kernels/rows/attention/group_attention.h) and their parts by number. Only .cu
// files include this header.

#include <algorithm>
#include <cstdint>

#include "kernels/core/row_tiles.cuh"
#include "kernels/rows/attention/group_attention.h"

namespace voxserve::kernels::cuda {

// A part of a group: consecutive places, which are the queries of one unit of work. The group's keys are consecutive
// places too: with GroupTail::kBorrows, the last group of a sample has the sample's last `size` places as keys. The
// group's own places are the last of its keys.
//
// With GroupTail::kSpread every group has as many parts as one of `size` places, so that a part's number gives its
// group. Parts behind the group's last own place have no rows.
struct GroupPart {
  int64_t begin = 0;
  int32_t num_rows = 0;
  int64_t keys_begin = 0;
  int32_t num_keys = 0;
  int32_t parts_left = 0;  // the parts of the group from this one on; 0: there is no part of this number
};

// Returns a number that is not less than the number of parts of at most part_rows rows, if there are `capacity` sites.
inline int64_t MaxGroupParts(const SiteGroups& groups, int64_t capacity, int32_t part_rows) {
  if (groups.tail == GroupTail::kSpread) {
    return std::min(groups.max_spread_groups, capacity) * ((groups.size + part_rows - 1) / part_rows);
  }
  const int64_t max_groups = capacity / groups.size + groups.num_samples;  // a sample has at most one short group
  const int64_t largest_group = std::min<int64_t>(groups.size, capacity);
  return std::min(max_groups * ((largest_group + part_rows - 1) / part_rows), capacity / part_rows + max_groups);
}

// Returns the number of windows' groups. It is more than fit only if coordinates had too few bits (SiteOrders).
__device__ inline int64_t NumSpreadGroups(const SiteGroups& groups) {
  return min(int64_t{*groups.num_spread_groups}, groups.max_spread_groups);
}

__device__ inline int32_t NumGroupParts(const SiteGroups& groups, int32_t part_rows, int32_t sample) {
  const auto num_rows = static_cast<int32_t>(groups.sample_begin[sample + 1] - groups.sample_begin[sample]);
  const int32_t num_whole = num_rows / groups.size, rest = num_rows - num_whole * groups.size;
  return num_whole * ((groups.size + part_rows - 1) / part_rows) + (rest + part_rows - 1) / part_rows;
}

// Returns the number of parts of all samples. All lanes of a warp call it with the same arguments.
__device__ inline int64_t NumGroupParts(const SiteGroups& groups, int32_t part_rows) {
  if (groups.tail == GroupTail::kSpread) {
    return NumSpreadGroups(groups) * ((groups.size + part_rows - 1) / part_rows);
  }
  if (groups.num_samples == 1) return NumGroupParts(groups, part_rows, 0);
  int64_t sum = 0;
  for (auto s = static_cast<int32_t>(threadIdx.x) % kWarpThreads; s < groups.num_samples; s += kWarpThreads) {
    sum += NumGroupParts(groups, part_rows, s);
  }
  return __shfl_sync(~0u, SumToLane(sum), kWarpThreads - 1);
}

// Returns the part of a window's group with the number `index`.
__device__ inline GroupPart SpreadPartAt(const SiteGroups& groups, int32_t part_rows, int64_t index) {
  const int32_t parts_a_group = (groups.size + part_rows - 1) / part_rows;
  const int64_t at = index / parts_a_group;
  if (at >= NumSpreadGroups(groups)) return {};
  const auto part = static_cast<int32_t>(index - at * parts_a_group);
  const SpreadGroup group = groups.spread_groups[at];
  const int32_t begin = group.own_begin + part * part_rows;
  return {.begin = begin,
          .num_rows = max(min(part_rows, group.end - begin), 0),
          .keys_begin = group.begin,
          .num_keys = group.end - group.begin,
          .parts_left = parts_a_group - part};
}

// Returns the part with the number `index`, counted over all samples. All lanes of a warp call it with the same
// arguments and get the same part.
__device__ inline GroupPart GroupPartAt(const SiteGroups& groups, int32_t part_rows, int64_t index) {
  if (groups.tail == GroupTail::kSpread) return SpreadPartAt(groups, part_rows, index);
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  int32_t sample = 0;
  if (groups.num_samples > 1) {
    // Each lane adds up the parts of a run of samples. Then the warp looks at the samples of the run that has the part,
    // 32 at a time.
    const int32_t run = (groups.num_samples + kWarpThreads - 1) / kWarpThreads;
    int64_t in_run = 0;
    for (int32_t s = lane * run; s < min((lane + 1) * run, groups.num_samples); ++s) {
      in_run += NumGroupParts(groups, part_rows, s);
    }
    const int64_t through_run = SumToLane(in_run);
    const unsigned runs = __ballot_sync(~0u, index < through_run);
    if (runs == 0) return {};
    const int owner = __ffs(static_cast<int>(runs)) - 1;
    index -= __shfl_sync(~0u, through_run - in_run, owner);
    for (int32_t first = owner * run;; first += kWarpThreads) {
      const int32_t own = first + lane < groups.num_samples ? NumGroupParts(groups, part_rows, first + lane) : 0;
      const int32_t through = SumToLane(own);
      const unsigned samples = __ballot_sync(~0u, index < through);
      if (samples != 0) {
        const int at = __ffs(static_cast<int>(samples)) - 1;
        index -= __shfl_sync(~0u, through - own, at);
        sample = first + at;
        break;
      }
      index -= __shfl_sync(~0u, through, kWarpThreads - 1);
    }
  }
  const int64_t sample_begin = groups.sample_begin[sample];
  const auto num_rows = static_cast<int32_t>(groups.sample_begin[sample + 1] - sample_begin);
  const int32_t parts_a_group = (groups.size + part_rows - 1) / part_rows;
  if (index >= NumGroupParts(groups, part_rows, sample)) return {};
  const int32_t group = static_cast<int32_t>(index) / parts_a_group;
  const int32_t part = static_cast<int32_t>(index) - group * parts_a_group;
  const int32_t begin = group * groups.size, end = min(begin + groups.size, num_rows);
  const int32_t first = begin + part * part_rows;
  const bool borrows = groups.tail == GroupTail::kBorrows && group > 0;
  const int32_t keys_begin = borrows ? end - groups.size : begin;
  return {.begin = sample_begin + first,
          .num_rows = min(part_rows, end - first),
          .keys_begin = sample_begin + keys_begin,
          .num_keys = end - keys_begin,
          .parts_left = (end - first + part_rows - 1) / part_rows};
}

// Returns the row at a place.
__device__ inline int64_t RowAt(const SiteGroups& groups, int64_t place) {
  return groups.row_of_place == nullptr ? place : groups.row_of_place[place];
}

}  // namespace voxserve::kernels::cuda
