#pragma once

// BitmapOutputs makes the outputs of OutputCoordinates (output_coordinates.h) without a sort, where OutputExtent knows
// a box around them. Every candidate (output_candidates.cuh) sets the bit of its cell, and the set bits are then read
// in Morton order. A cell's bit is at the cell's place (MortonPlaces), in words of 32 places.
//
// A box that is small, or not large for the number of candidates, has memory for all its words. In a larger box most
// words stay empty, since sites lie on surfaces. The candidates then first set a bit for each word that they touch, and
// these words alone get memory, one after another. Only .cu files include this header.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cub/block/block_scan.cuh>
#include <limits>
#include <type_traits>

#include "kernels/coordinates/morton_key.h"
#include "kernels/coordinates/morton_places.h"
#include "kernels/coordinates/output_candidates.cuh"
#include "kernels/coordinates/output_coordinates.h"
#include "kernels/core/binary_search.cuh"
#include "kernels/core/clear.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_tiles.cuh"
#include "kernels/core/visit_dimension.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int kLog2WordPlaces = 5;
inline constexpr int kWordPlaces = 1 << kLog2WordPlaces;

// VisitBitsKernel reads words in tiles of kMinTileWords to kMaxTileWords, a power of two. It has few enough blocks for
// each to add up the counts of all blocks before it.
inline constexpr int kMinTileWords = 32;
inline constexpr int kMaxTileWords = 1024;
inline constexpr int kMaxVisitBlocks = 1024;

// The words of a bitmap, in device memory. `words` has all words of the box, and the other members are null; or `words`
// has only the touched words, in the order of the box.
struct BitmapWords {
  uint32_t* words = nullptr;
  uint32_t* touched = nullptr;      // bit w is set if word w of the box is touched; 32 bits are a group
  int32_t* ranks = nullptr;         // the number of touched words before each group; set for groups with touched words
  uint32_t* numbers = nullptr;      // [num_touched] the number of each touched word in the box
  int64_t* num_touched = nullptr;   // [1]
  int32_t* block_counts = nullptr;  // [2, kMaxVisitBlocks] for VisitBitsKernel; the memory of `marked()` follows

  // The words that are marked first, and hence cleared.
  uint32_t* marked() const { return touched == nullptr ? words : touched; }
  __device__ uint32_t& Word(uint64_t number) const {
    if (touched == nullptr) return words[number];
    const uint64_t group = number / kWordPlaces;
    const uint32_t before = (1u << (number % kWordPlaces)) - 1;
    return words[ranks[group] + __popc(touched[group] & before)];
  }
};

// The size of a bitmap, and the decision whether to use it.
class OutputBitmap {
 public:
  explicit OutputBitmap(const OutputCoordinatesParams& params) {
    places_ = MortonPlaces(params.geometry.dimension, OutputExtent(params));
    if (!places_.is_valid()) return;
    box_words_ = (int64_t{params.num_samples} << places_.sample_bits()) / kWordPlaces;
    const int64_t num_candidates = NumOutputCandidates(params);
    const int64_t sort_bytes = 2 * static_cast<int64_t>(sizeof(uint64_t)) * num_candidates;  // two buffers of keys
    // To clear and read all words takes time by the size of the box. To list the touched ones takes a second pass over
    // the inputs, of which the host knows only how many there may be. On an H200 a list was slower for boxes of 8 MiB,
    // and faster above 16 MiB (tests/bench/results/CURRENT.md: EXPAND with a bitmap).
    constexpr int64_t kSmallBytes = 4 << 20, kLargeBytes = 16 << 20;
    lists_touched_ = Bytes(box_words_) > std::clamp(sort_bytes / 2, kSmallBytes, kLargeBytes);
    num_words_ = lists_touched_ ? std::min(box_words_, num_candidates) : box_words_;
    const int64_t all_words = lists_touched_ ? 2 * (num_words_ + num_groups()) : num_words_;
    is_worth_it_ =
        box_words_ <= std::numeric_limits<uint32_t>::max() && Bytes(all_words) <= std::max(kSmallBytes, sort_bytes);
  }

  // Returns true if there is a box, and the bitmap needs at most 4 MiB, or at most the memory of a sort's two buffers.
  // It is then taken to be the faster way.
  bool is_worth_it() const { return is_worth_it_; }
  const MortonPlaces& places() const { return places_; }
  // The lengths of BitmapWords::words and touched.
  int64_t num_words() const { return num_words_; }
  int64_t num_groups() const { return (box_words_ + kWordPlaces - 1) / kWordPlaces; }
  // The length of BitmapWords::marked().
  int64_t num_marked() const { return lists_touched_ ? num_groups() : num_words_; }

  BitmapWords Take(WorkspaceCutter& cutter) const {
    BitmapWords memory;
    memory.block_counts = cutter.Take<int32_t>(2 * kMaxVisitBlocks);
    uint32_t* const marked = cutter.Take<uint32_t>(num_marked());
    if (!lists_touched_) {
      memory.words = marked;
      return memory;
    }
    memory.touched = marked;
    memory.words = cutter.Take<uint32_t>(num_words_);
    memory.ranks = cutter.Take<int32_t>(num_groups());
    memory.numbers = cutter.Take<uint32_t>(num_words_);
    memory.num_touched = cutter.Take<int64_t>(1);
    return memory;
  }

 private:
  static int64_t Bytes(int64_t num_words) { return num_words * static_cast<int64_t>(sizeof(uint32_t)); }

  MortonPlaces places_;
  int64_t box_words_ = 0;  // of all samples' boxes
  int64_t num_words_ = 0;
  bool lists_touched_ = false;  // only touched words have memory
  bool is_worth_it_ = false;
};

// BitMarker sets bits of a bitmap. It collects the bits of one word before it writes them, since the outputs of an
// input are close together and often share a word.
class BitMarker {
 public:
  __device__ explicit BitMarker(const BitmapWords& bitmap) : bitmap_(bitmap) {}

  __device__ void Mark(uint64_t bit) {
    const uint64_t word = bit / kWordPlaces;
    if (word != word_) Flush();
    word_ = word;
    bits_ |= 1u << (bit % kWordPlaces);
  }
  // Must be called after the last Mark.
  __device__ void Flush() {
    if (bits_ != 0) atomicOr(&bitmap_.Word(word_), bits_);
    bits_ = 0;
  }

 private:
  const BitmapWords& bitmap_;
  uint64_t word_ = 0;
  uint32_t bits_ = 0;
};

// An input's candidates on one axis, and the parts of their places.
struct AxisMarks {
  AxisSites sites;
  uint64_t first;  // MortonPlaces::OnAxis of the first candidate's site
  uint64_t step;   // MortonPlaces::OnAxis of the distance to the next candidate's site
};

// Marks the outputs of an input: all combinations of its candidates on the axes from kAxis on. `place` has the bits of
// the sample and of the axes before kAxis.
template <int kDimension, int kAxis = 0>
__device__ void MarkProduct(const MortonPlaces& places, const AxisMarks (&axes)[kDimension], uint64_t place,
                            int log2_places_a_bit, BitMarker& marker) {
  if constexpr (kAxis == kDimension) {
    marker.Mark(place >> log2_places_a_bit);
  } else {
    const AxisMarks& axis = axes[kAxis];
    uint64_t on_axis = axis.first;
    for (int32_t number = 0; number < axis.sites.count; ++number) {
      if (axis.sites.Has(number)) {
        MarkProduct<kDimension, kAxis + 1>(places, axes, place | on_axis, log2_places_a_bit, marker);
      }
      on_axis = places.AddOnAxis(kAxis, on_axis, axis.step);
    }
  }
}

struct MarkOutputsParams {
  CandidateParams candidates;
  MortonPlaces places;
  uint64_t steps[kMaxDimension];  // MortonPlaces::OnAxis of each axis's site_step
  int log2_places_a_bit;          // 0: a bit is an output; kLog2WordPlaces: a bit is a word of outputs
  BitmapWords bitmap;
};

// Marks the outputs of the inputs. A thread handles all candidates of an input, so it computes the values that they
// have in common once. No candidate is outside a key's limits, since the box is within the limits. Inputs are older
// than the kernel before this one, which clears or lists words, so a thread has read its first row before it waits.
template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads) MarkOutputsKernel(const __grid_constant__ MarkOutputsParams params) {
  using Key = MortonKey<kDimension>;
  const CandidateParams& candidates = params.candidates;
  const int64_t num_rows = NumRows(candidates.in_capacity, candidates.num_in);
  for (int64_t row = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; row < num_rows;
       row += int64_t{gridDim.x} * kBlockThreads) {
    const uint64_t key = candidates.in_keys[row];
    BitMarker marker(params.bitmap);
    if (candidates.num_listed_cells == 0) {
      AxisMarks axes[kDimension];
      const int32_t sample = Key::Sample(key);
      Axes first = {0, 0, 0, 0};
#pragma unroll
      for (int axis = 0; axis < kDimension; ++axis) {
        axes[axis].sites = AxisSitesOf<kDimension>(candidates, axis, sample, Key::Coordinate(key, axis));
        first[axis] = static_cast<int32_t>(axes[axis].sites.first);  // places leave out the upper bits too
      }
      const uint64_t first_place = params.places.OfTranslation(Key::Translation(first));
#pragma unroll
      for (int axis = 0; axis < kDimension; ++axis) {
        axes[axis].first = params.places.BitsOnAxis(axis, first_place);
        axes[axis].step = params.steps[axis];
      }
      WaitForEarlierKernels();
      MarkProduct<kDimension>(params.places, axes, params.places.OfSample(sample), params.log2_places_a_bit, marker);
    } else {
      WaitForEarlierKernels();
      for (int32_t number = 0; number < candidates.candidates_an_input; ++number) {
        int32_t sample = 0;
        Axes sites = {0, 0, 0, 0};
        if (!FindCandidate<kDimension>(candidates, key, number, sample, sites)) continue;
        const uint64_t place = params.places.OfSample(sample) | params.places.OfTranslation(Key::Translation(sites));
        marker.Mark(place >> params.log2_places_a_bit);
      }
    }
    marker.Flush();
  }
  WaitForEarlierKernels();  // for threads without rows
}

// The words that a block of VisitBitsKernel reads: those from begin to end, in tiles.
struct BlockWords {
  int32_t tile_words;
  int64_t begin;
  int64_t end;

  // num_words: null: capacity. Tiles are as small as the number of blocks allows.
  __device__ BlockWords(int64_t capacity, const int64_t* num_words) : tile_words(kMinTileWords) {
    const int64_t all = NumRows(capacity, num_words);
    while (tile_words < kMaxTileWords && int64_t{tile_words} * gridDim.x < all) tile_words *= 2;
    const int64_t tiles = (all + tile_words - 1) / tile_words;
    const int64_t block_words = (tiles + gridDim.x - 1) / gridDim.x * tile_words;
    begin = min(blockIdx.x * block_words, all);
    end = min(begin + block_words, all);
  }
};

// TouchedLister and KeyWriter are visitors of VisitBitsKernel. TouchedLister lists the touched words, and clears them.
struct TouchedLister {
  BitmapWords bitmap;

  // word: the number of the word; bit: one of its set bits; rank: the number of set bits before this one.
  __device__ void Visit(int64_t word, int bit, int64_t rank, bool is_first_of_word) const {
    if (is_first_of_word) bitmap.ranks[word] = static_cast<int32_t>(rank);
    bitmap.numbers[rank] = static_cast<uint32_t>(word * kWordPlaces + bit);
    bitmap.words[rank] = 0;
  }
};

// KeyWriter writes the keys of the set bits.
struct KeyWriter {
  MortonPlaces places;
  const uint32_t* numbers;  // BitmapWords::numbers
  uint64_t* out_keys;

  __device__ void Visit(int64_t word, int bit, int64_t rank, bool /*is_first_of_word*/) const {
    const uint64_t number = numbers == nullptr ? static_cast<uint64_t>(word) : numbers[word];
    out_keys[rank] = places.Key(number * kWordPlaces | static_cast<uint64_t>(bit));
  }
};

struct VisitBitsParams {
  const uint32_t* words;     // [capacity]
  int64_t capacity;          // above 0
  const int64_t* num_words;  // null: capacity
  int32_t* block_counts;     // [blocks], all 0; afterwards 1 + the number of each block's set bits
  int64_t* num_bits;         // output: the number of all set bits
  int64_t* to_clear;         // [num_to_clear] set to 0
  int32_t num_to_clear;
};

// Calls visitor.Visit for each set bit. A block tells all later blocks how many bits its words have, and waits for the
// counts of all earlier ones. That is safe because blocks start in the order of their numbers: the earlier ones run or
// have ended, whatever else runs on the GPU, and a block tells its count before it waits.
//
// Sites lie close together, so a few words have most of the bits. Hence a thread takes every 256th bit of a tile,
// whatever word it is in.
template <typename Visitor>
__global__ void __launch_bounds__(kBlockThreads)
    VisitBitsKernel(const __grid_constant__ Visitor visitor, const VisitBitsParams params) {
  using Scan = cub::BlockScan<int32_t, kBlockThreads>;
  constexpr int kMaxThreadWords = kMaxTileWords / kBlockThreads;
  __shared__ typename Scan::TempStorage storage;
  __shared__ uint32_t tile_bits[kMaxTileWords];
  __shared__ int32_t ranks[kMaxTileWords];  // the number of set bits of the tile before each word
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const bool is_last = blockIdx.x == gridDim.x - 1;
  WaitForEarlierKernels();
  const BlockWords own(params.capacity, params.num_words);
  int32_t count = 0;
#pragma unroll 4
  for (int64_t word = own.begin + thread; word < own.end; word += kBlockThreads) count += __popc(params.words[word]);
  const int64_t sum = BlockSum(count);
  volatile int32_t* const counts = params.block_counts;
  if (thread == 0) counts[blockIdx.x] = static_cast<int32_t>(sum) + 1;
  if (blockIdx.x == 0) {
    for (int32_t i = thread; i < params.num_to_clear; i += kBlockThreads) params.to_clear[i] = 0;
  }
  if (sum == 0 && !is_last) return;
  int64_t before = 0;
  for (unsigned block = threadIdx.x; block < blockIdx.x; block += kBlockThreads) {
    int32_t of_block = 0;
    do of_block = counts[block];
    while (of_block == 0);
    before += of_block - 1;
  }
  before = BlockSum(before);
  const int32_t thread_words = (own.tile_words + kBlockThreads - 1) / kBlockThreads;
  const int32_t first = thread * thread_words;  // the thread's first word in a tile
  for (int64_t tile = own.begin; tile < own.end; tile += own.tile_words) {
    uint32_t bits[kMaxThreadWords];
    count = 0;
#pragma unroll
    for (int i = 0; i < kMaxThreadWords; ++i) {
      const bool is_word = i < thread_words && first + i < own.tile_words && tile + first + i < own.end;
      bits[i] = is_word ? params.words[tile + first + i] : 0;
      count += __popc(bits[i]);
    }
    int32_t rank = 0, total = 0;
    Scan(storage).ExclusiveSum(count, rank, total);
#pragma unroll
    for (int i = 0; i < kMaxThreadWords; ++i) {
      if (i >= thread_words || first + i >= own.tile_words) break;
      tile_bits[first + i] = bits[i];
      ranks[first + i] = rank;
      rank += __popc(bits[i]);
    }
    __syncthreads();
    for (int32_t number = thread; number < total; number += kBlockThreads) {
      const int32_t word = PartitionPoint(own.tile_words, [&](int32_t i) { return ranks[i] <= number; }) - 1;
      uint32_t rest = tile_bits[word];
      for (int32_t i = ranks[word]; i < number; ++i) rest &= rest - 1;
      visitor.Visit(tile + word, __ffs(static_cast<int>(rest)) - 1, before + number, number == ranks[word]);
    }
    before += total;
    __syncthreads();  // shared memory is used again
  }
  if (is_last && thread == 0) *params.num_bits = before;
}

// Launches the kernels. bounds: CandidateParams::bounds. bitmap: OutputBitmap::Take.
inline cudaError_t BitmapOutputs(const OutputCoordinatesParams& params, const FieldBounds* bounds,
                                 const BitmapWords& bitmap, cudaStream_t stream) {
  // Only the device knows the number of inputs. Blocks stride over them, since with a large capacity most blocks would
  // have no work.
  constexpr int64_t kMaxMarkBlocks = 1024;
  const OutputBitmap layout(params);
  MarkOutputsParams marks{.candidates = CandidatesOf(params, bounds),
                          .places = layout.places(),
                          .steps = {},
                          .log2_places_a_bit = 0,
                          .bitmap = bitmap};
  for (int axis = 0; axis < params.geometry.dimension; ++axis) {
    marks.steps[axis] = layout.places().OnAxis(axis, marks.candidates.axes[axis].site_step);
  }
  const auto mark_blocks = static_cast<unsigned>(std::min<int64_t>(NumBlocks(params.num_in), kMaxMarkBlocks));
  const auto mark = [&] {
    return VisitDimension(params.geometry.dimension, [&](auto dimension) {
      return LaunchEarly(MarkOutputsKernel<dimension()>, mark_blocks, kBlockThreads, 0, stream, marks);
    });
  };
  // Clears the words that are marked first, and the counts before them. Memory that is taken after them begins at a
  // multiple of 256 bytes, so there is room to round up.
  const auto* const end = bitmap.marked() + (layout.num_marked() + 1) / 2 * 2;
  const auto bytes = reinterpret_cast<const char*>(end) - reinterpret_cast<const char*>(bitmap.block_counts);
  VOXSERVE_RETURN_IF_CUDA(Clear(bitmap.block_counts, static_cast<size_t>(bytes), stream));
  const auto visit = [&](const auto& visitor, const VisitBitsParams& visited) {
    constexpr int64_t kMaxBlocks = kMaxVisitBlocks;
    const auto blocks =
        static_cast<unsigned>(std::min<int64_t>(NumBlocks(visited.capacity, kMinTileWords), kMaxBlocks));
    return LaunchEarly(VisitBitsKernel<std::decay_t<decltype(visitor)>>, blocks, kBlockThreads, 0, stream, visitor,
                       visited);
  };
  VisitBitsParams visited{.words = bitmap.words,
                          .capacity = layout.num_words(),
                          .num_words = bitmap.num_touched,
                          .block_counts = bitmap.block_counts,
                          .num_bits = params.num_out,
                          .to_clear = params.num_beyond_limits,
                          .num_to_clear = params.num_samples};
  if (bitmap.touched != nullptr) {
    marks.log2_places_a_bit = kLog2WordPlaces;
    marks.bitmap = {.words = bitmap.touched};
    VOXSERVE_RETURN_IF_CUDA(mark());
    VOXSERVE_RETURN_IF_CUDA(visit(TouchedLister{bitmap}, {.words = bitmap.touched,
                                                          .capacity = layout.num_groups(),
                                                          .num_words = nullptr,
                                                          .block_counts = bitmap.block_counts,
                                                          .num_bits = bitmap.num_touched,
                                                          .to_clear = nullptr,
                                                          .num_to_clear = 0}));
    marks.log2_places_a_bit = 0;
    marks.bitmap = bitmap;
    visited.block_counts = bitmap.block_counts + kMaxVisitBlocks;
  }
  VOXSERVE_RETURN_IF_CUDA(mark());
  return visit(KeyWriter{layout.places(), bitmap.numbers, params.out_keys}, visited);
}

}  // namespace voxserve::kernels::cuda
