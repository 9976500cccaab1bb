#include <algorithm>

#include "kernels/conv/swap_neighbours.h"
#include "kernels/coordinates/neighbour_search.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_tiles.cuh"

namespace voxserve::kernels::cuda {
namespace {

constexpr int kMaxRulebooksALaunch = 32;
constexpr int64_t kMaxBlocks = 1024;  // about the number of resident blocks
static_assert(kMaxRulebooksALaunch <= kWarpThreads);
constexpr int kValuesAThread = 4;
constexpr int kTileValues = kValuesAThread * kBlockThreads;  // that a block handles at a time

struct SwapBatch {
  int32_t num_rulebooks;
  SwapNeighboursParams rulebooks[kMaxRulebooksALaunch];
};
static_assert(sizeof(SwapBatch) <= kMaxParamBytes);

__host__ __device__ inline int64_t NumTiles(int64_t count) { return (count + kTileValues - 1) / kTileValues; }

// Sets every value of the swapped tables to -1, and every mask to 0. Blocks stride over tiles of the values of all
// tables.
__global__ void __launch_bounds__(kBlockThreads) EmptySwappedKernel(const __grid_constant__ SwapBatch batch) {
  WaitForEarlierKernels();
  const BatchTiles<kMaxRulebooksALaunch> tiles(batch.num_rulebooks, [&](int i) {
    return NumTiles(batch.rulebooks[i].num_offsets * batch.rulebooks[i].in_capacity);
  });
  for (int64_t i = blockIdx.x; i < tiles.size(); i += gridDim.x) {
    const int entry = tiles.Entry(i);
    const SwapNeighboursParams& params = batch.rulebooks[entry];
    const int64_t num_values = params.num_offsets * params.in_capacity;
    const int64_t first = tiles.Within(entry, i) * kTileValues + threadIdx.x;
#pragma unroll
    for (int item = 0; item < kValuesAThread; ++item) {
      const int64_t value = first + item * kBlockThreads;
      if (value < num_values) params.swapped[value] = -1;
      if (value < params.in_capacity && params.row_masks != nullptr) params.row_masks[value] = 0;
    }
  }
}

// Writes each output row to the swapped table, at the entry of the input row that it reads. A tile is a range of output
// rows of one offset. An input row occurs at most once in an offset, so no two threads write the same entry.
__global__ void __launch_bounds__(kBlockThreads) SwapNeighboursKernel(const __grid_constant__ SwapBatch batch) {
  WaitForEarlierKernels();
  const BatchTiles<kMaxRulebooksALaunch> tiles(batch.num_rulebooks, [&](int i) {
    const SwapNeighboursParams& params = batch.rulebooks[i];
    return params.num_offsets * NumTiles(NumRows(params.out_capacity, params.num_out));
  });
  for (int64_t i = blockIdx.x; i < tiles.size(); i += gridDim.x) {
    const int entry = tiles.Entry(i);
    const SwapNeighboursParams& params = batch.rulebooks[entry];
    const int64_t num_out = NumRows(params.out_capacity, params.num_out);
    const int64_t within = tiles.Within(entry, i);
    const int64_t tiles_an_offset = NumTiles(num_out);
    const int64_t offset = within / tiles_an_offset;
    const int64_t first = (within - offset * tiles_an_offset) * kTileValues + threadIdx.x;
    const int32_t* const neighbours = params.neighbours + offset * params.out_capacity;
    int32_t* const swapped = params.swapped + offset * params.in_capacity;
    int32_t in_row[kValuesAThread];
#pragma unroll
    for (int item = 0; item < kValuesAThread; ++item) {
      const int64_t row = first + item * kBlockThreads;
      in_row[item] = row < num_out ? neighbours[row] : -1;
    }
#pragma unroll
    for (int item = 0; item < kValuesAThread; ++item) {
      if (in_row[item] >= 0 && in_row[item] < params.in_capacity) {
        swapped[in_row[item]] = static_cast<int32_t>(first + item * kBlockThreads);
        if (params.row_masks != nullptr) atomicOr(params.row_masks + in_row[item], 1u << (offset % kRowMaskBits));
      }
    }
  }
}

}  // namespace

cudaError_t SwapNeighbours(std::span<const SwapNeighboursParams> params, cudaStream_t stream) {
  const NvtxRange range("SwapNeighbours");
  SwapBatch batch{};
  int64_t num_values_tiles = 0, num_row_tiles = 0;  // upper limits
  const auto launch = [&] {
    if (num_values_tiles == 0) {
      batch.num_rulebooks = 0;
      num_row_tiles = 0;
      return cudaSuccess;
    }
    VOXSERVE_RETURN_IF_CUDA(LaunchEarly(EmptySwappedKernel,
                                        static_cast<unsigned>(std::min(kMaxBlocks, num_values_tiles)), kBlockThreads, 0,
                                        stream, batch));
    if (num_row_tiles > 0) {
      VOXSERVE_RETURN_IF_CUDA(LaunchEarly(SwapNeighboursKernel,
                                          static_cast<unsigned>(std::min(kMaxBlocks, num_row_tiles)), kBlockThreads, 0,
                                          stream, batch));
    }
    batch.num_rulebooks = 0;
    num_values_tiles = num_row_tiles = 0;
    return cudaSuccess;
  };
  for (const SwapNeighboursParams& rulebook : params) {
    if (rulebook.row_masks != nullptr && rulebook.num_offsets > kRowMaskBits) return cudaErrorInvalidValue;
    if (batch.num_rulebooks == kMaxRulebooksALaunch) VOXSERVE_RETURN_IF_CUDA(launch());
    batch.rulebooks[batch.num_rulebooks++] = rulebook;
    num_values_tiles += NumTiles(rulebook.num_offsets * rulebook.in_capacity);
    num_row_tiles += rulebook.num_offsets * NumTiles(rulebook.out_capacity);
  }
  return launch();
}

}  // namespace voxserve::kernels::cuda
