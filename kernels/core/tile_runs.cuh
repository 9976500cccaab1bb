#pragma once

// Numbering the rows that are kept, in two kernels of the same blocks: each block has a run of whole tiles
// (row_tiles.cuh); the first kernel counts its kept rows, the second adds up the counts of the blocks before it and
// ranks its own. The number of blocks is bounded, so that adding up stays short. Included by .cu files alone.

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

// Of [num_runs] counts, the sum of those of the runs before the block's. All threads call it.
__device__ inline int64_t CountBeforeRun(const int32_t* counts) {
  int64_t sum = 0;
  for (unsigned run = threadIdx.x; run < blockIdx.x; run += kBlockThreads) sum += counts[run];
  return BlockSum(sum);
}

}  // namespace voxserve::kernels::cuda
