#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <limits>

#include "kernels/core/launch.cuh"
#include "kernels/core/sort_pairs.h"

namespace voxserve::kernels::cuda {
namespace {

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
// Longer arrays are sorted by cub::DeviceRadixSort: there the gaps do not count, and the look-back of all passes at once
// would take much memory.
constexpr int64_t kMostPairs = int64_t{1} << 22;

// The form of the kernels, which CUB reads as its own policies. There is one for all GPUs.
template <typename Key>
struct Policy : cub::ChainedPolicy<500, Policy<Key>, Policy<Key>> {
  static constexpr int kItems = 12;  // a thread
  using HistogramPolicy = cub::AgentRadixSortHistogramPolicy<256, 8, 1, Key, kDigitBits>;
  using ExclusiveSumPolicy = cub::AgentRadixSortExclusiveSumPolicy<kDigits, kDigitBits>;
  // CUB divides the items by the key's size in words of 4 bytes.
  using OnesweepPolicy =
      cub::AgentRadixSortOnesweepPolicy<384, kItems * sizeof(Key) / sizeof(uint32_t), Key, 1,
                                        cub::RADIX_RANK_MATCH_EARLY_COUNTS_ANY, cub::BLOCK_SCAN_RAKING_MEMOIZE,
                                        cub::RADIX_SORT_STORE_DIRECT, kDigitBits>;
  static constexpr int kTilePairs = OnesweepPolicy::BLOCK_THREADS * OnesweepPolicy::ITEMS_PER_THREAD;
};

// What one sort clears, in this order: the digits' counts of each pass, the look-back of each pass's tiles, and the
// number of tiles that each pass has taken.
template <typename Key>
struct Scratch {
  Scratch(int64_t num_pairs, int num_bits, void* base)
      : num_passes((num_bits + kDigitBits - 1) / kDigitBits),
        num_tiles(static_cast<int>((num_pairs + Policy<Key>::kTilePairs - 1) / Policy<Key>::kTilePairs)),
        counts(static_cast<int32_t*>(base)),
        look_back(counts + int64_t{num_passes} * kDigits),
        taken(look_back + int64_t{num_passes} * num_tiles * kDigits) {}

  size_t bytes() const {
    return static_cast<size_t>(num_passes) * (kDigits + static_cast<size_t>(num_tiles) * kDigits + 1) * sizeof(int32_t);
  }

  int num_passes;
  int num_tiles;
  int32_t* counts;     // [passes, digits]
  int32_t* look_back;  // [passes, tiles, digits]
  int32_t* taken;      // [passes]
};

template <typename Key>
size_t CubScratchBytes(int64_t num_pairs) {
  cub::DoubleBuffer<Key> no_keys;
  cub::DoubleBuffer<int32_t> no_values;
  size_t bytes = 0;
  // If this fails, the sort returns the same error when it runs.
  static_cast<void>(cub::DeviceRadixSort::SortPairs(nullptr, bytes, no_keys, no_values, num_pairs));
  return bytes;
}

template <typename Key>
cudaError_t SortByCub(PairBuffers<Key>& buffers, int64_t num_pairs, int num_bits, void* scratch, cudaStream_t stream) {
  cub::DoubleBuffer<Key> keys(buffers.keys[buffers.current], buffers.keys[buffers.current ^ 1]);
  cub::DoubleBuffer<int32_t> values(buffers.values[buffers.current], buffers.values[buffers.current ^ 1]);
  size_t bytes = CubScratchBytes<Key>(num_pairs);
  VOXSERVE_RETURN_IF_CUDA(
      cub::DeviceRadixSort::SortPairs(scratch, bytes, keys, values, num_pairs, 0, num_bits, stream));
  buffers.current ^= keys.selector;
  return cudaSuccess;
}

}  // namespace

template <typename Key>
size_t SortPairsScratchBytes(int64_t num_pairs) {
  if (num_pairs > kMostPairs) return CubScratchBytes<Key>(num_pairs);
  return Scratch<Key>(num_pairs, std::numeric_limits<Key>::digits, nullptr).bytes();
}

template <typename Key>
cudaError_t SortPairs(PairBuffers<Key>& buffers, int64_t num_pairs, int num_bits, void* memory, cudaStream_t stream) {
  if (num_pairs < 0 || num_pairs > std::numeric_limits<int32_t>::max() || num_bits < 0 ||
      num_bits > std::numeric_limits<Key>::digits) {
    return cudaErrorInvalidValue;
  }
  if (num_pairs == 0 || num_bits == 0) return cudaSuccess;
  if (num_pairs > kMostPairs) return SortByCub(buffers, num_pairs, num_bits, memory, stream);

  namespace radix_sort = cub::detail::radix_sort;
  using Form = Policy<Key>;
  using Decomposer = cub::detail::identity_decomposer_t;
  constexpr auto kAscending = cub::SortOrder::Ascending;
  constexpr int64_t kHistogramPairs = 2048;  // a block
  constexpr int64_t kMaxHistogramBlocks = 264;
  const Scratch<Key> scratch(num_pairs, num_bits, memory);
  const int pairs = static_cast<int>(num_pairs);
  VOXSERVE_RETURN_IF_CUDA(cudaMemsetAsync(memory, 0, scratch.bytes(), stream));
  const auto histogram_blocks = static_cast<unsigned>(
      std::min(kMaxHistogramBlocks, (num_pairs + kHistogramPairs - 1) / kHistogramPairs));
  radix_sort::DeviceRadixSortHistogramKernel<Form, kAscending, Key, int, Decomposer>
      <<<histogram_blocks, Form::HistogramPolicy::BLOCK_THREADS, 0, stream>>>(
          scratch.counts, buffers.current_keys(), pairs, 0, num_bits, Decomposer());
  VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
  radix_sort::DeviceRadixSortExclusiveSumKernel<Form, int>
      <<<static_cast<unsigned>(scratch.num_passes), Form::ExclusiveSumPolicy::BLOCK_THREADS, 0, stream>>>(
          scratch.counts);
  VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
  for (int pass = 0; pass < scratch.num_passes; ++pass) {
    const int first_bit = pass * kDigitBits, to = buffers.current ^ 1;
    radix_sort::DeviceRadixSortOnesweepKernel<Form, kAscending, Key, int32_t, int, int, int, Decomposer>
        <<<static_cast<unsigned>(scratch.num_tiles), Form::OnesweepPolicy::BLOCK_THREADS, 0, stream>>>(
            scratch.look_back + int64_t{pass} * scratch.num_tiles * kDigits, scratch.taken + pass,
            /*d_bins_out=*/nullptr, scratch.counts + pass * kDigits, buffers.keys[to], buffers.current_keys(),
            buffers.values[to], buffers.current_values(), pairs, first_bit, std::min(kDigitBits, num_bits - first_bit),
            Decomposer());
    VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
    buffers.current = to;
  }
  return cudaSuccess;
}

template size_t SortPairsScratchBytes<uint32_t>(int64_t);
template size_t SortPairsScratchBytes<uint64_t>(int64_t);
template cudaError_t SortPairs(PairBuffers<uint32_t>&, int64_t, int, void*, cudaStream_t);
template cudaError_t SortPairs(PairBuffers<uint64_t>&, int64_t, int, void*, cudaStream_t);

}  // namespace voxserve::kernels::cuda
