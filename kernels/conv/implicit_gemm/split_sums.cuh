#pragma once

// With split K, two thread blocks each compute one half of a tile's sums. This header adds the halves. Only .cu files
// include it.

#include <cstdint>
#include <type_traits>

#include "kernels/conv/implicit_gemm/arguments.cuh"
#include "kernels/conv/implicit_gemm/store_int8_sums.cuh"

namespace voxserve::kernels::cuda {

// Adds the halves of the sums of 16 rows and kColumns columns, for one of the four warps of a tile of 64 rows. Two
// warps, one in each block, compute one half each and write it to memory. The warp that finishes last adds the second
// half to the first and stores the result. It reads both halves back from memory in parts, since products need the
// registers. All threads of a warp call the functions.
template <typename T, int kColumns>
class SplitSums {
 public:
  __device__ SplitSums(const ImplicitGemmArguments<T>& arguments, int32_t tile, int32_t column)
      : arguments_(arguments), column_(column) {
    const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
    const auto warp = static_cast<int32_t>(threadIdx.x) / 32 % kTileWarps;
    const int32_t column_tile = column / kColumns;
    const int32_t num_column_tiles = (arguments.out_channels + kColumns - 1) / kColumns;
    counter_ = arguments.tiles.counters + kTileCounters +
               (int64_t{tile} * kMaxSplitColumnTiles + column_tile) * kTileWarps + warp;
    halves_ = reinterpret_cast<FourSums*>(arguments.half_sums) +
              ((int64_t{tile} * num_column_tiles + column_tile) * kTileWarps + warp) * 2 * kHalf + lane;
  }

  // Writes the sums of one half (0 or 1) to memory.
  __device__ void Leave(int32_t half, const SumOf<T> (&sums)[kColumns / 2]) const {
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      __stcg(halves_ + half * kHalf + i * 32, FourSums{sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]});
    }
  }

  // Is called after Leave. If the other half is written too, adds the halves, applies the epilogue and stores the
  // output. kept: as of SumsStore::Store.
  __device__ void StoreWhole(const WarpRows& rows, uint32_t kept) const {
    __syncwarp();
    int32_t others = 0;
    if (threadIdx.x % 32 == 0) {
      __threadfence();
      others = atomicAdd(counter_, 1);
      __threadfence();
    }
    if (__shfl_sync(~0u, others, 0) == 0) return;
    if (threadIdx.x % 32 == 0) *counter_ = 0;
    __syncwarp();
#pragma unroll 1
    for (int part = 0; part < kColumns / kPartColumns; ++part) {
      const int32_t column = column_ + part * kPartColumns;
      SumsStore<T, kPartSums> store;
      store.Load(arguments_, rows, column);
      SumOf<T> sums[kPartSums];
#pragma unroll
      for (int i = 0; i < kPartSums / 4; ++i) {
        const FourSums* const from = halves_ + (part * kPartSums / 4 + i) * 32;
        const FourSums first = __ldcg(from), second = __ldcg(from + kHalf);
        sums[4 * i] = first.x + second.x;
        sums[4 * i + 1] = first.y + second.y;
        sums[4 * i + 2] = first.z + second.z;
        sums[4 * i + 3] = first.w + second.w;
      }
      store.Store(arguments_, sums, rows, column, kept);
    }
  }

 private:
  using FourSums = std::conditional_t<std::is_same_v<SumOf<T>, float>, float4, int4>;
  static constexpr int kPartColumns = 32;
  static constexpr int kPartSums = kPartColumns / 2;       // sums per thread
  static constexpr int64_t kHalf = kColumns / 2 / 4 * 32;  // FourSums of a warp's half

  const ImplicitGemmArguments<T>& arguments_;
  int32_t column_;
  int32_t* counter_;  // the number of halves that are written
  FourSums* halves_;
};

}  // namespace voxserve::kernels::cuda
