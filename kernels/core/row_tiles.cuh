#pragma once

// Rows whose number only the device knows, and their ranks within a block: what kernels that keep some rows and number
// them share. Blocks have kBlockThreads threads, all of which call these functions. Included by .cu files alone.

#include <cstdint>

#include "kernels/core/launch.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int kWarpThreads = 32;
inline constexpr int kBlockWarps = kBlockThreads / kWarpThreads;
inline constexpr int kTileItems = 4;  // rows of a thread
inline constexpr int kTileRows = kTileItems * kBlockThreads;
static_assert(kTileItems * kBlockWarps == kWarpThreads, "one warp scans the counts of all warps' rows");

// What a launch can take along as parameters: sm_70 and later, CUDA 12.1 and later.
inline constexpr size_t kMaxParamBytes = 32764;

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

// The work of a batch of entries as one row of tiles, which blocks stride over: entries whose sizes only the device
// knows share a launch, and no block is without work while another entry's waits. Built by all threads of a block.
template <int kMaxEntries>
class BatchTiles {
 public:
  static_assert(kMaxEntries <= kWarpThreads, "one warp adds up the entries' tiles");

  // num_tiles(entry): of each entry.
  template <typename NumTiles>
  __device__ BatchTiles(int num_entries, const NumTiles& num_tiles) : begin_(Begins()) {
    const auto entry = static_cast<int>(threadIdx.x);
    if (entry < kWarpThreads) {
      int64_t sum = entry < num_entries ? num_tiles(entry) : 0;
      for (int distance = 1; distance < kWarpThreads; distance *= 2) {
        const int64_t lower = __shfl_up_sync(~0u, sum, distance);
        if (entry >= distance) sum += lower;
      }
      begin_[entry + 1] = sum;
      if (entry == 0) begin_[0] = 0;
    }
    __syncthreads();
  }

  __device__ int64_t size() const { return begin_[kWarpThreads]; }
  __device__ int Entry(int64_t tile) const {
    int entry = 0;
    while (begin_[entry + 1] <= tile) ++entry;
    return entry;
  }
  // The tile's place in its entry.
  __device__ int64_t Within(int entry, int64_t tile) const { return tile - begin_[entry]; }

 private:
  __device__ static int64_t* Begins() {
    __shared__ int64_t begins[kWarpThreads + 1];  // the first tile of each entry; of none past the last
    return begins;
  }

  int64_t* begin_;
};

}  // namespace voxserve::kernels::cuda
