#pragma once

// TileRuns helps two kernels to number the rows that are kept. Both have the same blocks, and each block has a run of
// consecutive whole tiles (row_tiles.cuh). The first kernel counts the kept rows of each run. In the second, each block
// adds up the counts of the runs before its own and ranks its rows. The number of blocks is limited, so that this sum
// stays short. Only .cu files include this header.

#include <algorithm>
#include <cstdint>

#include "kernels/core/row_tiles.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int64_t kMaxRuns = 1024;

struct TileRuns {
  explicit TileRuns(int64_t capacity) {
    const int64_t num_tiles = std::max<int64_t>((capacity + kTileRows - 1) / kTileRows, 1);
    const int64_t tiles_a_run = (num_tiles + kMaxRuns - 1) / kMaxRuns;
    rows_a_run = tiles_a_run * kTileRows;
    num_runs = static_cast<unsigned>((num_tiles + tiles_a_run - 1) / tiles_a_run);
  }

  int64_t rows_a_run;
  unsigned num_runs;  // the number of blocks; at most kMaxRuns
};

// Returns the sum of counts [num_runs] over the runs before the block's own. All threads call it.
__device__ inline int64_t CountBeforeRun(const int32_t* counts) {
  int64_t sum = 0;
  for (unsigned run = threadIdx.x; run < blockIdx.x; run += kBlockThreads) sum += counts[run];
  return BlockSum(sum);
}

}  // namespace voxserve::kernels::cuda
