#pragma once

// This header serves kernels that keep some of their rows and number the kept rows. It has row counts that only the
// device knows, and ranks of rows within a block. Blocks have kBlockThreads threads, and all threads of a block call
// BlockSum and RankInTile. Functions of warps serve any kernel. Only .cu files include this header.

#include <cstdint>

#include "kernels/core/launch.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int kWarpThreads = 32;
inline constexpr int kBlockWarps = kBlockThreads / kWarpThreads;
inline constexpr int kTileRows = kBlockThreads;  // a tile: the rows that a block handles at a time, one per thread

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

// Returns the OR of the bits of the calling lane and of the lanes above it, below lane `end`. Lanes with one `end` are
// consecutive.
template <typename T>
__device__ T OrToEnd(T bits, int lane, int end) {
#pragma unroll
  for (int distance = 1; distance < kWarpThreads; distance *= 2) {
    const T above = __shfl_down_sync(~0u, bits, distance);
    if (lane + distance < end) bits |= above;
  }
  return bits;
}

// Returns the OR of the bits of all threads of a warp.
__device__ inline uint32_t WarpOr(uint32_t bits) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_or_sync(~0u, bits);
#else
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) bits |= __shfl_xor_sync(~0u, bits, distance);
  return bits;
#endif
}

// Returns the sum of the values of all threads of a warp.
__device__ inline int32_t WarpSum(int32_t value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_add_sync(~0u, value);
#else
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(~0u, value, distance);
  return value;
#endif
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
// rows.
__device__ inline int32_t RankInTile(bool is_kept, int32_t& rank) {
  __shared__ int32_t counts[kBlockWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads, warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const unsigned kept = __ballot_sync(~0u, is_kept);
  if (lane == 0) counts[warp] = __popc(kept);
  __syncthreads();
  rank = __popc(kept & ((1u << lane) - 1));
  int32_t num_kept = 0;
#pragma unroll
  for (int other = 0; other < kBlockWarps; ++other) {
    num_kept += counts[other];
    if (other < warp) rank += counts[other];
  }
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
    __shared__ int64_t begins[kWarpThreads + 1];  // each entry's first tile; after the last entry: the total
    return begins;
  }

  int64_t* begin_;
};

}  // namespace voxserve::kernels::cuda
