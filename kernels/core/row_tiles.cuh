#pragma once

// This header serves kernels that keep some of their rows and number the kept rows. It has row counts that only the
// device knows, and ranks of rows within a block. Blocks have kBlockThreads threads, and all threads of a block call
// BlockSum and RankInTile. Only .cu files include this header.

#include <cstdint>

#include "kernels/core/launch.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int kWarpThreads = 32;
inline constexpr int kBlockWarps = kBlockThreads / kWarpThreads;
inline constexpr int kTileItems = 4;  // rows per thread; a block's rows are a tile
inline constexpr int kTileRows = kTileItems * kBlockThreads;
static_assert(kTileItems * kBlockWarps == kWarpThreads, "one warp scans the counts of all warps' rows");

// The most bytes of parameters that a launch can have, from sm_70 and CUDA 12.1 on.
inline constexpr size_t kMaxParamBytes = 32764;

// Returns the number of rows: *count, but at most the capacity, in case a caller is wrong. If count is null, returns
// the capacity.
__device__ inline int64_t NumRows(int64_t capacity, const int64_t* count) {
  if (count == nullptr) return capacity;
  return *count < capacity ? *count : capacity;
}

// Returns the sum of the values of a warp's lanes up to the calling one, which is included.
template <typename T>
__device__ T SumToLane(T value) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
#pragma unroll
  for (int distance = 1; distance < kWarpThreads; distance *= 2) {
    const T lower = __shfl_up_sync(~0u, value, distance);
    if (lane >= distance) value += lower;
  }
  return value;
}

// Returns the sum of the values of all threads of the block. Every thread gets it.
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

// Gives each kept row of a tile its rank, which is the number of kept rows before it, and returns the number of kept
// rows. Thread t holds rows t, t + kBlockThreads, ... of the tile.
__device__ inline int32_t RankInTile(const bool (&is_kept)[kTileItems], int32_t (&rank)[kTileItems]) {
  __shared__ int32_t before[kWarpThreads + 1];  // kept rows before each warp's rows of an item; last: the tile's total
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
    const int32_t count = before[lane], sum = SumToLane(count);
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

// Numbers the tiles of several entries (rulebooks, for example) as one sequence, over which blocks stride. So entries
// whose sizes only the device knows can share a launch, and no block idles while an entry still has work. All threads
// of a block construct it.
template <int kMaxEntries>
class BatchTiles {
 public:
  static_assert(kMaxEntries <= kWarpThreads, "one warp adds up the entries' tiles");

  // num_tiles(entry) returns an entry's number of tiles.
  template <typename NumTiles>
  __device__ BatchTiles(int num_entries, const NumTiles& num_tiles) : begin_(Begins()) {
    const auto entry = static_cast<int>(threadIdx.x);
    if (entry < kWarpThreads) {
      begin_[entry + 1] = SumToLane(entry < num_entries ? num_tiles(entry) : int64_t{0});
      if (entry == 0) begin_[0] = 0;
    }
    __syncthreads();
  }

  // Returns the number of tiles of all entries.
  __device__ int64_t size() const { return begin_[kWarpThreads]; }
  // Returns the entry of a tile, 0 <= tile < size(). `entry`: a lower bound, such as the entry of an earlier tile.
  __device__ int Entry(int64_t tile, int entry = 0) const {
    while (begin_[entry + 1] <= tile) ++entry;
    return entry;
  }
  // Returns the tile's number within its entry.
  __device__ int64_t Within(int entry, int64_t tile) const { return tile - begin_[entry]; }

 private:
  __device__ static int64_t* Begins() {
    __shared__ int64_t begins[kWarpThreads + 1];  // each entry's first tile; behind the last entry: the total
    return begins;
  }

  int64_t* begin_;
};

}  // namespace voxserve::kernels::cuda
