#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <limits>

#include "kernels/core/clear.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/radix_sort.h"

// A sort by passes uses classes of CUB's own namespaces, whose arguments may change with its version. Before this line
// is changed, compare the kernels below with those of CUB's kernels/radix_sort.cuh. With other versions,
// cub::DeviceRadixSort sorts everything.
#define VOXSERVE_SORTS_BY_PASSES (CUB_MAJOR_VERSION == 3 && CUB_MINOR_VERSION == 0)

namespace voxserve::kernels::cuda {
namespace {

template <typename Key>
size_t CubScratchBytes(int64_t num_pairs) {
  cub::DoubleBuffer<Key> no_keys;
  cub::DoubleBuffer<int32_t> no_values;
  size_t bytes = 0;
  // If this fails, the sort returns the same error when it runs.
  static_cast<void>(cub::DeviceRadixSort::SortPairs(nullptr, bytes, no_keys, no_values, static_cast<int>(num_pairs)));
  return bytes;
}

template <typename Key>
cudaError_t SortByCub(PairBuffers<Key>& buffers, int64_t num_pairs, int num_bits, void* scratch, cudaStream_t stream) {
  cub::DoubleBuffer<Key> keys(buffers.keys[buffers.current], buffers.keys[buffers.current ^ 1]);
  cub::DoubleBuffer<int32_t> values(buffers.values[buffers.current], buffers.values[buffers.current ^ 1]);
  size_t bytes = CubScratchBytes<Key>(num_pairs);
  VOXSERVE_RETURN_IF_CUDA(
      cub::DeviceRadixSort::SortPairs(scratch, bytes, keys, values, static_cast<int>(num_pairs), 0, num_bits, stream));
  buffers.current ^= keys.selector;
  return cudaSuccess;
}

#if VOXSERVE_SORTS_BY_PASSES
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
// Longer arrays are sorted by cub::DeviceRadixSort, which cuts them into portions.
constexpr int64_t kMostPairs = int64_t{1} << 22;

// The sizes of a block. They were measured with 112,000 to 448,000 keys of 64 bits and with 200,000 to 1.6 million of
// 32 bits (tests/bench/results/2026-11-27-h200.md).
template <typename Key>
struct PassShape {
  static constexpr int kThreads = sizeof(Key) == sizeof(uint64_t) ? 384 : 512;
  static constexpr int kItems = sizeof(Key) == sizeof(uint64_t) ? 10 : 12;  // a thread
  static constexpr int kTilePairs = kThreads * kItems;
};

constexpr int kHistogramThreads = 256;

template <typename Key>
__global__ void __launch_bounds__(kHistogramThreads)
    CountDigitsKernel(const Key* keys, int num_pairs, int num_bits, int32_t* counts) {
  using Policy = cub::AgentRadixSortHistogramPolicy<kHistogramThreads, 8, 1, Key, kDigitBits>;
  using Agent = cub::detail::radix_sort::AgentRadixSortHistogram<Policy, /*IS_DESCENDING=*/false, Key, int32_t>;
  __shared__ typename Agent::TempStorage storage;
  WaitForEarlierKernels();
  Agent(storage, counts, keys, num_pairs, 0, num_bits).Process();
}

// Turns each pass's counts into the places at which its digits begin. A block has the digits of a pass.
__global__ void __launch_bounds__(kDigits) SumDigitsKernel(int32_t* counts) {
  using Scan = cub::BlockScan<int32_t, kDigits>;
  __shared__ Scan::TempStorage storage;
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
  int num_pairs;
  int first_bit;
  int num_bits;
  const int32_t* digit_begins;  // [digits]
  int32_t* look_back;           // [tiles, digits]
  int32_t* num_taken;           // the number of tiles that blocks have taken
};

template <typename Key>
__global__ void __launch_bounds__(PassShape<Key>::kThreads) SortDigitKernel(const Pass<Key> pass) {
  using Shape = PassShape<Key>;
  // CUB divides the items by the key's size in words of 4 bytes.
  using Policy =
      cub::AgentRadixSortOnesweepPolicy<Shape::kThreads, Shape::kItems * sizeof(Key) / sizeof(uint32_t), Key, 1,
                                        cub::RADIX_RANK_MATCH_EARLY_COUNTS_ANY, cub::BLOCK_SCAN_RAKING_MEMOIZE,
                                        cub::RADIX_SORT_STORE_DIRECT, kDigitBits>;
  static_assert(Policy::ITEMS_PER_THREAD == Shape::kItems);
  using Agent =
      cub::detail::radix_sort::AgentRadixSortOnesweep<Policy, /*IS_DESCENDING=*/false, Key, int32_t, int32_t, int>;
  __shared__ typename Agent::TempStorage storage;
  WaitForEarlierKernels();
  Agent(storage, pass.look_back, pass.num_taken, /*d_bins_out=*/nullptr, pass.digit_begins, pass.keys_to, pass.keys,
        pass.values_to, pass.values, pass.num_pairs, pass.first_bit, pass.num_bits)
      .Process();
}

// The memory of one sort, all of which is cleared before it.
template <typename Key>
struct Workspace {
  Workspace(int64_t num_pairs, int num_bits, void* scratch)
      : num_passes((num_bits + kDigitBits - 1) / kDigitBits),
        num_tiles(static_cast<int>((num_pairs + PassShape<Key>::kTilePairs - 1) / PassShape<Key>::kTilePairs)) {
    WorkspaceCutter cutter(scratch);
    counts = cutter.Take<int32_t>(int64_t{num_passes} * kDigits);
    look_back = cutter.Take<int32_t>(int64_t{num_passes} * num_tiles * kDigits);
    num_taken = cutter.Take<int32_t>(num_passes);
    bytes = cutter.bytes();
  }

  int num_passes;
  int num_tiles;
  int32_t* counts;     // [passes, digits]
  int32_t* look_back;  // [passes, tiles, digits]
  int32_t* num_taken;  // [passes] the number of tiles that blocks have taken
  size_t bytes;
};

template <typename Key>
cudaError_t SortByPasses(PairBuffers<Key>& buffers, int num_pairs, int num_bits, void* scratch, cudaStream_t stream) {
  constexpr int kHistogramPairs = 2048;     // a block: 8 for each of its threads
  constexpr int kMaxHistogramBlocks = 264;  // two for each multiprocessor of an H200
  const Workspace<Key> workspace(num_pairs, num_bits, scratch);
  VOXSERVE_RETURN_IF_CUDA(Clear(scratch, workspace.bytes, stream));
  const int histogram_blocks = std::min(kMaxHistogramBlocks, (num_pairs + kHistogramPairs - 1) / kHistogramPairs);
  VOXSERVE_RETURN_IF_CUDA(LaunchEarly(CountDigitsKernel<Key>, static_cast<unsigned>(histogram_blocks),
                                      kHistogramThreads, 0, stream, buffers.current_keys(), num_pairs, num_bits,
                                      workspace.counts));
  VOXSERVE_RETURN_IF_CUDA(
      LaunchEarly(SumDigitsKernel, static_cast<unsigned>(workspace.num_passes), kDigits, 0, stream, workspace.counts));
  for (int i = 0; i < workspace.num_passes; ++i) {
    const int first_bit = i * kDigitBits, to = buffers.current ^ 1;
    const Pass<Key> pass{.keys = buffers.current_keys(),
                         .values = buffers.current_values(),
                         .keys_to = buffers.keys[to],
                         .values_to = buffers.values[to],
                         .num_pairs = num_pairs,
                         .first_bit = first_bit,
                         .num_bits = std::min(kDigitBits, num_bits - first_bit),
                         .digit_begins = workspace.counts + i * kDigits,
                         .look_back = workspace.look_back + int64_t{i} * workspace.num_tiles * kDigits,
                         .num_taken = workspace.num_taken + i};
    VOXSERVE_RETURN_IF_CUDA(LaunchEarly(SortDigitKernel<Key>, static_cast<unsigned>(workspace.num_tiles),
                                        PassShape<Key>::kThreads, 0, stream, pass));
    buffers.current = to;
  }
  return cudaSuccess;
}
#endif

}  // namespace

template <typename Key>
size_t SortPairsScratchBytes(int64_t num_pairs) {
#if VOXSERVE_SORTS_BY_PASSES
  const Workspace<Key> workspace(std::min(num_pairs, kMostPairs), std::numeric_limits<Key>::digits, nullptr);
  if (num_pairs <= kMostPairs) return workspace.bytes;
  return std::max(workspace.bytes, CubScratchBytes<Key>(num_pairs));
#else
  return CubScratchBytes<Key>(num_pairs);
#endif
}

template <typename Key>
cudaError_t SortPairs(PairBuffers<Key>& buffers, int64_t num_pairs, int num_bits, void* scratch, cudaStream_t stream) {
  if (num_pairs < 0 || num_pairs > std::numeric_limits<int32_t>::max() || num_bits < 0 ||
      num_bits > std::numeric_limits<Key>::digits) {
    return cudaErrorInvalidValue;
  }
  if (num_pairs == 0 || num_bits == 0) return cudaSuccess;
#if VOXSERVE_SORTS_BY_PASSES
  if (num_pairs <= kMostPairs) {
    return SortByPasses(buffers, static_cast<int>(num_pairs), num_bits, scratch, stream);
  }
#endif
  return SortByCub(buffers, num_pairs, num_bits, scratch, stream);
}

template size_t SortPairsScratchBytes<uint32_t>(int64_t);
template size_t SortPairsScratchBytes<uint64_t>(int64_t);
template cudaError_t SortPairs(PairBuffers<uint32_t>&, int64_t, int, void*, cudaStream_t);
template cudaError_t SortPairs(PairBuffers<uint64_t>&, int64_t, int, void*, cudaStream_t);

}  // namespace voxserve::kernels::cuda
