#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <limits>

#include "kernels/core/clear.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/radix_sort.h"

// A sort by passes uses classes of CUB's own namespaces, whose arguments may change with its version. Before this line
// is changed, compare the kernels below with those of CUB's radix_sort.cuh, and SortTile and CountsCallback
// with CUB's agent/agent_radix_sort_onesweep.cuh. With other versions, cub::DeviceRadixSort sorts everything.
#define VOXSERVE_SORTS_BY_PASSES (CUB_MAJOR_VERSION == 3 && CUB_MINOR_VERSION == 0)

namespace voxserve::kernels::cuda {
namespace {

int64_t NumPairs(std::span<const SortPart> parts) {
  int64_t num_pairs = 0;
  for (const SortPart& part : parts) num_pairs += part.num_pairs;
  return num_pairs;
}

// One part is sorted within the two pairs of buffers, and may end in either. Several parts must end in the same one, so
// each is sorted from one to the other, for which CUB needs a third in its scratch. With a null scratch, bytes is set
// and nothing else happens.
template <typename Key>
cudaError_t SortOneByCub(PairBuffers<Key>& buffers, const SortPart& part, void* scratch, size_t& bytes,
                         cudaStream_t stream) {
  cub::DoubleBuffer<Key> keys(buffers.current_keys(), buffers.keys[buffers.current ^ 1]);
  cub::DoubleBuffer<int32_t> values(buffers.current_values(), buffers.values[buffers.current ^ 1]);
  VOXSERVE_RETURN_IF_CUDA(cub::DeviceRadixSort::SortPairs(scratch, bytes, keys, values,
                                                          static_cast<int>(part.num_pairs), 0, part.num_bits, stream));
  if (scratch != nullptr) buffers.current ^= keys.selector;
  return cudaSuccess;
}

template <typename Key>
cudaError_t SortAcrossByCub(const PairBuffers<Key>& buffers, int64_t begin, const SortPart& part, void* scratch,
                            size_t& bytes, cudaStream_t stream) {
  const int to = buffers.current ^ 1;
  const Key* const keys = buffers.current_keys() + begin;
  const int32_t* const values = buffers.current_values() + begin;
  return cub::DeviceRadixSort::SortPairs(scratch, bytes, keys, buffers.keys[to] + begin, values,
                                         buffers.values[to] + begin, static_cast<int>(part.num_pairs), 0, part.num_bits,
                                         stream);
}

template <typename Key>
size_t CubScratchBytes(std::span<const SortPart> parts) {
  PairBuffers<Key> no_buffers;
  size_t most_bytes = 0;
  for (const SortPart& part : parts) {
    size_t bytes = 0;
    // If this fails, the sort returns the same error when it runs.
    static_cast<void>(parts.size() == 1 ? SortOneByCub(no_buffers, part, nullptr, bytes, nullptr)
                                        : SortAcrossByCub(no_buffers, 0, part, nullptr, bytes, nullptr));
    most_bytes = std::max(most_bytes, bytes);
  }
  return most_bytes;
}

template <typename Key>
cudaError_t SortByCub(PairBuffers<Key>& buffers, std::span<const SortPart> parts, void* scratch, cudaStream_t stream) {
  size_t bytes = CubScratchBytes<Key>(parts);
  if (parts.size() == 1) return SortOneByCub(buffers, parts[0], scratch, bytes, stream);
  int64_t begin = 0;
  for (const SortPart& part : parts) {
    VOXSERVE_RETURN_IF_CUDA(SortAcrossByCub(buffers, begin, part, scratch, bytes, stream));
    begin += part.num_pairs;
  }
  buffers.current ^= 1;
  return cudaSuccess;
}

#if VOXSERVE_SORTS_BY_PASSES
constexpr int kDigitBits = 9;
constexpr int kDigits = 1 << kDigitBits;
// Longer arrays are sorted by cub::DeviceRadixSort, which needs less scratch. The rows that a MinkUNet sorts for 29
// scans stay below.
constexpr int64_t kMostPairs = int64_t{1} << 24;

// The sizes of a block, good ones both for one scan and for four: they were measured with 112,000 to 448,000 keys of 64
// bits and with 500,000 to 2 million of 32 bits in 13 parts (tests/bench/results/what-did-not-help.md has other sizes).
template <typename Key>
struct PassShape {
  static constexpr int kThreads = kDigits;
  static constexpr int kItems = sizeof(Key) == sizeof(uint64_t) ? 4 : 8;  // a thread
  static constexpr int kTilePairs = kThreads * kItems;
};

constexpr int kHistogramThreads = 256;
constexpr int kHistogramPairs = 2048;  // that a block counts at a time

int NumPasses(int num_bits) { return (num_bits + kDigitBits - 1) / kDigitBits; }

// How each part takes part in the passes of a sort. All parts end in the same buffers: a part with fewer passes than
// others joins for the last ones, and where the difference is odd, it has one pass more, over a digit of no bits.
struct PartPlan {
  int begin;  // its first pair
  int num_pairs;
  int num_bits;
  int num_passes;
  int first_tile;  // of all parts' tiles
  int first_pass;  // of all parts' passes
};

struct SortPlan {
  // tile_pairs: the pairs of a tile.
  SortPlan(std::span<const SortPart> parts, int tile_pairs) {
    for (const SortPart& part : parts) num_passes = std::max(num_passes, NumPasses(part.num_bits));
    int begin = 0;
    for (const SortPart& part : parts) {
      const auto num_pairs = static_cast<int>(part.num_pairs);
      const int needed = NumPasses(part.num_bits), passes = needed + (num_passes - needed) % 2;
      if (num_pairs > 0 && passes > 0) {
        plans[num_parts++] = {begin, num_pairs, part.num_bits, passes, num_tiles, num_part_passes};
        num_tiles += (num_pairs + tile_pairs - 1) / tile_pairs;
        num_part_passes += passes;
      }
      begin += num_pairs;
    }
  }

  int num_parts = 0;  // that have passes
  int num_passes = 0;
  int num_tiles = 0;        // of all parts
  int num_part_passes = 0;  // of all parts, each of which has counts of its own
  PartPlan plans[kMaxSortParts];
};

// The memory of a sort, all of which is cleared before it.
struct Workspace {
  Workspace(const SortPlan& plan, void* scratch) {
    WorkspaceCutter cutter(scratch);
    counts = cutter.Take<int32_t>(int64_t{plan.num_part_passes} * kDigits);
    look_back = cutter.Take<int32_t>(int64_t{plan.num_passes} * plan.num_tiles * kDigits);
    num_taken = cutter.Take<int32_t>(plan.num_part_passes);
    bytes = cutter.bytes();
  }

  int32_t* counts;     // [passes of all parts, digits]
  int32_t* look_back;  // [passes, tiles, digits]
  int32_t* num_taken;  // [passes of all parts] the number of tiles that blocks have taken
  size_t bytes;
};

// Counts the digits of all passes of the parts. blockIdx.y is the part.
template <typename Key>
__global__ void __launch_bounds__(kHistogramThreads)
    CountDigitsKernel(const __grid_constant__ SortPlan plan, const Key* keys, int32_t* counts) {
  using Policy =
      cub::AgentRadixSortHistogramPolicy<kHistogramThreads, kHistogramPairs / kHistogramThreads, 1, Key, kDigitBits>;
  using Agent = cub::detail::radix_sort::AgentRadixSortHistogram<Policy, /*IS_DESCENDING=*/false, Key, int32_t>;
  __shared__ typename Agent::TempStorage storage;
  WaitForEarlierKernels();
  const PartPlan& part = plan.plans[blockIdx.y];
  if (blockIdx.x * kHistogramPairs >= part.num_pairs) return;
  Agent(storage, counts + part.first_pass * kDigits, keys + part.begin, part.num_pairs, 0, part.num_bits).Process();
}

// Turns each pass's counts into the places at which its digits begin. A block has the digits of a part's pass. The
// first SortDigitKernel starts beside it and beside CountDigitsKernel.
__global__ void __launch_bounds__(kDigits) SumDigitsKernel(int32_t* counts) {
  using Scan = cub::BlockScan<int32_t, kDigits>;
  __shared__ Scan::TempStorage storage;
  LetNextKernelStart();
  WaitForEarlierKernels();
  int32_t& count = counts[blockIdx.x * kDigits + threadIdx.x];
  int32_t begin = 0;
  Scan(storage).ExclusiveSum(count, begin);
  count = begin;
}

// The arrays of a pass, which moves pairs from one pair of buffers to the other.
template <typename Key>
struct Pass {
  const Key* keys;
  const int32_t* values;
  Key* keys_to;
  int32_t* values_to;
  const int32_t* digit_begins;  // [passes of all parts, digits]
  int32_t* look_back;           // [tiles, digits]
  int32_t* num_taken;           // [passes of all parts]
  int index;
};

// CUB's class for a tile of a pass. CUB divides the items by the key's size in words of 4 bytes.
template <typename Key>
using TilePolicy =
    cub::AgentRadixSortOnesweepPolicy<PassShape<Key>::kThreads, PassShape<Key>::kItems * sizeof(Key) / sizeof(uint32_t),
                                      Key, 1, cub::RADIX_RANK_MATCH_EARLY_COUNTS_ANY, cub::BLOCK_SCAN_RAKING_MEMOIZE,
                                      cub::RADIX_SORT_STORE_DIRECT, kDigitBits>;
template <typename Key>
using TileSort = cub::detail::radix_sort::AgentRadixSortOnesweep<TilePolicy<Key>, /*IS_DESCENDING=*/false, Key, int32_t,
                                                                 int32_t, int>;
static_assert(TileSort<uint32_t>::TILE_ITEMS == PassShape<uint32_t>::kTilePairs);
static_assert(TileSort<uint64_t>::TILE_ITEMS == PassShape<uint64_t>::kTilePairs);

// Adds the numbers of a digit's keys in the tiles before this one, as TileSort::LookbackGlobal does. That reads one
// tile after another; here a thread has the reads of several tiles under way. count: of the digit in this tile.
template <typename Tile>
__device__ void LookBack(Tile& tile, int32_t count) {
  constexpr int kTilesAtOnce = 8;
  constexpr auto kHasAllBefore = static_cast<int32_t>(Tile::LOOKBACK_GLOBAL_MASK);
  static_assert(Tile::BLOCK_THREADS == kDigits);
  const auto digit = static_cast<int>(threadIdx.x);
  volatile int32_t* const states = tile.d_lookback + digit;
  int32_t sum = count;
  bool has_all = false;
  for (int next = tile.block_idx - 1; next >= 0 && !has_all; next -= kTilesAtOnce) {
    int32_t state[kTilesAtOnce];
#pragma unroll
    for (int i = 0; i < kTilesAtOnce; ++i) state[i] = i <= next ? states[(next - i) * kDigits] : kHasAllBefore;
#pragma unroll
    for (int i = 0; i < kTilesAtOnce; ++i) {
      if (has_all) continue;
      while (state[i] == 0) state[i] = states[(next - i) * kDigits];  // until the tile has counted
      sum += state[i] & static_cast<int32_t>(Tile::LOOKBACK_VALUE_MASK);
      has_all = (state[i] & kHasAllBefore) != 0;
    }
  }
  states[tile.block_idx * kDigits] = sum | kHasAllBefore;
  tile.s.global_offsets[digit] += sum - count;
}

// Does what TileSort::CountsCallback does, but waits for digit_begins before it copies a tile whose keys have one
// digit.
template <typename Tile>
struct CountsCallback {
  Tile& tile;
  typename Tile::bit_ordered_type (&keys)[Tile::ITEMS_PER_THREAD];
  int (&counts)[1];  // of the thread's digit

  __device__ void operator()(const int (&counted)[1]) {
    counts[0] = counted[0];
    tile.LookbackPartial(counts);
    if (__syncthreads_or(counts[0] == Tile::TILE_ITEMS) == 0) return;
    WaitForEarlierKernels();
    tile.ShortCircuitCopy(keys, counts);  // ends the thread
  }
};

// Does what TileSort::Process does, but reads the values before it ranks the keys, waits for digit_begins as late as it
// can, and looks back faster.
template <typename Tile>
__device__ void SortTile(Tile& tile) {
  static_assert(Tile::BINS_PER_THREAD == 1);
  const int first = tile.block_idx * Tile::TILE_ITEMS;
  typename Tile::bit_ordered_type keys[Tile::ITEMS_PER_THREAD];
  int32_t values[Tile::ITEMS_PER_THREAD];
  int ranks[Tile::ITEMS_PER_THREAD], digits[Tile::ITEMS_PER_THREAD];
  int counts[1], lower_digits[1];  // keys of the thread's digit, and of the digits below it
  tile.LoadKeys(first, keys);
  tile.LoadValues(first, values);
  typename Tile::BlockRadixRankT(tile.s.rank_temp_storage)
      .RankKeys(keys, ranks, tile.digit_extractor(), lower_digits, CountsCallback<Tile>{tile, keys, counts});
  __syncthreads();
  tile.ScatterKeysShared(keys, ranks);
  WaitForEarlierKernels();
  tile.LoadBinsToOffsetsGlobal(lower_digits);
  LookBack(tile, counts[0]);
  __syncthreads();
  tile.ScatterKeysGlobal();
  tile.ComputeKeyDigits(digits);
  __syncthreads();
  tile.ScatterValuesShared(values, ranks);
  __syncthreads();
  tile.ScatterValuesGlobal(digits);
}

template <typename Key>
__global__ void __launch_bounds__(PassShape<Key>::kThreads)
    SortDigitKernel(const __grid_constant__ SortPlan plan, const Pass<Key> pass) {
  __shared__ typename TileSort<Key>::TempStorage storage;
  int entry = 0;
  while (entry + 1 < plan.num_parts && plan.plans[entry + 1].first_tile <= static_cast<int>(blockIdx.x)) ++entry;
  const PartPlan& part = plan.plans[entry];
  const int pass_of_part = pass.index - (plan.num_passes - part.num_passes);
  if (pass_of_part < 0) {
    WaitForEarlierKernels();
    return;
  }
  const int part_pass = part.first_pass + pass_of_part, first_bit = pass_of_part * kDigitBits;
  // Takes the next tile from a counter that only this pass uses. Clear has ended before the first pass starts.
  TileSort<Key> tile(storage, pass.look_back + part.first_tile * kDigits, pass.num_taken + part_pass,
                     /*d_bins_out=*/nullptr, pass.digit_begins + part_pass * kDigits, pass.keys_to + part.begin,
                     pass.keys + part.begin, pass.values_to + part.begin, pass.values + part.begin, part.num_pairs,
                     first_bit, max(0, min(kDigitBits, part.num_bits - first_bit)));
  if (pass.index > 0) WaitForEarlierKernels();  // the first pass reads what is older than digit_begins
  SortTile(tile);
}

template <typename Key>
cudaError_t SortByPasses(PairBuffers<Key>& buffers, std::span<const SortPart> parts, void* scratch,
                         cudaStream_t stream) {
  constexpr int kMaxHistogramBlocks = 264;  // two for each multiprocessor of an H200
  const SortPlan plan(parts, PassShape<Key>::kTilePairs);
  if (plan.num_parts == 0) return cudaSuccess;
  const Workspace workspace(plan, scratch);
  VOXSERVE_RETURN_IF_CUDA(Clear(scratch, workspace.bytes, stream));
  int most_pairs = 0;
  for (int i = 0; i < plan.num_parts; ++i) most_pairs = std::max(most_pairs, plan.plans[i].num_pairs);
  const int histogram_blocks = std::min(kMaxHistogramBlocks, (most_pairs + kHistogramPairs - 1) / kHistogramPairs);
  const dim3 histograms(static_cast<unsigned>(histogram_blocks), static_cast<unsigned>(plan.num_parts));
  VOXSERVE_RETURN_IF_CUDA(LaunchEarly(CountDigitsKernel<Key>, histograms, kHistogramThreads, 0, stream, plan,
                                      buffers.current_keys(), workspace.counts));
  VOXSERVE_RETURN_IF_CUDA(
      LaunchEarly(SumDigitsKernel, static_cast<unsigned>(plan.num_part_passes), kDigits, 0, stream, workspace.counts));
  for (int i = 0; i < plan.num_passes; ++i) {
    const int to = buffers.current ^ 1;
    const Pass<Key> pass{.keys = buffers.current_keys(),
                         .values = buffers.current_values(),
                         .keys_to = buffers.keys[to],
                         .values_to = buffers.values[to],
                         .digit_begins = workspace.counts,
                         .look_back = workspace.look_back + int64_t{i} * plan.num_tiles * kDigits,
                         .num_taken = workspace.num_taken,
                         .index = i};
    VOXSERVE_RETURN_IF_CUDA(LaunchEarly(SortDigitKernel<Key>, static_cast<unsigned>(plan.num_tiles),
                                        PassShape<Key>::kThreads, 0, stream, plan, pass));
    buffers.current = to;
  }
  return cudaSuccess;
}
#endif

}  // namespace

template <typename Key>
size_t SortPartsScratchBytes(std::span<const SortPart> parts) {
#if VOXSERVE_SORTS_BY_PASSES
  if (NumPairs(parts) <= kMostPairs) return Workspace(SortPlan(parts, PassShape<Key>::kTilePairs), nullptr).bytes;
#endif
  return CubScratchBytes<Key>(parts);
}

template <typename Key>
bool SortPartsSwapsBuffers(std::span<const SortPart> parts) {
#if VOXSERVE_SORTS_BY_PASSES
  const int64_t num_pairs = NumPairs(parts);
  if (num_pairs > 0 && num_pairs <= kMostPairs) return SortPlan(parts, PassShape<Key>::kTilePairs).num_passes % 2 == 1;
#endif
  return false;
}

template <typename Key>
cudaError_t SortParts(PairBuffers<Key>& buffers, std::span<const SortPart> parts, void* scratch, cudaStream_t stream) {
  if (parts.size() > kMaxSortParts) return cudaErrorInvalidValue;
  int most_bits = 0;
  for (const SortPart& part : parts) {
    if (part.num_pairs < 0 || part.num_bits < 0 || part.num_bits > std::numeric_limits<Key>::digits) {
      return cudaErrorInvalidValue;
    }
    most_bits = std::max(most_bits, part.num_bits);
  }
  const int64_t num_pairs = NumPairs(parts);
  if (num_pairs > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidValue;
  if (num_pairs == 0 || most_bits == 0) return cudaSuccess;
#if VOXSERVE_SORTS_BY_PASSES
  if (num_pairs <= kMostPairs) return SortByPasses(buffers, parts, scratch, stream);
#endif
  return SortByCub(buffers, parts, scratch, stream);
}

template <typename Key>
size_t SortPairsScratchBytes(int64_t num_pairs) {
  const auto bytes = [](int64_t pairs) {
    const SortPart part{.num_pairs = pairs, .num_bits = std::numeric_limits<Key>::digits};
    return SortPartsScratchBytes<Key>({&part, 1});
  };
#if VOXSERVE_SORTS_BY_PASSES
  // The scratch must also do for fewer pairs.
  if (num_pairs > kMostPairs) return std::max(bytes(num_pairs), bytes(kMostPairs));
#endif
  return bytes(num_pairs);
}

template <typename Key>
cudaError_t SortPairs(PairBuffers<Key>& buffers, int64_t num_pairs, int num_bits, void* scratch, cudaStream_t stream) {
  const SortPart part{.num_pairs = num_pairs, .num_bits = num_bits};
  return SortParts<Key>(buffers, {&part, 1}, scratch, stream);
}

template size_t SortPartsScratchBytes<uint32_t>(std::span<const SortPart>);
template size_t SortPartsScratchBytes<uint64_t>(std::span<const SortPart>);
template bool SortPartsSwapsBuffers<uint32_t>(std::span<const SortPart>);
template bool SortPartsSwapsBuffers<uint64_t>(std::span<const SortPart>);
template cudaError_t SortParts(PairBuffers<uint32_t>&, std::span<const SortPart>, void*, cudaStream_t);
template cudaError_t SortParts(PairBuffers<uint64_t>&, std::span<const SortPart>, void*, cudaStream_t);
template size_t SortPairsScratchBytes<uint32_t>(int64_t);
template size_t SortPairsScratchBytes<uint64_t>(int64_t);
template cudaError_t SortPairs(PairBuffers<uint32_t>&, int64_t, int, void*, cudaStream_t);
template cudaError_t SortPairs(PairBuffers<uint64_t>&, int64_t, int, void*, cudaStream_t);

}  // namespace voxserve::kernels::cuda
