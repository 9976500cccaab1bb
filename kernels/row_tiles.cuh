#pragma once

// Rows whose number only the device knows, and their ranks within a block: what kernels that keep some rows and number
// them share. Blocks have kBlockThreads threads, all of which call these functions. Included by .cu files alone.

#include <cstdint>

#include "kernels/launch.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int kWarpThreads = 32;
inline constexpr int kBlockWarps = kBlockThreads / kWarpThreads;
inline constexpr int kTileItems = 4;  // rows of a thread
inline constexpr int kTileRows = kTileItems * kBlockThreads;
static_assert(kTileItems * kBlockWarps == kWarpThreads, "one warp scans the counts of all warps' rows");

// The rows there are: *count, which no caller's mistake lifts above the capacity; all of them where count is null.
__device__ inline int64_t NumRows(int64_t capacity, const int64_t* count) {
  if (count == nullptr) return capacity;
  return *count < capacity ? *count : capacity;
}

// The sum of all threads' values, for every thread.
__device__ inline int64_t BlockSum(int64_t value) {
  __shared__ int64_t sums[kBlockWarps];
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(~0u, value, distance);
  }
  if (threadIdx.x % kWarpThreads == 0) sums[threadIdx.x / kWarpThreads] = value;
  __syncthreads();
  int64_t sum = 0;
#pragma unroll
  for (int warp = 0; warp < kBlockWarps; ++warp) sum += sums[warp];
  __syncthreads();
  return sum;
}

// Thread t holds rows t, t + kBlockThreads, ... of a tile. Ranks the kept ones in row order and returns their number.
__device__ inline int32_t RankInTile(const bool (&is_kept)[kTileItems], int32_t (&rank)[kTileItems]) {
  __shared__ int32_t before[kWarpThreads + 1];  // kept rows before each warp's of each item; the last: of the tile
  const int lane = threadIdx.x % kWarpThreads;
  const int warp = threadIdx.x / kWarpThreads;
#pragma unroll
  for (int item = 0; item < kTileItems; ++item) {
    const unsigned kept = __ballot_sync(~0u, is_kept[item]);
    rank[item] = __popc(kept & ((1u << lane) - 1));
    if (lane == 0) before[item * kBlockWarps + warp] = __popc(kept);
  }
  __syncthreads();
  if (warp == 0) {
    const int32_t count = before[lane];
    int32_t sum = count;
    for (int distance = 1; distance < kWarpThreads; distance *= 2) {
      const int32_t lower = __shfl_up_sync(~0u, sum, distance);
      if (lane >= distance) sum += lower;
    }
    before[lane] = sum - count;
    if (lane == kWarpThreads - 1) before[kWarpThreads] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int item = 0; item < kTileItems; ++item) rank[item] += before[item * kBlockWarps + warp];
  const int32_t num_kept = before[kWarpThreads];
  __syncthreads();
  return num_kept;
}

}  // namespace voxserve::kernels::cuda
