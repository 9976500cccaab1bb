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
// A launch takes longer if its parameters are larger than 4 KB.
constexpr int kMaxRulebooksASort = 24;
static_assert(kMaxRulebooksASort <= kMaxSortParts);
constexpr int kFillThreads = static_cast<int>(kMaxBlockTileRows);
// As many blocks of FillTilesKernel as an SM of an H100 holds: more would wait.
constexpr int FillBlocksAnSm(bool all_have_masks) { return all_have_masks ? 12 : 8; }
constexpr int kTilesABlock = kFillThreads / static_cast<int>(kMaskTileRows);
constexpr int kMaskWarps = static_cast<int>(kMaskTileRows) / kWarpThreads;
constexpr int kTileSizes = 2;   // 64 and 128 rows
constexpr int kWeights = 1024;  // a tile's weight is its number of offsets; the sort treats more than 1023 as 1023
constexpr int kBitsAtOnce = 8;  // offsets whose input rows a thread reads before it writes them

struct TilesBatch {
  int32_t num_rulebooks;
  int64_t key_begin[kMaxRulebooksASort + 1];        // each rulebook's first key (NumKeys)
  int32_t first_key_block[kMaxRulebooksASort + 1];  // each rulebook's first block of SortKeysKernel
  TilesParams rulebooks[kMaxRulebooksASort];
};
static_assert(sizeof(TilesBatch) <= 4096 - 3 * sizeof(void*));

// Returns the number of keys that a rulebook's rows need: one per row of capacity, if they are sorted.
int64_t NumKeys(const TilesParams& params) { return params.keeps_order ? 0 : params.out_capacity; }

// How the masks of one rulebook are ranked (tiles.h). A bit is that of a row's mask, as MaskOf returns it.
struct ClassOrders {
  uint8_t place_of[kSortBits][kWarpThreads];  // [class, bit] the place of the bit in the order of the class
  uint8_t class_of[kWarpThreads];             // [bit] the class whose highest bit it is
  // The bits in ascending order of their classes, cut where a bit is below the one before it. Within a run, the highest
  // bit has the highest class.
  uint32_t runs[kSortBits];
  int32_t num_runs;
};

// Returns the highest bit that is set.
__device__ int HighestBit(uint32_t bits) { return kWordBits - 1 - __clz(static_cast<int>(bits)); }

// Returns the value whose Gray code is `code`.
__device__ uint32_t GrayRank(uint32_t code) {
  for (int shift = 1; shift < kWordBits; shift *= 2) code ^= code >> shift;
  return code;
}

// Returns the mask by which a row is sorted. Bit k is offset k, but in kernels of more than kSortBits offsets,
// neighbouring offsets share a bit.
__device__ uint32_t MaskOf(const TilesParams& params, int64_t row) {
  if (params.row_masks != nullptr) return params.row_masks[row];
  const int32_t* const neighbours = params.neighbours + row;
  const bool shares_bits = params.num_offsets > kSortBits;
  uint32_t mask = 0;
#pragma unroll 9
  for (int32_t k = 0; k < params.num_offsets; ++k) {
    const int32_t bit = shares_bits ? k * kSortBits / params.num_offsets : k;
    mask |= static_cast<uint32_t>(neighbours[k * params.pitch] >= 0) << bit;
  }
  return mask;
}

// Calls visit(bit) for each set bit, the lowest first.
template <typename Visit>
__device__ void ForEachBit(uint32_t bits, const Visit& visit) {
#pragma unroll 4
  for (; bits != 0; bits &= bits - 1) visit(__ffs(static_cast<int>(bits)) - 1);
}

// of[i]: the places in a class that its masks without the highest i bits have.
struct Shares {
  uint32_t of[kSortBits + 1];
};
constexpr Shares MakeShares() {
  Shares shares{{kPlaceOne}};
  for (int i = 0; i < kSortBits; ++i) shares.of[i + 1] = ShareWithoutBit(shares.of[i]);
  return shares;
}
__constant__ const Shares kShares = MakeShares();
static_assert(PlaceWithBit(kPlaceOne, MakeShares().of[kSortBits - 1] / 2) < kPlaceOne, "a place stays in its class");

// Returns the rank of a row with this mask (tiles.h). shares: those of kShares.
__device__ uint32_t RankOf(const ClassOrders& orders, uint32_t mask, int32_t num_offsets, const uint32_t* shares) {
  if (num_offsets <= kPlainRankBits) return GrayRank(mask);
  if (mask == 0) return 0;
  int run = orders.num_runs - 1;
  while (run > 0 && (mask & orders.runs[run]) == 0) --run;
  const int highest = HighestBit(mask & orders.runs[run]);
  const int row_class = orders.class_of[highest];
  uint32_t code = 0;
  ForEachBit(mask ^ 1u << highest, [&](int bit) { code |= 1u << orders.place_of[row_class][bit]; });
  if (num_offsets <= kRankBits) return 1u << row_class | GrayRank(code);
  uint32_t place = shares[row_class] / 2;
  ForEachBit(code, [&](int at) { place = PlaceWithBit(shares[row_class - 1 - at], place); });
  return static_cast<uint32_t>(row_class + 1) << kPlaceBits | place / (kPlaceOne >> kPlaceBits);
}

// Transposes the bits of a warp: afterwards bit i of lane b is what bit b of lane i was.
__device__ uint32_t Transpose(uint32_t bits) {
  const auto lane = threadIdx.x % kWarpThreads;
  uint32_t low = 0x0000ffff;  // the lower half of each group of 2 * distance bits
#pragma unroll
  for (unsigned distance = kWarpThreads / 2; distance > 0; distance /= 2, low ^= low << distance) {
    const uint32_t other = __shfl_xor_sync(~0u, bits, distance);
    bits =
        (lane & distance) == 0 ? (bits & low) | (other & low) << distance : (bits & ~low) | (other & ~low) >> distance;
  }
  return bits;
}

constexpr int kOrderThreads = static_cast<int>(kSampledRows);
constexpr int kOrderWarps = kOrderThreads / kWarpThreads;

// Counts the bits of each class in a sample of a rulebook's rows, and orders the bits by these counts. One block serves
// one rulebook. At first a lane has the bit whose class is the lane's number.
__global__ void __launch_bounds__(kOrderThreads)
    OrderClassesKernel(const __grid_constant__ TilesBatch batch, ClassOrders* orders) {
  // The classes are counted in pairs. The two classes of a pair have kSortBits - 1 lower bits together. The middle
  // class is paired with itself.
  constexpr int kPairs = (kSortBits + 1) / 2;
  static_assert(kSortBits % 2 == 1 && kPairs < kOrderWarps && kSortBits < kWarpThreads);
  __shared__ uint32_t rows_with[kOrderWarps][kWarpThreads];      // the rows of a warp that have a class's bit
  __shared__ uint32_t rows_of_class[kOrderWarps][kWarpThreads];  // those that have none of a higher class
  const TilesParams& params = batch.rulebooks[blockIdx.x];
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads, lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int num_bits = min(params.num_offsets, kSortBits);
  const bool is_ordered = params.num_offsets <= kSortBits;  // otherwise classes have the numbers of their bits
  const int bit = is_ordered && lane < num_bits ? params.order[lane] : lane;
  WaitForEarlierKernels();
  if (params.num_offsets <= kPlainRankBits || params.keeps_order) return;
  ClassOrders& to = orders[blockIdx.x];
  const int64_t num_rows = NumRows(params.out_capacity, params.num_out);
  const int64_t num_sampled = min(num_rows, NumSampledRows(params.num_offsets));
  uint32_t mask = 0;
  if (threadIdx.x < num_sampled) mask = MaskOf(params, threadIdx.x * num_rows / num_sampled);
  const uint32_t with_bit = __shfl_sync(~0u, Transpose(mask), bit);
  const uint32_t from_class = OrToEnd(with_bit, lane, kWarpThreads);  // with a bit of this class or of a higher one
  const uint32_t above = __shfl_down_sync(~0u, from_class, 1);
  rows_with[warp][lane] = with_bit;
  rows_of_class[warp][lane] = lane == kWarpThreads - 1 ? with_bit : with_bit & ~above;
  __syncthreads();
  if (warp < kPairs) {
    // Lanes below `upper` have the bits below class `upper`, those from it on the bits below the other class.
    const int upper = kSortBits - 1 - warp;
    const int first = lane < upper ? 0 : upper, row_class = lane < upper ? upper : warp;
    const int lower = lane - first;  // the class of the lane's bit
    int32_t count = 0;
#pragma unroll 8
    for (int w = 0; w < kOrderWarps; ++w) count += __popc(rows_with[w][lower] & rows_of_class[w][row_class]);
    // Equally common bits are ordered by class, the lower first.
    const int32_t rarity = lower - count * kWarpThreads;
    int place = 0;
#pragma unroll 4
    for (int other = 0; other < upper; ++other) {
      const int32_t of_other = __shfl_sync(~0u, rarity, first + other);
      place += other < row_class && of_other < rarity;
    }
    const int lower_bit = __shfl_sync(~0u, bit, lower);
    if (lower < row_class && row_class < num_bits) to.place_of[row_class][lower_bit] = static_cast<uint8_t>(place);
  } else if (warp == kPairs) {
    const bool is_bit = lane < num_bits;
    if (is_bit) to.class_of[bit] = static_cast<uint8_t>(lane);
    const int before = __shfl_up_sync(~0u, bit, 1);
    const uint32_t starts = __ballot_sync(~0u, is_bit && (lane == 0 || bit < before));
    const int run = __popc(starts & (2u << lane) - 1) - 1;
    for (int i = 0; i < __popc(starts); ++i) {
      const uint32_t bits = WarpOr(is_bit && run == i ? 1u << bit : 0);
      if (lane == 0) to.runs[i] = bits;
    }
    if (lane == 0) to.num_runs = __popc(starts);
  }
}

// Computes the sort keys of all rows. A higher rank gives a lower key, so that the rows with the highest ranks come
// first. The places after the last row have the key of rank 0. They stay after rows of this rank, since the sort is
// stable. A block serves one rulebook. A rulebook whose rows keep their order has no blocks.
__global__ void __launch_bounds__(kBlockThreads)
    SortKeysKernel(const __grid_constant__ TilesBatch batch, const ClassOrders* orders, uint32_t* keys, int32_t* rows) {
  __shared__ uint32_t shares[kSortBits + 1];
  __shared__ ClassOrders shared_orders;
  static_assert(sizeof(ClassOrders) % sizeof(uint32_t) == 0 && sizeof(ClassOrders) / sizeof(uint32_t) <= kBlockThreads);
  if (threadIdx.x <= kSortBits) shares[threadIdx.x] = kShares.of[threadIdx.x];
  int entry = 0;
  while (batch.first_key_block[entry + 1] <= static_cast<int>(blockIdx.x)) ++entry;
  const TilesParams& params = batch.rulebooks[entry];
  const int64_t row =
      int64_t{static_cast<int>(blockIdx.x) - batch.first_key_block[entry]} * kBlockThreads + threadIdx.x;
  const bool is_ranked = row < NumRows(params.out_capacity, params.num_out);
  const uint32_t mask = is_ranked ? MaskOf(params, row) : 0;  // rows of rank 0 keep their order
  WaitForEarlierKernels();                                    // for OrderClassesKernel; the masks are older
  const bool has_classes = params.num_offsets > kPlainRankBits;
  if (has_classes && threadIdx.x < sizeof(ClassOrders) / sizeof(uint32_t)) {
    reinterpret_cast<uint32_t*>(&shared_orders)[threadIdx.x] =
        reinterpret_cast<const uint32_t*>(orders + entry)[threadIdx.x];
  }
  __syncthreads();
  if (row >= params.out_capacity) return;
  const int64_t at = batch.key_begin[entry] + row;
  keys[at] = ~RankOf(shared_orders, mask, params.num_offsets, shares);
  rows[at] = static_cast<int32_t>(row);
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

// Writes in_rows and masks of a tile from its rows' neighbours. The tile's warps take turns at the words of the mask,
// so that no warp waits for another one. rows: the output rows in the lane's places, which are a warp apart; -1: none.
__device__ void FillFromNeighbours(const TilesParams& params, int64_t tile, int warp, const int32_t (&rows)[kMaskWarps],
                                   int lane) {
  const int32_t mask_words = MaskWords(params.num_offsets);
  for (int32_t word = warp; word < mask_words; word += kMaskWarps) {
    const int32_t first = word * kWordBits;
    const int32_t count = min(kWordBits, params.num_offsets - first);
    const int32_t* const neighbours = params.neighbours + first * params.pitch;
    int32_t* const in_rows = params.in_rows + (tile * params.num_offsets + first) * kMaskTileRows + lane;
    uint32_t mask = 0;
    for (int32_t k = 0; k < count; k += kBitsAtOnce) {
      int32_t in_row[kBitsAtOnce][kMaskWarps];
      uint32_t there = 0;
#pragma unroll
      for (int i = 0; i < kBitsAtOnce; ++i) {
#pragma unroll
        for (int w = 0; w < kMaskWarps; ++w) {
          in_row[i][w] = k + i < count && rows[w] >= 0 ? neighbours[(k + i) * params.pitch + rows[w]] : -1;
        }
      }
#pragma unroll
      for (int i = 0; i < kBitsAtOnce; ++i) {
#pragma unroll
        for (int w = 0; w < kMaskWarps; ++w) there |= static_cast<uint32_t>(in_row[i][w] >= 0) << i;
      }
      there = WarpOr(there);
#pragma unroll
      for (int i = 0; i < kBitsAtOnce; ++i) {
        if ((there >> i & 1) == 0) continue;
#pragma unroll
        for (int w = 0; w < kMaskWarps; ++w) in_rows[(k + i) * kMaskTileRows + w * kWarpThreads] = in_row[i][w];
      }
      mask |= there << k;
    }
    if (lane == 0) params.masks[tile * mask_words + word] = mask;
  }
}

// Writes the input rows of a place in the offsets of its tile's mask. `there`: the offsets of its row; `in_rows`: the
// place's entry of the first offset.
__device__ void FillMasked(const TilesParams& params, int32_t row, uint32_t there, uint32_t mask, int32_t* in_rows) {
  const bool has_list = params.row_inputs != nullptr;
  const int32_t* const of_row = has_list ? params.row_inputs + row * params.row_inputs_pitch : params.neighbours + row;
  while (mask != 0) {
    int bits[kBitsAtOnce];  // -1: none is left
    int32_t in_row[kBitsAtOnce];
#pragma unroll
    for (int k = 0; k < kBitsAtOnce; ++k, mask &= mask - 1) {
      bits[k] = __ffs(static_cast<int>(mask)) - 1;
      in_row[k] = -1;
      if (mask == 0 || (there >> bits[k] & 1) == 0) continue;
      in_row[k] = of_row[has_list ? __popc(there & ((1u << bits[k]) - 1)) : bits[k] * params.pitch];
    }
#pragma unroll
    for (int k = 0; k < kBitsAtOnce; ++k) {
      if (bits[k] >= 0) in_rows[bits[k] * kMaskTileRows] = in_row[k];
    }
  }
}

// Writes out_rows, in_rows and masks of all tiles. A block serves kTilesABlock tiles of one rulebook at a time, and a
// thread one of their places. If there are no row_masks, a warp serves all places of its tile, in some of the offsets.
// kAllHaveMasks: every rulebook has row_masks; the kernel then needs fewer registers.
template <bool kAllHaveMasks>
__global__ void __launch_bounds__(kFillThreads, BlocksAnSm(FillBlocksAnSm(kAllHaveMasks)))
    FillTilesKernel(const __grid_constant__ TilesBatch batch, const int32_t* sorted_rows) {
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
  WaitForEarlierKernels();  // for the sorted rows; their numbers are older
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
    const int32_t* const sorted = sorted_rows + batch.key_begin[entry];
    const auto row_at = [&](int64_t at) {
      if (at >= num_rows[entry]) return -1;
      return params.keeps_order ? static_cast<int32_t>(at) : sorted[at];
    };
    const int32_t row = row_at(place);
    params.out_rows[place] = row;
    ClearCounters(params, place);
    if constexpr (!kAllHaveMasks) {
      if (params.row_masks == nullptr) {
        int32_t rows[kMaskWarps];
#pragma unroll
        for (int w = 0; w < kMaskWarps; ++w) rows[w] = row_at(tile * kMaskTileRows + w * kWarpThreads + lane);
        FillFromNeighbours(params, tile, warp, rows, lane);
        continue;
      }
    }
    // Kernels whose rows have masks have one word of offsets, or no offsets.
    const uint32_t there = row >= 0 ? params.row_masks[row] : 0;
    const uint32_t in_warp = WarpOr(there);
    if (lane == 0) words[in_block][warp] = in_warp;
    __syncthreads();
    uint32_t mask = 0;
#pragma unroll
    for (int w = 0; w < kMaskWarps; ++w) mask |= words[in_block][w];
    if (warp == 0 && lane == 0 && params.num_offsets > 0) params.masks[tile] = mask;
    FillMasked(params, row, there, mask,
               params.in_rows + tile * params.num_offsets * kMaskTileRows + place % kMaskTileRows);
    __syncthreads();
  }
}

// Lists the tiles of one rulebook and one tile size by weight, with their masks. It is a counting sort. Tiles of equal
// weight have no defined order.
__global__ void __launch_bounds__(kWeights) SortTilesByWeightKernel(const __grid_constant__ TilesBatch batch) {
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
  WaitForEarlierKernels();  // for the tiles' masks
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
      const int64_t of_rulebook = NumKeys(rulebook);
      parts[num_parts++] = {.num_pairs = of_rulebook,
                            .num_bits = of_rulebook == 0 ? 0 : NumKeyBits(rulebook.num_offsets)};
      num_keys += of_rulebook;
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

  SortPart parts[kMaxRulebooksASort];  // one per rulebook
  size_t num_parts = 0;
  int64_t num_keys = 0;
  ClassOrders* orders;          // one per rulebook
  PairBuffers<uint32_t> pairs;  // of a key and a row
  void* sort_scratch;
  size_t bytes;
};

// Returns true if the order has each of the offsets once, or is not read.
bool IsOrder(const TilesParams& params) {
  if (params.keeps_order || params.num_offsets <= kPlainRankBits || params.num_offsets > kSortBits) return true;
  uint32_t offsets = 0;
  for (int32_t bit = 0; bit < params.num_offsets; ++bit) {
    const int8_t offset = params.order[static_cast<size_t>(bit)];
    if (offset < 0 || offset >= params.num_offsets) return false;
    offsets |= 1u << offset;
  }
  return offsets == (1u << params.num_offsets) - 1;
}

cudaError_t MakeTilesOf(std::span<const TilesParams> params, void* memory, cudaStream_t stream) {
  Workspace workspace(params, memory);
  PairBuffers<uint32_t>& pairs = workspace.pairs;
  TilesBatch batch{};
  int64_t num_blocks = 0;
  for (const TilesParams& rulebook : params) {
    if (rulebook.row_masks != nullptr && rulebook.num_offsets > kSortBits) return cudaErrorInvalidValue;
    if (rulebook.out_capacity > 0 && !IsOrder(rulebook)) return cudaErrorInvalidValue;
    const bool can_list = rulebook.row_masks != nullptr && rulebook.row_inputs_pitch > 0;
    if (rulebook.row_inputs != nullptr && !can_list && rulebook.out_capacity > 0) return cudaErrorInvalidValue;
    batch.rulebooks[batch.num_rulebooks] = rulebook;
    const int64_t num_keys = NumKeys(rulebook);
    const int32_t key_blocks = num_keys == 0 ? 0 : static_cast<int32_t>(NumBlocks(num_keys));
    batch.key_begin[batch.num_rulebooks + 1] = batch.key_begin[batch.num_rulebooks] + num_keys;
    batch.first_key_block[batch.num_rulebooks + 1] = batch.first_key_block[batch.num_rulebooks] + key_blocks;
    ++batch.num_rulebooks;
    num_blocks += NumTilePlaces(rulebook.out_capacity) / kFillThreads;
  }
  if (num_blocks == 0) return cudaSuccess;
  // This kernel is launched without keys too: FillTilesKernel reads the numbers of rows before it waits, so the kernel
  // that wrote them must not be the one just before it.
  VOXSERVE_RETURN_IF_CUDA(LaunchEarly(OrderClassesKernel, static_cast<unsigned>(batch.num_rulebooks), kOrderThreads, 0,
                                      stream, batch, workspace.orders));
  if (workspace.num_keys > 0) {
    const auto key_blocks = static_cast<unsigned>(batch.first_key_block[batch.num_rulebooks]);
    VOXSERVE_RETURN_IF_CUDA(LaunchEarly(SortKeysKernel, key_blocks, kBlockThreads, 0, stream, batch, workspace.orders,
                                        pairs.current_keys(), pairs.current_values()));
    VOXSERVE_RETURN_IF_CUDA(SortParts(pairs, workspace.sorted_parts(), workspace.sort_scratch, stream));
  }
  const bool all_have_masks =
      std::ranges::all_of(params, [](const TilesParams& rulebook) { return rulebook.row_masks != nullptr; });
  const int64_t resident_blocks = int64_t{FillBlocksAnSm(all_have_masks)} * NumSms();
  VOXSERVE_RETURN_IF_CUDA(LaunchEarly(all_have_masks ? FillTilesKernel<true> : FillTilesKernel<false>,
                                      static_cast<unsigned>(std::min(resident_blocks, num_blocks)), kFillThreads, 0,
                                      stream, batch, pairs.current_values()));
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
