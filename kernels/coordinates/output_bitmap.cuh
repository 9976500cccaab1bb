#pragma once

// BitmapOutputs makes the outputs of OutputCoordinates (output_coordinates.h) without a sort, for rules with a spatial
// shape. Every candidate (output_candidates.cuh) sets the bit of its cell, and the set bits are then read in Morton
// order. A cell's bit is at the cell's place (MortonPlaces). Only .cu files include this header.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "kernels/coordinates/morton_key.h"
#include "kernels/coordinates/morton_places.h"
#include "kernels/coordinates/output_candidates.cuh"
#include "kernels/coordinates/output_coordinates.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_tiles.cuh"
#include "kernels/core/visit_dimension.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int kWordPlaces = 32;

// The size of a bitmap, and the decision whether to use it.
class OutputBitmap {
 public:
  explicit OutputBitmap(const OutputCoordinatesParams& params) {
    if (!HasShape(params.rule)) return;
    places_ = MortonPlaces(params.geometry.dimension, params.out_shape);
    if (!places_.is_valid()) return;
    num_words_ = (int64_t{params.num_samples} << places_.sample_bits()) / kWordPlaces;
    constexpr int64_t kBytesACandidate = 16;  // the two buffers of a sort
    constexpr int64_t kSmallBytes = 1 << 20;
    is_worth_it_ = 4 * num_words_ <= std::max(kBytesACandidate * NumOutputCandidates(params), kSmallBytes);
  }

  // Returns true if the bitmap is no larger than the buffers of a sort of the candidates, or than 1 MiB. The bitmap is
  // then taken to be the faster way.
  bool is_worth_it() const { return is_worth_it_; }
  int64_t num_words() const { return num_words_; }
  const MortonPlaces& places() const { return places_; }

 private:
  MortonPlaces places_;
  int64_t num_words_ = 0;
  bool is_worth_it_ = false;
};

// WordMarker sets bits of the bitmap. It collects the bits of one word before it writes them, since the outputs of an
// input are close together and often share a word.
class WordMarker {
 public:
  __device__ explicit WordMarker(uint32_t* words) : words_(words) {}

  __device__ void Mark(uint64_t place) {
    const uint64_t word = place / kWordPlaces;
    if (word != word_) Flush();
    word_ = word;
    bits_ |= 1u << (place % kWordPlaces);
  }
  // Must be called after the last Mark.
  __device__ void Flush() {
    if (bits_ != 0) atomicOr(&words_[word_], bits_);
    bits_ = 0;
  }

 private:
  uint32_t* words_;
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
                            WordMarker& marker) {
  if constexpr (kAxis == kDimension) {
    marker.Mark(place);
  } else {
    const AxisMarks& axis = axes[kAxis];
    uint64_t on_axis = axis.first;
    for (int32_t number = 0; number < axis.sites.count; ++number) {
      if (axis.sites.Has(number)) MarkProduct<kDimension, kAxis + 1>(places, axes, place | on_axis, marker);
      on_axis = places.AddOnAxis(kAxis, on_axis, axis.step);
    }
  }
}

struct MarkOutputsParams {
  CandidateParams candidates;
  MortonPlaces places;
  uint64_t steps[kMaxDimension];  // MortonPlaces::OnAxis of each axis's site_step
  uint32_t* words;
};

// Marks the outputs of the inputs. A thread handles all candidates of an input, so it computes the values that they
// have in common once. No candidate is outside a key's limits, since the shape is within the limits.
template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads) MarkOutputsKernel(const __grid_constant__ MarkOutputsParams params) {
  using Key = MortonKey<kDimension>;
  const CandidateParams& candidates = params.candidates;
  const int64_t num_rows = NumRows(candidates.in_capacity, candidates.num_in);
  for (int64_t row = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; row < num_rows;
       row += int64_t{gridDim.x} * kBlockThreads) {
    const uint64_t key = candidates.in_keys[row];
    WordMarker marker(params.words);
    if (candidates.num_listed_cells == 0) {
      AxisMarks axes[kDimension];
      const int32_t sample = Key::Sample(key);
#pragma unroll
      for (int axis = 0; axis < kDimension; ++axis) {
        axes[axis].sites = AxisSitesOf<kDimension>(candidates, axis, sample, Key::Coordinate(key, axis));
        axes[axis].first = params.places.OnAxis(axis, axes[axis].sites.first);
        axes[axis].step = params.steps[axis];
      }
      MarkProduct<kDimension>(params.places, axes, params.places.OfSample(sample), marker);
    } else {
      for (int32_t number = 0; number < candidates.candidates_an_input; ++number) {
        int32_t sample = 0;
        Axes sites = {0, 0, 0, 0};
        if (!FindCandidate<kDimension>(candidates, key, number, sample, sites)) continue;
        uint64_t place = params.places.OfSample(sample);
#pragma unroll
        for (int axis = 0; axis < kDimension; ++axis) place |= params.places.OnAxis(axis, sites[axis]);
        marker.Mark(place);
      }
    }
    marker.Flush();
  }
}

// Counts the set bits of block_words words per block. The first block also sets num_beyond_limits, [num_samples], to 0.
__global__ inline void __launch_bounds__(kBlockThreads)
    CountOutputsKernel(const uint32_t* words, int64_t num_words, int64_t block_words, int32_t* block_counts,
                       int64_t* num_beyond_limits, int32_t num_samples) {
  const int64_t begin = blockIdx.x * block_words;
  const int64_t end = min(begin + block_words, num_words);
  int32_t count = 0;
  for (int64_t word = begin + threadIdx.x; word < end; word += kBlockThreads) count += __popc(words[word]);
  const int64_t sum = BlockSum(count);
  if (threadIdx.x == 0) block_counts[blockIdx.x] = static_cast<int32_t>(sum);
  if (blockIdx.x != 0) return;
  for (int32_t sample = threadIdx.x; sample < num_samples; sample += kBlockThreads) num_beyond_limits[sample] = 0;
}

// Writes the keys of the set bits. Blocks have the same words as in CountOutputsKernel, which made block_counts.
__global__ inline void __launch_bounds__(kBlockThreads)
    WriteOutputsKernel(const __grid_constant__ MortonPlaces places, const uint32_t* words, int64_t num_words,
                       int64_t block_words, const int32_t* block_counts, uint64_t* out_keys, int64_t* num_out) {
  using Scan = cub::BlockScan<int32_t, kBlockThreads>;
  __shared__ typename Scan::TempStorage storage;
  const bool is_last = blockIdx.x == gridDim.x - 1;
  if (block_counts[blockIdx.x] == 0 && !is_last) return;
  // A key is the OR of the key of its word's first place (word_key, computed once per word) and the key of its bit's
  // position in the word (bit_keys, computed once per block).
  __shared__ uint64_t bit_keys[kWordPlaces];
  if (threadIdx.x < kWordPlaces) bit_keys[threadIdx.x] = places.Key(threadIdx.x);
  int64_t before = 0;
  for (unsigned block = threadIdx.x; block < blockIdx.x; block += kBlockThreads) before += block_counts[block];
  before = BlockSum(before);  // its barrier also makes bit_keys visible
  const int64_t begin = blockIdx.x * block_words;
  const int64_t end = min(begin + block_words, num_words);
  for (int64_t tile = begin; tile < end; tile += kBlockThreads) {
    const int64_t index = tile + threadIdx.x;
    uint32_t word = index < end ? words[index] : 0;
    int32_t rank = 0, total = 0;
    Scan(storage).ExclusiveSum(__popc(word), rank, total);
    const uint64_t word_key = word == 0 ? 0 : places.Key(static_cast<uint64_t>(index) * kWordPlaces);
    for (int64_t row = before + rank; word != 0; word &= word - 1, ++row) {
      out_keys[row] = word_key | bit_keys[__ffs(static_cast<int>(word)) - 1];
    }
    before += total;
    __syncthreads();  // the storage is used again
  }
  if (is_last && threadIdx.x == 0) *num_out = before;
}

// Launches the kernels. words: scratch, [OutputBitmap::num_words]. block_counts: scratch, [max_blocks].
inline cudaError_t BitmapOutputs(const OutputCoordinatesParams& params, uint32_t* words, int32_t* block_counts,
                                 int64_t max_blocks, cudaStream_t stream) {
  // Only the device knows the number of inputs. Blocks stride over them, since with a large capacity most blocks would
  // have no work.
  constexpr int64_t kMaxMarkBlocks = 1024;
  const OutputBitmap bitmap(params);
  const int64_t num_words = bitmap.num_words();
  VOXSERVE_RETURN_IF_CUDA(cudaMemsetAsync(words, 0, static_cast<size_t>(num_words) * sizeof(uint32_t), stream));
  MarkOutputsParams marks{
      .candidates = CandidatesOf(params, /*bounds=*/nullptr), .places = bitmap.places(), .steps = {}, .words = words};
  for (int axis = 0; axis < params.geometry.dimension; ++axis) {
    marks.steps[axis] = bitmap.places().OnAxis(axis, marks.candidates.axes[axis].site_step);
  }
  const auto mark_blocks = static_cast<unsigned>(std::min<int64_t>(NumBlocks(params.num_in), kMaxMarkBlocks));
  VOXSERVE_RETURN_IF_CUDA(VisitDimension(params.geometry.dimension, [&](auto dimension) {
    MarkOutputsKernel<dimension()><<<mark_blocks, kBlockThreads, 0, stream>>>(marks);
    return LaunchStatus(stream);
  }));
  const int64_t tiles = (num_words + kBlockThreads - 1) / kBlockThreads;
  const int64_t block_words = (tiles + max_blocks - 1) / max_blocks * kBlockThreads;
  const auto blocks = static_cast<unsigned>((num_words + block_words - 1) / block_words);
  CountOutputsKernel<<<blocks, kBlockThreads, 0, stream>>>(words, num_words, block_words, block_counts,
                                                           params.num_beyond_limits, params.num_samples);
  VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
  WriteOutputsKernel<<<blocks, kBlockThreads, 0, stream>>>(bitmap.places(), words, num_words, block_words, block_counts,
                                                           params.out_keys, params.num_out);
  return LaunchStatus(stream);
}

}  // namespace voxserve::kernels::cuda
