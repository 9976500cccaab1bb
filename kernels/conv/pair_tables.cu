#include <algorithm>

#include "kernels/conv/pair_tables.h"
#include "kernels/core/binary_search.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_tiles.cuh"

namespace voxserve::kernels::cuda {
namespace {

// A tile is a range of a rulebook's rows together with the offsets of one mask word. Blocks stride over the tiles of
// all rulebooks of a launch. Each block sums the counts of the tiles before its own, so no separate scan is needed.
constexpr int kWordBits = 32;
constexpr int kRowsAThread = 2;
constexpr int kWarpRows = kRowsAThread * kWarpThreads;
constexpr int kPairRows = kRowsAThread * kBlockThreads;  // rows per tile
constexpr int kOffsetsInFlight = 4;                      // offsets whose neighbours a thread loads before it writes
constexpr int kRankBlocksAnSm = 5;                       // enough for all tiles of a scan to be resident at once
constexpr int kMaxRulebooksALaunch = 24;
constexpr int64_t kMaxBlocks = 1024;  // about the number of resident blocks

__host__ __device__ inline int64_t NumTiles(int64_t num_rows) { return (num_rows + kPairRows - 1) / kPairRows; }

struct PairBatch {
  int32_t num_rulebooks;
  PairTablesParams rulebooks[kMaxRulebooksALaunch];  // a workspace holds counts [K, NumTiles(out_capacity)]
};
static_assert(sizeof(PairBatch) <= kMaxParamBytes);

// Returns true if a row's mask in in_masks is its mask in out_masks with the bits in reversed order.
__device__ bool HasTurnedMasks(const PairTablesParams& params) {
  return params.is_symmetric && params.num_offsets <= kWordBits;
}

// Marks that a row has a pair in an offset. The order of the marks does not change the result.
__device__ void SetBit(uint32_t* masks, int64_t row, int64_t offset, int32_t mask_words) {
  atomicOr(masks + row * mask_words + offset / kWordBits, 1u << (offset % kWordBits));
}

// A thread's place in a tile of a rulebook. A warp's rows are adjacent: the row is first_row + item * kWarpThreads.
struct TilePlace {
  __device__ TilePlace(const PairTablesParams& params, int64_t within) {
    mask_words = MaskWords(params.num_offsets);
    word = static_cast<int32_t>(within % mask_words);
    tile = within / mask_words;
    first_offset = word * kWordBits;
    num_offsets = min(kWordBits, params.num_offsets - first_offset);
    first_row = tile * kPairRows + threadIdx.x / kWarpThreads * kWarpRows + threadIdx.x % kWarpThreads;
  }
  __device__ int64_t Row(int item) const { return first_row + item * kWarpThreads; }

  int32_t mask_words;
  int32_t word;
  int64_t tile;
  int32_t first_offset;
  int32_t num_offsets;  // offsets of this word
  int64_t first_row;
};

// Empties those parts of a tile's in_masks and in_pairs of which RankPairsKernel later writes only the entries that
// have a pair: in_masks unless HasTurnedMasks, in_pairs unless the rulebook is symmetric.
__device__ void EmptyInputs(const PairTablesParams& params, const TilePlace& place, int64_t num_in) {
#pragma unroll
  for (int item = 0; item < kRowsAThread; ++item) {
    const int64_t row = place.Row(item);
    if (row >= num_in) continue;
    if (!HasTurnedMasks(params)) params.in_masks[row * place.mask_words + place.word] = 0;
    if (params.is_symmetric) continue;
    int32_t* const in_pairs = params.in_pairs + place.first_offset * params.in_capacity + row;
    for (int32_t k = 0; k < place.num_offsets; ++k) in_pairs[k * params.in_capacity] = -1;
  }
}

// Counts the pairs of each offset in each tile, and writes out_masks (if HasTurnedMasks, also in_masks).
__global__ void __launch_bounds__(kBlockThreads) CountPairsKernel(const __grid_constant__ PairBatch batch) {
  __shared__ int32_t warp_counts[kWordBits][kBlockWarps];
  const int lane = threadIdx.x % kWarpThreads;
  const int warp = threadIdx.x / kWarpThreads;
  const BatchTiles<kMaxRulebooksALaunch> tiles(batch.num_rulebooks, [&](int i) {
    const PairTablesParams& params = batch.rulebooks[i];
    const int64_t num_out = NumRows(params.out_capacity, params.num_out);
    return NumTiles(max(num_out, NumRows(params.in_capacity, params.num_in))) * MaskWords(params.num_offsets);
  });
  for (int64_t i = blockIdx.x; i < tiles.size(); i += gridDim.x) {
    const int entry = tiles.Entry(i);
    const PairTablesParams& params = batch.rulebooks[entry];
    const TilePlace place(params, tiles.Within(entry, i));
    const int64_t num_out = NumRows(params.out_capacity, params.num_out);
    EmptyInputs(params, place, NumRows(params.in_capacity, params.num_in));
    if (place.tile * kPairRows >= num_out) continue;

    const int32_t* const neighbours = params.neighbours + place.first_offset * params.out_capacity;
    uint32_t masks[kRowsAThread] = {};
#pragma unroll kOffsetsInFlight
    for (int32_t k = 0; k < place.num_offsets; ++k) {
      int32_t count = 0;
#pragma unroll
      for (int item = 0; item < kRowsAThread; ++item) {
        const int64_t row = place.Row(item);
        const bool is_pair = row < num_out && neighbours[k * params.out_capacity + row] >= 0;
        masks[item] |= (is_pair ? 1u : 0u) << k;
        count += __popc(__ballot_sync(~0u, is_pair));
      }
      if (lane == 0) warp_counts[k][warp] = count;
    }
#pragma unroll
    for (int item = 0; item < kRowsAThread; ++item) {
      const int64_t row = place.Row(item);
      if (row >= num_out) continue;
      params.out_masks[row * place.mask_words + place.word] = masks[item];
      if (HasTurnedMasks(params)) params.in_masks[row] = __brev(masks[item]) >> (kWordBits - params.num_offsets);
    }
    __syncthreads();
    if (threadIdx.x < place.num_offsets) {
      int32_t count = 0;
#pragma unroll
      for (int w = 0; w < kBlockWarps; ++w) count += warp_counts[threadIdx.x][w];
      auto* const counts = static_cast<int32_t*>(params.workspace);
      counts[(place.first_offset + static_cast<int64_t>(threadIdx.x)) * NumTiles(params.out_capacity) + place.tile] =
          count;
    }
    __syncthreads();
  }
}

// Computes begin[k], the number of pairs before this tile's pairs in the word's offset k. All threads call it. The
// first tile of a rulebook also writes offset_begin. An offset has fewer than 2^31 pairs. All offsets together may have
// more: offset_begin then holds the right sum, while begin wraps around.
__device__ void PairsBefore(const PairTablesParams& params, const TilePlace& place, int64_t num_out,
                            uint32_t (&begin)[kWordBits]) {
  __shared__ int64_t totals[kWordBits];
  __shared__ int64_t pairs_before_word[kBlockWarps];
  const int lane = threadIdx.x % kWarpThreads;
  const int warp = threadIdx.x / kWarpThreads;
  const auto* const counts = static_cast<const int32_t*>(params.workspace);
  int64_t before_word = 0;
  for (int32_t offset = warp; offset < place.first_offset + place.num_offsets; offset += kBlockWarps) {
    const int32_t* const of_offset = counts + offset * NumTiles(params.out_capacity);
    int32_t total = 0;
    int32_t before = 0;
#pragma unroll 4
    for (int64_t tile = lane; tile < NumTiles(num_out); tile += kWarpThreads) {
      const int32_t count = of_offset[tile];
      total += count;
      before += tile < place.tile ? count : 0;
    }
    for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
      total += __shfl_xor_sync(~0u, total, distance);
      before += __shfl_xor_sync(~0u, before, distance);
    }
    if (offset < place.first_offset) {
      before_word += total;
    } else if (lane == 0) {
      totals[offset - place.first_offset] = total;
      begin[offset - place.first_offset] = static_cast<uint32_t>(before);
    }
  }
  if (lane == 0) pairs_before_word[warp] = before_word;
  __syncthreads();
  if (warp == 0) {
    int64_t first = 0;
#pragma unroll
    for (int w = 0; w < kBlockWarps; ++w) first += pairs_before_word[w];
    const int64_t total = lane < place.num_offsets ? totals[lane] : 0;
    const int64_t sum = SumToLane(total);
    if (lane < place.num_offsets) {
      const int64_t of_offset = first + sum - total;
      begin[lane] += static_cast<uint32_t>(of_offset);
      if (place.tile == 0) {
        const int32_t offset = place.first_offset + lane;
        params.offset_begin[offset] = of_offset;
        if (offset == params.num_offsets - 1) params.offset_begin[params.num_offsets] = first + sum;
      }
    }
  }
  __syncthreads();
}

// Numbers a tile's pairs and writes the numbers to out_pairs and in_pairs. out_pairs may be the same memory as
// neighbours: a thread reads an entry before it overwrites the entry. With symmetry, the kernel writes every value of
// in_pairs once: if row o reads no input at offset k, then no output reads row o at offset K - 1 - k.
__global__ void __launch_bounds__(kBlockThreads, BlocksAnSm(kRankBlocksAnSm))
    RankPairsKernel(const __grid_constant__ PairBatch batch) {
  __shared__ uint32_t begin[kWordBits];
  __shared__ uint32_t
      warp_begin[kWordBits][kBlockWarps];  // at first the number of a warp's pairs in an offset, later of earlier pairs
  const int lane = threadIdx.x % kWarpThreads;
  const int warp = threadIdx.x / kWarpThreads;
  const BatchTiles<kMaxRulebooksALaunch> tiles(batch.num_rulebooks, [&](int i) {
    const PairTablesParams& params = batch.rulebooks[i];
    // A rulebook without rows has one tile too, which writes offset_begin.
    return max(int64_t{1}, NumTiles(NumRows(params.out_capacity, params.num_out))) * MaskWords(params.num_offsets);
  });
  for (int64_t i = blockIdx.x; i < tiles.size(); i += gridDim.x) {
    const int entry = tiles.Entry(i);
    const PairTablesParams& params = batch.rulebooks[entry];
    const TilePlace place(params, tiles.Within(entry, i));
    const int64_t num_out = NumRows(params.out_capacity, params.num_out);

    uint32_t masks[kRowsAThread];
#pragma unroll
    for (int item = 0; item < kRowsAThread; ++item) {
      const int64_t row = place.Row(item);
      masks[item] = row < num_out ? params.out_masks[row * place.mask_words + place.word] : 0;
    }
    for (int32_t k = 0; k < place.num_offsets; ++k) {
      uint32_t count = 0;
#pragma unroll
      for (int item = 0; item < kRowsAThread; ++item) {
        count += static_cast<uint32_t>(__popc(__ballot_sync(~0u, (masks[item] >> k & 1) != 0)));
      }
      if (lane == 0) warp_begin[k][warp] = count;
    }
    PairsBefore(params, place, num_out, begin);
    if (threadIdx.x < place.num_offsets) {
      uint32_t pairs = begin[threadIdx.x];
#pragma unroll
      for (int w = 0; w < kBlockWarps; ++w) {
        const uint32_t count = warp_begin[threadIdx.x][w];
        warp_begin[threadIdx.x][w] = pairs;
        pairs += count;
      }
    }
    __syncthreads();

    const int32_t* const neighbours = params.neighbours + place.first_offset * params.out_capacity;
    int32_t* const out_pairs = params.out_pairs + place.first_offset * params.out_capacity;
    for (int32_t first = 0; first < place.num_offsets; first += kOffsetsInFlight) {
      int32_t in_row[kOffsetsInFlight][kRowsAThread];
#pragma unroll
      for (int j = 0; j < kOffsetsInFlight; ++j) {
#pragma unroll
        for (int item = 0; item < kRowsAThread; ++item) {
          const bool is_pair = first + j < kWordBits && (masks[item] >> (first + j) & 1) != 0;
          in_row[j][item] = is_pair ? neighbours[(first + j) * params.out_capacity + place.Row(item)] : -1;
        }
      }
#pragma unroll
      for (int j = 0; j < kOffsetsInFlight; ++j) {
        const int32_t k = first + j;
        if (k >= place.num_offsets) break;
        const int64_t offset = place.first_offset + k;
        uint32_t pairs = warp_begin[k][warp];
#pragma unroll
        for (int item = 0; item < kRowsAThread; ++item) {
          const int64_t row = place.Row(item);
          const bool is_pair = in_row[j][item] >= 0;
          const uint32_t warp_pairs = __ballot_sync(~0u, is_pair);
          const auto pair =
              static_cast<int32_t>(pairs + static_cast<uint32_t>(__popc(warp_pairs & ((1u << lane) - 1))));
          pairs += static_cast<uint32_t>(__popc(warp_pairs));
          if (row >= num_out) continue;
          out_pairs[k * params.out_capacity + row] = is_pair ? pair : -1;
          if (is_pair) {
            params.in_pairs[offset * params.in_capacity + in_row[j][item]] = pair;
            if (!HasTurnedMasks(params)) SetBit(params.in_masks, in_row[j][item], offset, place.mask_words);
          } else if (params.is_symmetric) {
            params.in_pairs[(params.num_offsets - 1 - offset) * params.in_capacity + row] = -1;
          }
        }
      }
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kBlockThreads) ScatterPairsKernel(const PairListsParams params) {
  const int64_t pair = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (pair >= params.num_pairs) return;
  const int32_t offset = RunOf(params.offset_begin, params.num_offsets, pair);
  const int32_t in_row = params.in_rows[pair], out_row = params.out_rows[pair];
  params.in_pairs[offset * params.in_capacity + in_row] = static_cast<int32_t>(pair);
  params.out_pairs[offset * params.out_capacity + out_row] = static_cast<int32_t>(pair);
  SetBit(params.in_masks, in_row, offset, MaskWords(params.num_offsets));
  SetBit(params.out_masks, out_row, offset, MaskWords(params.num_offsets));
}

// Sets every byte of num_words words of 32 bits to `byte`.
cudaError_t Fill(void* words, int byte, int64_t num_words, cudaStream_t stream) {
  if (num_words == 0) return cudaSuccess;
  return cudaMemsetAsync(words, byte, static_cast<size_t>(num_words) * sizeof(int32_t), stream);
}

}  // namespace

size_t PairTablesWorkspaceBytes(const PairTablesParams& params) {
  WorkspaceCutter cutter(nullptr);
  cutter.Take<int32_t>(params.num_offsets * NumTiles(params.out_capacity));
  return cutter.bytes();
}

cudaError_t PairTables(std::span<const PairTablesParams> params, cudaStream_t stream) {
  const NvtxRange range("PairTables");
  PairBatch batch{};
  int64_t max_tiles = 0;
  const auto launch = [&] {
    if (batch.num_rulebooks == 0) return cudaSuccess;
    const auto blocks = static_cast<unsigned>(std::min(kMaxBlocks, max_tiles));
    CountPairsKernel<<<blocks, kBlockThreads, 0, stream>>>(batch);
    VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
    RankPairsKernel<<<blocks, kBlockThreads, 0, stream>>>(batch);
    batch.num_rulebooks = 0;
    max_tiles = 0;
    return LaunchStatus(stream);
  };
  for (const PairTablesParams& rulebook : params) {
    if (rulebook.num_offsets == 0) {
      VOXSERVE_RETURN_IF_CUDA(cudaMemsetAsync(rulebook.offset_begin, 0, sizeof(int64_t), stream));
      continue;
    }
    if (batch.num_rulebooks == kMaxRulebooksALaunch) VOXSERVE_RETURN_IF_CUDA(launch());
    batch.rulebooks[batch.num_rulebooks++] = rulebook;
    max_tiles += std::max<int64_t>(1, NumTiles(std::max(rulebook.in_capacity, rulebook.out_capacity))) *
                 MaskWords(rulebook.num_offsets);
  }
  return launch();
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
