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
#include "kernels/core/clear.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_tiles.cuh"
#include "kernels/core/visit_dimension.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int kLog2WordPlaces = 5;
inline constexpr int kWordPlaces = 1 << kLog2WordPlaces;

// The words of a bitmap, in device memory. `words` has all words of the box, and the other members are null; or `words`
// has only the touched words, in the order of the box.
struct BitmapWords {
  uint32_t* words = nullptr;
  uint32_t* touched = nullptr;     // bit w is set if word w of the box is touched; 32 bits are a group
  int32_t* ranks = nullptr;        // the number of touched words before each group; set for groups with touched words
  uint32_t* numbers = nullptr;     // [num_touched] the number of each touched word in the box
  int64_t* num_touched = nullptr;  // [1]

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

  BitmapWords Take(WorkspaceCutter& cutter) const {
    BitmapWords memory{.words = cutter.Take<uint32_t>(num_words_)};
    if (!lists_touched_) return memory;
    memory.touched = cutter.Take<uint32_t>(num_groups());
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
// have in common once. No candidate is outside a key's limits, since the box is within the limits.
template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads) MarkOutputsKernel(const __grid_constant__ MarkOutputsParams params) {
  using Key = MortonKey<kDimension>;
  WaitForEarlierKernels();
  const CandidateParams& candidates = params.candidates;
  const int64_t num_rows = NumRows(candidates.in_capacity, candidates.num_in);
  for (int64_t row = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; row < num_rows;
       row += int64_t{gridDim.x} * kBlockThreads) {
    const uint64_t key = candidates.in_keys[row];
    BitMarker marker(params.bitmap);
    if (candidates.num_listed_cells == 0) {
      AxisMarks axes[kDimension];
      const int32_t sample = Key::Sample(key);
#pragma unroll
      for (int axis = 0; axis < kDimension; ++axis) {
        axes[axis].sites = AxisSitesOf<kDimension>(candidates, axis, sample, Key::Coordinate(key, axis));
        axes[axis].first = params.places.OnAxis(axis, axes[axis].sites.first);
        axes[axis].step = params.steps[axis];
      }
      MarkProduct<kDimension>(params.places, axes, params.places.OfSample(sample), params.log2_places_a_bit, marker);
    } else {
      for (int32_t number = 0; number < candidates.candidates_an_input; ++number) {
        int32_t sample = 0;
        Axes sites = {0, 0, 0, 0};
        if (!FindCandidate<kDimension>(candidates, key, number, sample, sites)) continue;
        uint64_t place = params.places.OfSample(sample);
#pragma unroll
        for (int axis = 0; axis < kDimension; ++axis) place |= params.places.OnAxis(axis, sites[axis]);
        marker.Mark(place >> params.log2_places_a_bit);
      }
    }
    marker.Flush();
  }
}

// The words that each block of CountBitsKernel and VisitBitsKernel reads: those from begin to end.
struct BlockWords {
  int64_t begin;
  int64_t end;

  // num_words: null: capacity.
  __device__ BlockWords(int64_t capacity, const int64_t* num_words) {
    const int64_t all = NumRows(capacity, num_words);
    const int64_t tiles = (all + kBlockThreads - 1) / kBlockThreads;
    const int64_t block_words = (tiles + gridDim.x - 1) / gridDim.x * kBlockThreads;
    begin = min(blockIdx.x * block_words, all);
    end = min(begin + block_words, all);
  }
};

// Counts the set bits of each block's words. The first block also sets num_beyond_limits, [num_samples], to 0.
__global__ inline void __launch_bounds__(kBlockThreads)
    CountBitsKernel(const uint32_t* words, int64_t capacity, const int64_t* num_words, int32_t* block_counts,
                    int64_t* num_beyond_limits, int32_t num_samples) {
  WaitForEarlierKernels();
  const BlockWords own(capacity, num_words);
  int32_t count = 0;
  for (int64_t word = own.begin + threadIdx.x; word < own.end; word += kBlockThreads) count += __popc(words[word]);
  const int64_t sum = BlockSum(count);
  if (threadIdx.x == 0) block_counts[blockIdx.x] = static_cast<int32_t>(sum);
  if (blockIdx.x != 0) return;
  for (int32_t sample = threadIdx.x; sample < num_samples; sample += kBlockThreads) num_beyond_limits[sample] = 0;
}

// TouchedLister and KeyWriter are visitors of VisitBitsKernel. TouchedLister lists the touched words, and clears them.
struct TouchedLister {
  BitmapWords bitmap;

  struct Shared {};
  __device__ void Prepare(Shared& /*shared*/) const {}
  // index: of the word; bits: its contents; rank: the number of set bits before the word's.
  __device__ void Visit(const Shared& /*shared*/, int64_t index, uint32_t bits, int64_t rank) const {
    bitmap.ranks[index] = static_cast<int32_t>(rank);
    for (int64_t row = rank; bits != 0; bits &= bits - 1, ++row) {
      bitmap.numbers[row] = static_cast<uint32_t>(index * kWordPlaces + __ffs(static_cast<int>(bits)) - 1);
      bitmap.words[row] = 0;
    }
  }
};

// KeyWriter writes the keys of the set bits. A key is the OR of the key of its word's first place (computed once per
// word) and the key of its bit's position in the word (computed once per block).
struct KeyWriter {
  MortonPlaces places;
  const uint32_t* numbers;  // BitmapWords::numbers
  uint64_t* out_keys;

  struct Shared {
    uint64_t bit_keys[kWordPlaces];
  };
  __device__ void Prepare(Shared& shared) const {
    if (threadIdx.x < kWordPlaces) shared.bit_keys[threadIdx.x] = places.Key(threadIdx.x);
  }
  __device__ void Visit(const Shared& shared, int64_t index, uint32_t bits, int64_t rank) const {
    const uint64_t number = numbers == nullptr ? static_cast<uint64_t>(index) : numbers[index];
    const uint64_t word_key = places.Key(number * kWordPlaces);
    for (int64_t row = rank; bits != 0; bits &= bits - 1, ++row) {
      out_keys[row] = word_key | shared.bit_keys[__ffs(static_cast<int>(bits)) - 1];
    }
  }
};

// Calls visitor.Visit for each word that is not 0. Blocks have the same words as in CountBitsKernel, which made
// block_counts. num_bits: output, the number of all set bits.
template <typename Visitor>
__global__ void __launch_bounds__(kBlockThreads)
    VisitBitsKernel(const __grid_constant__ Visitor visitor, const uint32_t* words, int64_t capacity,
                    const int64_t* num_words, const int32_t* block_counts, int64_t* num_bits) {
  using Scan = cub::BlockScan<int32_t, kBlockThreads>;
  __shared__ typename Scan::TempStorage storage;
  __shared__ typename Visitor::Shared shared;
  WaitForEarlierKernels();
  const bool is_last = blockIdx.x == gridDim.x - 1;
  if (block_counts[blockIdx.x] == 0 && !is_last) return;
  visitor.Prepare(shared);
  int64_t before = 0;
  for (unsigned block = threadIdx.x; block < blockIdx.x; block += kBlockThreads) before += block_counts[block];
  before = BlockSum(before);  // its barrier also makes `shared` visible
  const BlockWords own(capacity, num_words);
  for (int64_t tile = own.begin; tile < own.end; tile += kBlockThreads) {
    const int64_t index = tile + threadIdx.x;
    const uint32_t bits = index < own.end ? words[index] : 0;
    int32_t rank = 0, total = 0;
    Scan(storage).ExclusiveSum(__popc(bits), rank, total);
    if (bits != 0) visitor.Visit(shared, index, bits, before + rank);
    before += total;
    __syncthreads();  // the storage is used again
  }
  if (is_last && threadIdx.x == 0) *num_bits = before;
}

// Launches the kernels. bounds: CandidateParams::bounds. bitmap: OutputBitmap::Take. block_counts: scratch,
// [max_blocks].
inline cudaError_t BitmapOutputs(const OutputCoordinatesParams& params, const FieldBounds* bounds,
                                 const BitmapWords& bitmap, int32_t* block_counts, int64_t max_blocks,
                                 cudaStream_t stream) {
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
  // WorkspaceCutter has room for the word that an odd number of words needs in addition.
  const auto clear = [&](uint32_t* words, int64_t num_words) {
    return Clear(words, static_cast<size_t>((num_words + 1) / 2 * 2) * sizeof(uint32_t), stream);
  };
  const auto visit = [&](const auto& visitor, const uint32_t* words, int64_t capacity, const int64_t* num_words,
                         int64_t* num_bits) {
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(NumBlocks(capacity), max_blocks));
    VOXSERVE_RETURN_IF_CUDA(LaunchEarly(CountBitsKernel, blocks, kBlockThreads, 0, stream, words, capacity, num_words,
                                        block_counts, params.num_beyond_limits, params.num_samples));
    return LaunchEarly(VisitBitsKernel<std::decay_t<decltype(visitor)>>, blocks, kBlockThreads, 0, stream, visitor,
                       words, capacity, num_words, block_counts, num_bits);
  };
  if (bitmap.touched == nullptr) {
    VOXSERVE_RETURN_IF_CUDA(clear(bitmap.words, layout.num_words()));
  } else {
    VOXSERVE_RETURN_IF_CUDA(clear(bitmap.touched, layout.num_groups()));
    marks.log2_places_a_bit = kLog2WordPlaces;
    marks.bitmap = {.words = bitmap.touched};
    VOXSERVE_RETURN_IF_CUDA(mark());
    VOXSERVE_RETURN_IF_CUDA(
        visit(TouchedLister{bitmap}, bitmap.touched, layout.num_groups(), nullptr, bitmap.num_touched));
    marks.log2_places_a_bit = 0;
    marks.bitmap = bitmap;
  }
  VOXSERVE_RETURN_IF_CUDA(mark());
  return visit(KeyWriter{layout.places(), bitmap.numbers, params.out_keys}, bitmap.words, layout.num_words(),
               bitmap.num_touched, params.num_out);
}

}  // namespace voxserve::kernels::cuda
