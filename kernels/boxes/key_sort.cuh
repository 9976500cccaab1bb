#pragma once

// SortKeys sorts the keys of candidates (box_candidates.h) with one block, by a bitonic network (K. Batcher, "Sorting
// Networks and Their Applications", 1968). Steps of short strides are in registers, the others in shared memory. Only
// .cu files include this header.

#include <cstdint>

#include "kernels/boxes/box_candidates.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_tiles.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int kSelectThreads = 1024;
inline constexpr int kSelectWarps = kSelectThreads / kWarpThreads;
inline constexpr int kSortedKeys = kMaxBoxes;  // the most keys that a block sorts
static_assert(kSortedKeys >= kSelectThreads && (kSortedKeys & (kSortedKeys - 1)) == 0, "sorts have such sizes");

// Exchanges two keys unless the larger one is the first, or the last if not `descends`.
__device__ inline void OrderKeys(uint64_t& first, uint64_t& last, bool descends) {
  if ((first < last) != descends) return;
  const uint64_t key = first;
  first = last;
  last = key;
}

// A warp holds a segment of neighbouring keys in its registers, each lane kLaneKeys of them.
inline constexpr int kLaneKeys = 4;
inline constexpr int kSegmentKeys = kLaneKeys * kWarpThreads;
static_assert(kSelectWarps * kSegmentKeys >= kSortedKeys, "each warp has at most one segment");

// Does the steps of a bitonic network that merge runs of `run` keys, from `stride` (at most half of a segment) down to
// 1. `place` is that of the lane's first key. All lanes of the warp must call it.
__device__ inline void MergeInWarp(uint64_t (&keys)[kLaneKeys], int32_t place, int32_t run, int32_t stride) {
  for (; stride >= kLaneKeys; stride /= 2) {
    const bool is_first = (place & stride) == 0;
    const bool keeps_larger = is_first == ((place & run) == 0);
#pragma unroll
    for (uint64_t& key : keys) {
      const uint64_t other = __shfl_xor_sync(~0u, key, stride / kLaneKeys);
      if ((key < other) == keeps_larger) key = other;
    }
  }
  if (stride == 2) {
    const bool descends = (place & run) == 0;
    OrderKeys(keys[0], keys[2], descends);
    OrderKeys(keys[1], keys[3], descends);
  }
  OrderKeys(keys[0], keys[1], (place & run) == 0);
  OrderKeys(keys[2], keys[3], ((place + 2) & run) == 0);
}

// Does the steps of a bitonic network of `size` keys in shared memory that merge runs of `run` keys and have strides of
// a segment or more, two at a time. All threads of the block must call it.
__device__ inline void MergeSegments(uint64_t* keys, int32_t size, int32_t run) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  int32_t stride = run / 2;
  for (; stride >= 2 * kSegmentKeys; stride /= 4) {
    const int32_t half = stride / 2;
    for (int32_t four = thread; four < size / 4; four += kSelectThreads) {
      uint64_t* const first = keys + 4 * four - 3 * (four & (half - 1));
      const bool descends = ((first - keys) & run) == 0;
      uint64_t a = first[0], b = first[half], c = first[stride], d = first[stride + half];
      OrderKeys(a, c, descends);
      OrderKeys(b, d, descends);
      OrderKeys(a, b, descends);
      OrderKeys(c, d, descends);
      first[0] = a;
      first[half] = b;
      first[stride] = c;
      first[stride + half] = d;
    }
    __syncthreads();
  }
  if (stride < kSegmentKeys) return;
  for (int32_t pair = thread; pair < size / 2; pair += kSelectThreads) {
    uint64_t* const first = keys + 2 * pair - (pair & (stride - 1));
    OrderKeys(first[0], first[stride], ((first - keys) & run) == 0);
  }
  __syncthreads();
}

// Sorts keys[0, num_keys) in descending order by a bitonic network. Its size is the next power of two, at least
// kSegmentKeys; the keys from num_keys up to that size are overwritten with 0. `keys` is 16-byte aligned. All threads
// of the block must call it.
__device__ inline void SortKeys(uint64_t* keys, int32_t num_keys) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  int32_t size = kSegmentKeys;
  while (size < num_keys) size *= 2;
  for (int32_t i = num_keys + thread; i < size; i += kSelectThreads) keys[i] = 0;
  __syncthreads();

  const int32_t place = thread * kLaneKeys;
  const bool has_segment = place < size;  // all lanes of a warp have the same
  auto* const pairs = reinterpret_cast<ulonglong2*>(keys + place);
  uint64_t of_lane[kLaneKeys];
  const auto load = [&] {
#pragma unroll
    for (int i = 0; i < kLaneKeys; i += 2) {
      const ulonglong2 two = pairs[i / 2];
      of_lane[i] = two.x;
      of_lane[i + 1] = two.y;
    }
  };
  const auto store = [&] {
#pragma unroll
    for (int i = 0; i < kLaneKeys; i += 2) pairs[i / 2] = make_ulonglong2(of_lane[i], of_lane[i + 1]);
  };
  if (has_segment) {
    load();
    for (int32_t run = 2; run <= kSegmentKeys; run *= 2) MergeInWarp(of_lane, place, run, run / 2);
    store();
  }
  __syncthreads();
  for (int32_t run = 2 * kSegmentKeys; run <= size; run *= 2) {
    MergeSegments(keys, size, run);
    if (has_segment) {
      load();
      MergeInWarp(of_lane, place, run, kSegmentKeys / 2);
      store();
    }
    __syncthreads();
  }
}

}  // namespace voxserve::kernels::cuda
