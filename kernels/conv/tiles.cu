#include <algorithm>
#include <cub/block/block_scan.cuh>

#include "kernels/conv/tiles.h"
#include "kernels/core/clear.h"
#include "kernels/core/device_code.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/radix_sort.h"
#include "kernels/core/row_tiles.cuh"

namespace voxserve::kernels::cuda {
namespace {

constexpr int kWordBits = 32;
constexpr int kMaxRulebooksASort = kMaxSortParts;
constexpr int64_t kMaxBlocks = 2048;  // about the number of resident blocks
constexpr int kFillThreads = static_cast<int>(kMaxBlockTileRows);
constexpr int kFillBlocksAnSm = 12;  // as many as an SM of an H100 holds: more would wait
constexpr int kTilesABlock = kFillThreads / static_cast<int>(kMaskTileRows);
constexpr int kMaskWarps = static_cast<int>(kMaskTileRows) / kWarpThreads;
constexpr int kTileSizes = 2;   // 64 and 128 rows
constexpr int kWeights = 1024;  // a tile's weight is its number of offsets; the sort treats more than 1023 as 1023
constexpr int kBitsAtOnce = 8;  // offsets whose input rows a thread reads before it writes them

struct TilesBatch {
  int32_t num_rulebooks;
  int64_t key_begin[kMaxRulebooksASort + 1];  // each rulebook's first key: one key per row of capacity
  TilesParams rulebooks[kMaxRulebooksASort];
};
static_assert(sizeof(TilesBatch) <= kMaxParamBytes);

// The order of bits in each class of one rulebook (tiles.h): the bits below the class's own bit, the most common first.
struct ClassOrders {
  uint8_t place_of[kSortBits][kWarpThreads];  // [class, bit] the place of the bit in the order
  uint8_t bit_at[kSortBits][kWarpThreads];    // [class, place] the bit at the place
  uint8_t bit_of[kWarpThreads];               // [offset] its bit, in kernels of at most kSortBits offsets
};

// Returns the highest bit that is set.
__device__ int HighestBit(uint32_t bits) { return kWordBits - 1 - __clz(static_cast<int>(bits)); }

// Returns the value whose Gray code is `code`.
__device__ uint32_t GrayRank(uint32_t code) {
  for (int shift = 1; shift < kWordBits; shift *= 2) code ^= code >> shift;
  return code;
}

// Returns the mask of offsets by which a row without a mask in row_masks is sorted. SortOrder (tiles.h) says which
// offset each bit stands for.
__device__ uint32_t SortBitsOf(const TilesParams& params, int64_t row) {
  const int32_t* const neighbours = params.neighbours + row;
  uint32_t bits = 0;
  if (params.num_offsets <= kSortBits) {
#pragma unroll 9
    for (int bit = 0; bit < params.num_offsets; ++bit) {
      bits |= static_cast<uint32_t>(neighbours[params.order[bit] * params.pitch] >= 0) << bit;
    }
    return bits;
  }
  for (int32_t k = 0; k < params.num_offsets; ++k) {
    bits |= static_cast<uint32_t>(neighbours[k * params.pitch] >= 0) << (k * kSortBits / params.num_offsets);
  }
  return bits;
}

// Calls visit(bit) for each set bit, the lowest first.
template <typename Visit>
__device__ void ForEachBit(uint32_t bits, const Visit& visit) {
  for (; bits != 0; bits &= bits - 1) visit(__ffs(static_cast<int>(bits)) - 1);
}

// Returns the rank of a row with these bits: the bit of the row's class and, below it, the Gray rank of the other bits
// in the order of the class. So a higher class has a higher rank.
__device__ uint32_t RankOfBits(const ClassOrders& orders, uint32_t bits) {
  if (bits == 0) return 0;
  const int row_class = HighestBit(bits);
  uint32_t code = 0;
  ForEachBit(bits ^ 1u << row_class, [&](int bit) { code |= 1u << orders.place_of[row_class][bit]; });
  return 1u << row_class | GrayRank(code);
}

__device__ uint32_t BitsOfRank(const ClassOrders& orders, uint32_t rank) {
  if (rank == 0) return 0;
  const int row_class = HighestBit(rank);
  uint32_t bits = 1u << row_class;
  const uint32_t below = rank ^ bits;
  ForEachBit(below ^ below >> 1, [&](int place) { bits |= 1u << orders.bit_at[row_class][place]; });
  return bits;
}

// Returns the offsets of a row as bits, from the row's sort key. The kernel has at most kSortBits offsets.
__device__ uint32_t OffsetsOfKey(const TilesParams& params, const ClassOrders& orders, uint32_t key) {
  uint32_t offsets = 0;
  ForEachBit(BitsOfRank(orders, ~key), [&](int bit) { offsets |= 1u << params.order[bit]; });
  return offsets;
}

constexpr int kOrderWarps = 32;

// Counts the bits of each class in a sample of a rulebook's rows, and orders the bits by these counts. One block serves
// one rulebook.
__global__ void __launch_bounds__(kOrderWarps* kWarpThreads)
    OrderClassesKernel(const __grid_constant__ TilesBatch batch, ClassOrders* orders) {
  WaitForEarlierKernels();
  static_assert(kRunRows == kWarpThreads && kSortBits <= kOrderWarps && kSortBits <= kWarpThreads);
  __shared__ int32_t counts[kSortBits][kWarpThreads];
  const TilesParams& params = batch.rulebooks[blockIdx.x];
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads, lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  if (warp < kSortBits) counts[warp][lane] = 0;
  if (warp == 0 && lane < params.num_offsets && params.num_offsets <= kSortBits) {
    orders[blockIdx.x].bit_of[params.order[lane]] = static_cast<uint8_t>(lane);
  }
  __syncthreads();
  const int64_t num_rows = NumRows(params.out_capacity, params.num_out);
  const int64_t num_runs = (num_rows + kRunRows - 1) / kRunRows;
  const int64_t num_sampled = min(num_runs, NumSampledRuns(params.num_offsets));
  const bool has_masks = params.row_masks != nullptr;
  // The bit of a row's word that is the lane's bit of the sorted mask; -1: none is.
  const int lane_bit = lane >= kSortBits ? -1 : !has_masks ? lane : lane < params.num_offsets ? params.order[lane] : -1;
  int32_t of_class[kSortBits] = {};  // how many rows of each class have the lane's bit
  for (int64_t run = warp; run < num_sampled; run += kOrderWarps) {
    const int64_t row = run * num_runs / num_sampled * kRunRows + lane;
    uint32_t word = 0;
    if (row < num_rows) word = has_masks ? params.row_masks[row] : SortBitsOf(params, row);
    uint32_t have = 0;  // the rows that have the lane's bit
#pragma unroll
    for (int bit = 0; bit < kSortBits; ++bit) {
      const uint32_t rows = __ballot_sync(~0u, (word >> bit & 1) != 0);
      if (lane_bit == bit) have = rows;
    }
    uint32_t left = ~0u;  // the rows whose class is not above this one
#pragma unroll
    for (int row_class = kSortBits - 1; row_class >= 0; --row_class) {
      const uint32_t rows = __shfl_sync(~0u, have, row_class) & left;
      of_class[row_class] += __popc(have & rows);
      left &= ~rows;
    }
  }
#pragma unroll
  for (int row_class = 0; row_class < kSortBits; ++row_class) {
    if (lane < row_class && of_class[row_class] > 0) atomicAdd(&counts[row_class][lane], of_class[row_class]);
  }
  __syncthreads();
  if (warp >= kSortBits) return;
  // Equally common bits are ordered by number, the lower first.
  const int32_t count = counts[warp][lane];
  int place = 0;
  for (int bit = 0; bit < warp; ++bit) {
    const int32_t other = __shfl_sync(~0u, count, bit);
    if (other > count || (other == count && bit < lane)) ++place;
  }
  if (lane >= warp) return;
  orders[blockIdx.x].place_of[warp][lane] = static_cast<uint8_t>(place);
  orders[blockIdx.x].bit_at[warp][place] = static_cast<uint8_t>(lane);
}

// Computes the sort keys of all rows. A higher rank gives a lower key, so that the rows with the highest ranks come
// first. The places behind the last row have the key of rank 0. They stay behind rows of this rank, since the sort is
// stable.
__global__ void __launch_bounds__(kBlockThreads)
    SortKeysKernel(const __grid_constant__ TilesBatch batch, const ClassOrders* orders, uint32_t* keys, int32_t* rows) {
  WaitForEarlierKernels();
  const int64_t num_keys = batch.key_begin[batch.num_rulebooks];
  int entry = 0;
  for (int64_t i = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; i < num_keys;
       i += int64_t{gridDim.x} * kBlockThreads) {
    while (batch.key_begin[entry + 1] <= i) ++entry;
    const TilesParams& params = batch.rulebooks[entry];
    const int64_t row = i - batch.key_begin[entry];
    rows[i] = static_cast<int32_t>(row);
    uint32_t rank = 0;
    if (row < NumRows(params.out_capacity, params.num_out)) {
      uint32_t bits = 0;
      if (params.row_masks != nullptr) {
        ForEachBit(params.row_masks[row], [&](int offset) { bits |= 1u << orders[entry].bit_of[offset]; });
      } else {
        bits = SortBitsOf(params, row);
      }
      rank = RankOfBits(orders[entry], bits);
    }
    keys[i] = ~rank;
  }
}

// Clears the counters that belong to a place. The thread that writes the place calls it.
__device__ void ClearCounters(const TilesParams& params, int64_t place) {
  if (place < kTileCounters) params.counters[place] = 0;
  constexpr int64_t kCounters = kTileWarps * kMaxSplitColumnTiles;
  static_assert(kCounters <= kMaskTileRows);
  if (place % kMaskTileRows < kCounters) {
    params.counters[kTileCounters + place / kMaskTileRows * kCounters + place % kMaskTileRows] = 0;
  }
}

// Returns the offsets, at most kWordBits, at which a row has a neighbour. `neighbours` is the row's entry of the first.
__device__ uint32_t OffsetsIn(const int32_t* neighbours, int64_t pitch, int32_t count) {
  uint32_t offsets = 0;
#pragma unroll 8
  for (int32_t k = 0; k < count; ++k) offsets |= static_cast<uint32_t>(neighbours[k * pitch] >= 0) << k;
  return offsets;
}

// Writes out_rows, in_rows and masks of all tiles. A thread writes one place at a time, and a block kTilesABlock tiles
// of one rulebook.
__global__ void __launch_bounds__(kFillThreads)
    FillTilesKernel(const __grid_constant__ TilesBatch batch, const ClassOrders* orders, const uint32_t* sorted_keys,
                    const int32_t* sorted_rows) {
  WaitForEarlierKernels();
  __shared__ int64_t num_rows[kWarpThreads];
  __shared__ uint32_t words[kTilesABlock][kMaskWarps];
  const BatchTiles<kMaxRulebooksASort> blocks(batch.num_rulebooks, [&](int i) {
    const TilesParams& params = batch.rulebooks[i];
    return NumTilePlaces(NumRows(params.out_capacity, params.num_out)) / kFillThreads;
  });
  if (threadIdx.x < kWarpThreads) {
    const auto entry = static_cast<int>(threadIdx.x);
    const TilesParams& params = batch.rulebooks[min(entry, batch.num_rulebooks - 1)];
    num_rows[entry] = entry < batch.num_rulebooks ? NumRows(params.out_capacity, params.num_out) : 0;
  }
  __syncthreads();
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int in_block = thread / static_cast<int>(kMaskTileRows);
  const int warp = thread / kWarpThreads % kMaskWarps;
  const int lane = thread % kWarpThreads;
  int entry = 0;
  for (int64_t i = blockIdx.x; i < blocks.size(); i += gridDim.x) {
    entry = blocks.Entry(i, entry);
    const TilesParams& params = batch.rulebooks[entry];
    const int64_t place = blocks.Within(entry, i) * kFillThreads + thread;
    const int64_t tile = place / kMaskTileRows;
    const int32_t row = place < num_rows[entry] ? sorted_rows[batch.key_begin[entry] + place] : -1;
    const bool has_list = params.row_inputs != nullptr;
    const bool is_known = params.row_masks != nullptr || params.num_offsets <= kSortBits;
    uint32_t there = 0;  // the row's offsets of the current word, which begins at `first` below
    if (is_known && row >= 0) {
      there = params.row_masks != nullptr
                  ? params.row_masks[row]
                  : OffsetsOfKey(params, orders[entry], sorted_keys[batch.key_begin[entry] + place]);
    }
    const int32_t* const list = params.row_inputs + row * params.row_inputs_pitch;
    params.out_rows[place] = row;
    ClearCounters(params, place);
    int32_t* const in_rows = params.in_rows + tile * params.num_offsets * kMaskTileRows + place % kMaskTileRows;
    const int32_t mask_words = MaskWords(params.num_offsets);
    for (int32_t word = 0; word < mask_words; ++word) {
      const int32_t first = word * kWordBits;
      const int32_t count = min(kWordBits, params.num_offsets - first);
      const int32_t* const neighbours = params.neighbours + first * params.pitch + row;
      if (!is_known) there = row < 0 ? 0 : OffsetsIn(neighbours, params.pitch, count);
      const uint32_t in_warp = WarpOr(there);
      if (lane == 0) words[in_block][warp] = in_warp;
      __syncthreads();
      uint32_t mask = 0;
#pragma unroll
      for (int w = 0; w < kMaskWarps; ++w) mask |= words[in_block][w];
      if (warp == 0 && lane == 0) params.masks[tile * mask_words + word] = mask;
      for (uint32_t left = mask; left != 0;) {
        int bits[kBitsAtOnce];  // -1: none is left
        int32_t in_row[kBitsAtOnce];
#pragma unroll
        for (int k = 0; k < kBitsAtOnce; ++k, left &= left - 1) {
          bits[k] = __ffs(static_cast<int>(left)) - 1;
          in_row[k] = -1;
          if (left == 0 || (there >> bits[k] & 1) == 0) continue;
          in_row[k] = has_list ? list[__popc(there & ((1u << bits[k]) - 1))] : neighbours[bits[k] * params.pitch];
        }
#pragma unroll
        for (int k = 0; k < kBitsAtOnce; ++k) {
          if (bits[k] >= 0) in_rows[(first + bits[k]) * kMaskTileRows] = in_row[k];
        }
      }
      __syncthreads();
    }
  }
}

// Lists the tiles of one rulebook and one tile size by weight, with their masks. It is a counting sort. Tiles of equal
// weight have no defined order.
__global__ void __launch_bounds__(kWeights) SortTilesByWeightKernel(const __grid_constant__ TilesBatch batch) {
  WaitForEarlierKernels();
  using Scan = cub::BlockScan<int32_t, kWeights>;
  __shared__ typename Scan::TempStorage scan;
  __shared__ int32_t places[kWeights];
  const TilesParams& params = batch.rulebooks[blockIdx.x / kTileSizes];
  const int mask_tiles = 1 << (blockIdx.x % kTileSizes);
  const int64_t tile_rows = kMaskTileRows * mask_tiles;
  const auto num_tiles =
      static_cast<int32_t>((NumRows(params.out_capacity, params.num_out) + tile_rows - 1) / tile_rows);
  const int32_t mask_words = MaskWords(params.num_offsets);
  // The sort is ascending, so weight_of returns higher numbers for lighter tiles.
  const auto weight_of = [&](int32_t tile) {
    int32_t weight = 0;
    for (int32_t word = 0; word < mask_words; ++word) {
      uint32_t mask = 0;
      for (int i = 0; i < mask_tiles; ++i) mask |= params.masks[(int64_t{tile} * mask_tiles + i) * mask_words + word];
      weight += __popc(mask);
    }
    return kWeights - 1 - min(weight, kWeights - 1);
  };
  const auto thread = static_cast<int32_t>(threadIdx.x);
  places[thread] = 0;
  __syncthreads();
  for (int32_t tile = thread; tile < num_tiles; tile += kWeights) atomicAdd(&places[weight_of(tile)], 1);
  __syncthreads();
  int32_t before = 0;
  Scan(scan).ExclusiveSum(places[thread], before);
  places[thread] = before;
  __syncthreads();
  WeighedTile* const to = params.by_weight + TilesByWeightBegin(params.out_capacity, tile_rows);
  for (int32_t tile = thread; tile < num_tiles; tile += kWeights) {
    WeighedTile weighed{.tile = tile, .masks = {}};
    for (int i = 0; i < mask_tiles && mask_words == 1; ++i) {
      weighed.masks[i] = params.masks[int64_t{tile} * mask_tiles + i];
    }
    to[atomicAdd(&places[weight_of(tile)], 1)] = weighed;
  }
}

struct Workspace {
  Workspace(std::span<const TilesParams> params, void* base) {
    for (const TilesParams& rulebook : params) {
      parts[num_parts++] = {.num_pairs = rulebook.out_capacity, .num_bits = std::min(rulebook.num_offsets, kSortBits)};
      num_keys += rulebook.out_capacity;
    }
    WorkspaceCutter cutter(base);
    orders = cutter.Take<ClassOrders>(static_cast<int64_t>(params.size()));
    for (int i = 0; i < 2; ++i) {
      pairs.keys[i] = cutter.Take<uint32_t>(num_keys);
      pairs.values[i] = cutter.Take<int32_t>(num_keys);
    }
    sort_scratch = cutter.Take<char>(static_cast<int64_t>(SortPartsScratchBytes<uint32_t>(sorted_parts())));
    bytes = cutter.bytes();
  }

  std::span<const SortPart> sorted_parts() const { return {parts, num_parts}; }

  SortPart parts[kMaxRulebooksASort];  // one per rulebook: one key per row of capacity
  size_t num_parts = 0;
  int64_t num_keys = 0;
  ClassOrders* orders;          // one per rulebook
  PairBuffers<uint32_t> pairs;  // of a key and a row
  void* sort_scratch;
  size_t bytes;
};

cudaError_t MakeTilesOf(std::span<const TilesParams> params, void* memory, cudaStream_t stream) {
  Workspace workspace(params, memory);
  PairBuffers<uint32_t>& pairs = workspace.pairs;
  if (workspace.num_keys == 0) return cudaSuccess;
  TilesBatch batch{};
  int64_t num_blocks = 0;
  for (const TilesParams& rulebook : params) {
    if (rulebook.row_masks != nullptr && rulebook.num_offsets > kSortBits) return cudaErrorInvalidValue;
    const bool can_list = rulebook.row_masks != nullptr && rulebook.row_inputs_pitch > 0;
    if (rulebook.row_inputs != nullptr && !can_list && rulebook.out_capacity > 0) return cudaErrorInvalidValue;
    batch.rulebooks[batch.num_rulebooks] = rulebook;
    batch.key_begin[batch.num_rulebooks + 1] = batch.key_begin[batch.num_rulebooks] + rulebook.out_capacity;
    ++batch.num_rulebooks;
    num_blocks += NumTilePlaces(rulebook.out_capacity) / kFillThreads;
  }
  VOXSERVE_RETURN_IF_CUDA(LaunchEarly(OrderClassesKernel, static_cast<unsigned>(batch.num_rulebooks),
                                      kOrderWarps * kWarpThreads, 0, stream, batch, workspace.orders));
  VOXSERVE_RETURN_IF_CUDA(LaunchEarly(SortKeysKernel, std::min<unsigned>(kMaxBlocks, NumBlocks(workspace.num_keys)),
                                      kBlockThreads, 0, stream, batch, workspace.orders, pairs.current_keys(),
                                      pairs.current_values()));
  VOXSERVE_RETURN_IF_CUDA(SortParts(pairs, workspace.sorted_parts(), workspace.sort_scratch, stream));
  const int64_t resident_blocks = int64_t{kFillBlocksAnSm} * NumSms();
  VOXSERVE_RETURN_IF_CUDA(LaunchEarly(FillTilesKernel, static_cast<unsigned>(std::min(resident_blocks, num_blocks)),
                                      kFillThreads, 0, stream, batch, workspace.orders, pairs.current_keys(),
                                      pairs.current_values()));
  VOXSERVE_RETURN_IF_CUDA(LaunchEarly(SortTilesByWeightKernel, static_cast<unsigned>(batch.num_rulebooks * kTileSizes),
                                      kWeights, 0, stream, batch));
  // An implicit GEMM may start before the kernel that precedes it in the stream has ended, but not before that kernel's
  // predecessors have. With Clear between them, it starts only after all other kernels of this function have ended.
  return Clear(batch.rulebooks[0].counters, kTileCounters * sizeof(int32_t), stream);
}

}  // namespace

size_t TilesWorkspaceBytes(std::span<const TilesParams> params) {
  size_t bytes = 0;
  for (size_t first = 0; first < params.size(); first += kMaxRulebooksASort) {
    const size_t count = std::min<size_t>(kMaxRulebooksASort, params.size() - first);
    bytes = std::max(bytes, Workspace(params.subspan(first, count), nullptr).bytes);
  }
  return bytes;
}

cudaError_t MakeTiles(std::span<const TilesParams> params, void* workspace, cudaStream_t stream) {
  const NvtxRange range("MakeTiles");
  for (size_t first = 0; first < params.size(); first += kMaxRulebooksASort) {
    const size_t count = std::min<size_t>(kMaxRulebooksASort, params.size() - first);
    VOXSERVE_RETURN_IF_CUDA(MakeTilesOf(params.subspan(first, count), workspace, stream));
  }
  return cudaSuccess;
}

}  // namespace voxserve::kernels::cuda
