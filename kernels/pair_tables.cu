#include <algorithm>

#include "kernels/launch.cuh"
#include "kernels/pair_tables.h"
#include "kernels/row_tiles.cuh"

namespace voxserve::kernels::cuda {
namespace {

// An offset's rows are cut among blocks. All blocks together are about so many: enough to fill a GPU, few enough that
// each can sum the counts of those before it, which saves a scan of its own.
constexpr int64_t kMaxBlocks = 2048;

struct Cut {
  explicit Cut(const PairTablesParams& params) {
    const auto parts = [](int64_t rows, int64_t size) { return std::max<int64_t>(1, (rows + size - 1) / size); };
    num_blocks = std::min(std::max<int64_t>(1, kMaxBlocks / params.num_offsets),
                          parts(std::max(params.in_capacity, params.out_capacity), kTileRows));
    out_rows = parts(parts(params.out_capacity, kTileRows), num_blocks) * kTileRows;
    in_rows = parts(params.in_capacity, num_blocks);
  }

  int64_t num_blocks;  // of an offset
  int64_t out_rows;    // of a block; whole tiles
  int64_t in_rows;     // of a block
};

int32_t* TakeCounts(const PairTablesParams& params, const Cut& cut, WorkspaceCutter& cutter) {
  return cutter.Take<int32_t>(params.num_offsets * cut.num_blocks);
}

// Marks that a row has a pair in an offset. Order does not matter to bits.
__device__ void SetBit(uint32_t* masks, int64_t row, int64_t offset, int32_t mask_words) {
  atomicOr(masks + row * mask_words + offset / 32, 1u << (offset % 32));
}

__device__ void ClearMasks(uint32_t* masks, int64_t begin, int64_t end, int32_t mask_words) {
  for (int64_t i = begin * mask_words + threadIdx.x; i < end * mask_words; i += kBlockThreads) masks[i] = 0;
}

// counts: [K, blocks of an offset] pairs of each block's rows. Clears in_pairs and the masks on the way, which
// RankPairsKernel fills.
__global__ void __launch_bounds__(kBlockThreads)
    CountPairsKernel(const PairTablesParams params, const Cut cut, int32_t* counts) {
  const int64_t offset = blockIdx.y;
  int32_t* const in_pairs = params.in_pairs + offset * params.in_capacity;
  const int64_t num_in = NumRows(params.in_capacity, params.num_in);
  const int64_t in_begin = blockIdx.x * cut.in_rows;
  const int64_t in_end = min(in_begin + cut.in_rows, num_in);
  for (int64_t row = in_begin + threadIdx.x; row < in_end; row += kBlockThreads) in_pairs[row] = -1;

  const int32_t* const neighbours = params.neighbours + offset * params.out_capacity;
  const int64_t begin = blockIdx.x * cut.out_rows;
  const int64_t end = min(begin + cut.out_rows, NumRows(params.out_capacity, params.num_out));
  if (offset == 0) {
    ClearMasks(params.in_masks, in_begin, in_end, MaskWords(params.num_offsets));
    ClearMasks(params.out_masks, begin, end, MaskWords(params.num_offsets));
  }
  int64_t count = 0;
#pragma unroll 4
  for (int64_t row = begin + threadIdx.x; row < end; row += kBlockThreads) count += neighbours[row] >= 0;
  count = BlockSum(count);
  if (threadIdx.x == 0) counts[offset * gridDim.x + blockIdx.x] = static_cast<int32_t>(count);
}

// out_pairs may be neighbours: a thread reads what it overwrites before it does.
__global__ void __launch_bounds__(kBlockThreads)
    RankPairsKernel(const PairTablesParams params, const Cut cut, const int32_t* counts) {
  const int64_t offset = blockIdx.y;
  const int64_t begin = blockIdx.x * cut.out_rows;
  const int64_t end = min(begin + cut.out_rows, NumRows(params.out_capacity, params.num_out));
  const bool is_first = blockIdx.x == 0;  // of the offset
  const bool is_last = blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1;
  if (begin >= end && !is_first && !is_last) return;

  const int64_t num_before = offset * gridDim.x + blockIdx.x;
  int64_t pairs_before = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < num_before; i += kBlockThreads) pairs_before += counts[i];
  pairs_before = BlockSum(pairs_before);
  if (is_first && threadIdx.x == 0) params.offset_begin[offset] = pairs_before;

  const int32_t* const neighbours = params.neighbours + offset * params.out_capacity;
  int32_t* const out_pairs = params.out_pairs + offset * params.out_capacity;
  int32_t* const in_pairs = params.in_pairs + offset * params.in_capacity;
  for (int64_t tile = begin; tile < end; tile += kTileRows) {
    int32_t in_row[kTileItems];
    bool is_pair[kTileItems];
    int32_t rank[kTileItems];
#pragma unroll
    for (int item = 0; item < kTileItems; ++item) {
      const int64_t row = tile + item * kBlockThreads + threadIdx.x;
      in_row[item] = row < end ? neighbours[row] : -1;
      is_pair[item] = in_row[item] >= 0;
    }
    const int32_t num_pairs = RankInTile(is_pair, rank);
#pragma unroll
    for (int item = 0; item < kTileItems; ++item) {
      const int64_t row = tile + item * kBlockThreads + threadIdx.x;
      if (row >= end) continue;
      const auto pair = static_cast<int32_t>(pairs_before + rank[item]);
      out_pairs[row] = is_pair[item] ? pair : -1;
      if (!is_pair[item]) continue;
      in_pairs[in_row[item]] = pair;
      SetBit(params.in_masks, in_row[item], offset, MaskWords(params.num_offsets));
      SetBit(params.out_masks, row, offset, MaskWords(params.num_offsets));
    }
    pairs_before += num_pairs;
  }
  if (is_last && threadIdx.x == 0) params.offset_begin[params.num_offsets] = pairs_before;
}

__global__ void __launch_bounds__(kBlockThreads) ScatterPairsKernel(const PairListsParams params) {
  const int64_t pair = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (pair >= params.num_pairs) return;
  // The last offset that begins at or before the pair: empty offsets begin where the next one does.
  int32_t offset = 0;
  int32_t last = params.num_offsets - 1;
  while (offset < last) {
    const int32_t middle = offset + (last - offset + 1) / 2;
    if (params.offset_begin[middle] <= pair) {
      offset = middle;
    } else {
      last = middle - 1;
    }
  }
  const int32_t in_row = params.in_rows[pair], out_row = params.out_rows[pair];
  params.in_pairs[offset * params.in_capacity + in_row] = static_cast<int32_t>(pair);
  params.out_pairs[offset * params.out_capacity + out_row] = static_cast<int32_t>(pair);
  SetBit(params.in_masks, in_row, offset, MaskWords(params.num_offsets));
  SetBit(params.out_masks, out_row, offset, MaskWords(params.num_offsets));
}

// Every byte of num_words words of 32 bits.
cudaError_t Fill(void* words, int byte, int64_t num_words, cudaStream_t stream) {
  if (num_words == 0) return cudaSuccess;
  return cudaMemsetAsync(words, byte, static_cast<size_t>(num_words) * sizeof(int32_t), stream);
}

}  // namespace

size_t PairTablesWorkspaceBytes(const PairTablesParams& params) {
  if (params.num_offsets == 0) return 0;
  WorkspaceCutter cutter(nullptr);
  TakeCounts(params, Cut(params), cutter);
  return cutter.bytes();
}

cudaError_t PairTables(const PairTablesParams& params, cudaStream_t stream) {
  const NvtxRange range("PairTables");
  if (params.num_offsets == 0) return cudaMemsetAsync(params.offset_begin, 0, sizeof(int64_t), stream);
  WorkspaceCutter cutter(params.workspace);
  const Cut cut(params);
  int32_t* const counts = TakeCounts(params, cut, cutter);
  const dim3 blocks(static_cast<unsigned>(cut.num_blocks), static_cast<unsigned>(params.num_offsets));
  CountPairsKernel<<<blocks, kBlockThreads, 0, stream>>>(params, cut, counts);
  VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
  RankPairsKernel<<<blocks, kBlockThreads, 0, stream>>>(params, cut, counts);
  return LaunchStatus(stream);
}

cudaError_t PairTablesFromLists(const PairListsParams& params, cudaStream_t stream) {
  const NvtxRange range("PairTablesFromLists");
  constexpr int kNone = 0xFF;  // -1
  const int64_t mask_words = MaskWords(params.num_offsets);
  VOXSERVE_RETURN_IF_CUDA(Fill(params.in_pairs, kNone, params.num_offsets * params.in_capacity, stream));
  VOXSERVE_RETURN_IF_CUDA(Fill(params.out_pairs, kNone, params.num_offsets * params.out_capacity, stream));
  VOXSERVE_RETURN_IF_CUDA(Fill(params.in_masks, 0, mask_words * params.in_capacity, stream));
  VOXSERVE_RETURN_IF_CUDA(Fill(params.out_masks, 0, mask_words * params.out_capacity, stream));
  if (params.num_pairs == 0) return cudaSuccess;
  ScatterPairsKernel<<<NumBlocks(params.num_pairs), kBlockThreads, 0, stream>>>(params);
  return LaunchStatus(stream);
}

}  // namespace voxserve::kernels::cuda
