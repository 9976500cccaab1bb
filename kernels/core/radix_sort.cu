#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <limits>

#include "kernels/core/launch.cuh"
#include "kernels/core/radix_sort.h"

// A sort by passes calls kernels of CUB's own namespaces, whose arguments may change with its version. Before this line
// is changed, compare the launches below with those of cub::DispatchRadixSort::InvokeOnesweep. With other versions,
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
// Longer arrays are sorted by cub::DeviceRadixSort. With a million keys both take about the same time.
constexpr int64_t kMostPairs = int64_t{1} << 20;

// The form of the kernels, which CUB reads as its own policies: one for all GPUs, so the number 500 chooses nothing.
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

// The memory of one sort, all of which is cleared before it.
template <typename Key>
struct Workspace {
  Workspace(int64_t num_pairs, int num_bits, void* scratch)
      : num_passes((num_bits + kDigitBits - 1) / kDigitBits),
        num_tiles(static_cast<int>((num_pairs + Policy<Key>::kTilePairs - 1) / Policy<Key>::kTilePairs)) {
    WorkspaceCutter cutter(scratch);
    counts = cutter.Take<int32_t>(int64_t{num_passes} * kDigits);
    look_back = cutter.Take<int32_t>(int64_t{num_passes} * num_tiles * kDigits);
    taken = cutter.Take<int32_t>(num_passes);
    bytes = cutter.bytes();
  }

  int num_passes;
  int num_tiles;
  int32_t* counts;     // [passes, digits]
  int32_t* look_back;  // [passes, tiles, digits]
  int32_t* taken;      // [passes] the number of tiles that blocks have taken
  size_t bytes;
};

template <typename Key>
cudaError_t SortByPasses(PairBuffers<Key>& buffers, int num_pairs, int num_bits, void* scratch, cudaStream_t stream) {
  namespace radix_sort = cub::detail::radix_sort;
  using Form = Policy<Key>;
  using Decomposer = cub::detail::identity_decomposer_t;
  constexpr auto kAscending = cub::SortOrder::Ascending;
  constexpr int kHistogramPairs = 2048;     // a block: 8 for each of its threads
  constexpr int kMaxHistogramBlocks = 264;  // two for each multiprocessor of an H200
  const Workspace<Key> workspace(num_pairs, num_bits, scratch);
  VOXSERVE_RETURN_IF_CUDA(cudaMemsetAsync(scratch, 0, workspace.bytes, stream));
  const int histogram_blocks = std::min(kMaxHistogramBlocks, (num_pairs + kHistogramPairs - 1) / kHistogramPairs);
  radix_sort::DeviceRadixSortHistogramKernel<Form, kAscending, Key, int, Decomposer>
      <<<static_cast<unsigned>(histogram_blocks), Form::HistogramPolicy::BLOCK_THREADS, 0, stream>>>(
          workspace.counts, buffers.current_keys(), num_pairs, 0, num_bits, Decomposer());
  VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
  radix_sort::DeviceRadixSortExclusiveSumKernel<Form, int>
      <<<static_cast<unsigned>(workspace.num_passes), Form::ExclusiveSumPolicy::BLOCK_THREADS, 0, stream>>>(
          workspace.counts);
  VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
  for (int pass = 0; pass < workspace.num_passes; ++pass) {
    const int first_bit = pass * kDigitBits, to = buffers.current ^ 1;
    radix_sort::DeviceRadixSortOnesweepKernel<Form, kAscending, Key, int32_t, int, int, int, Decomposer>
        <<<static_cast<unsigned>(workspace.num_tiles), Form::OnesweepPolicy::BLOCK_THREADS, 0, stream>>>(
            workspace.look_back + int64_t{pass} * workspace.num_tiles * kDigits, workspace.taken + pass,
            /*d_bins_out=*/nullptr, workspace.counts + pass * kDigits, buffers.keys[to], buffers.current_keys(),
            buffers.values[to], buffers.current_values(), num_pairs, first_bit,
            std::min(kDigitBits, num_bits - first_bit), Decomposer());
    VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
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
