#pragma once

// Outputs within a spatial shape without a sort: every candidate sets its cell's bit, and the bits are read in order.
//
// A cell's place is its coordinate's bits interleaved as in a MortonKey, but for those above an axis's size, which are
// 0 in all of them: dropping them keeps Morton order, and a flat box takes no cube's bits. Samples lie one behind the
// other.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "kernels/coordinate_key.h"
#include "kernels/launch.cuh"
#include "kernels/morton_key.h"
#include "kernels/output_candidates.cuh"
#include "kernels/output_coordinates.h"
#include "kernels/row_tiles.cuh"
#include "kernels/visit_dimension.cuh"

namespace voxserve::kernels::cuda {

class OutputBitmap {
 public:
  explicit OutputBitmap(const OutputCoordinatesParams& params)
      : dimension_(params.geometry.dimension), num_samples_(params.num_samples) {
    if (!HasShape(params.rule)) return;
    const CoordinateKey layout(dimension_);
    for (int axis = 0; axis < dimension_; ++axis) {
      if (params.out_shape[axis] < 1 || int64_t{params.out_shape[axis]} > int64_t{layout.max_coordinate()} + 1) return;
      axis_bits_[axis] = std::bit_width(static_cast<uint32_t>(params.out_shape[axis] - 1));
      sample_bits_ += axis_bits_[axis];
    }
    sample_bits_ = std::max(sample_bits_, kMinSampleBits);
    constexpr int64_t kBytesACandidate = 16;  // that a sort takes
    is_worth_it_ = sample_bits_ < 40 &&
                   4 * num_words() <= std::max(kBytesACandidate * NumOutputCandidates(params), int64_t{kSmallBytes});
  }

  bool is_worth_it() const { return is_worth_it_; }
  int64_t num_words() const { return (int64_t{num_samples_} << sample_bits_) / 32; }

  template <int kDimension>
  __device__ int64_t Place(int32_t sample, const Axes& coordinate) const {
    uint64_t place = 0;
    int bits = 0;
    for (int bit = 0; bits < sample_bits_ && bit < kMaxAxisBits; ++bit) {
#pragma unroll
      for (int axis = kDimension - 1; axis >= 0; --axis) {
        if (bit >= axis_bits_[axis]) continue;
        place |= static_cast<uint64_t>(coordinate[axis] >> bit & 1) << bits++;
      }
    }
    return static_cast<int64_t>(static_cast<uint64_t>(sample) << sample_bits_ | place);
  }

  // The MortonKey of what lies there.
  template <int kDimension>
  __device__ uint64_t Key(int64_t place) const {
    Axes coordinate = {0, 0, 0, 0};
    int bits = 0;
    for (int bit = 0; bits < sample_bits_ && bit < kMaxAxisBits; ++bit) {
#pragma unroll
      for (int axis = kDimension - 1; axis >= 0; --axis) {
        if (bit >= axis_bits_[axis]) continue;
        coordinate[axis] |= static_cast<int32_t>(place >> bits++ & 1) << bit;
      }
    }
    return MortonKey<kDimension>::Pack(static_cast<int32_t>(place >> sample_bits_), coordinate);
  }

 private:
  static constexpr int kMinSampleBits = 5;  // whole words
  static constexpr int kMaxAxisBits = 31;
  static constexpr int kSmallBytes = 1 << 20;

  int dimension_;
  int32_t num_samples_;
  int axis_bits_[kMaxDimension] = {0, 0, 0, 0};
  int sample_bits_ = 0;
  bool is_worth_it_ = false;
};

template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads)
    MarkOutputsKernel(const __grid_constant__ CandidateParams params, OutputBitmap bitmap, uint32_t* words) {
  const int64_t num_candidates = NumRows(params.in_capacity, params.num_in) * params.candidates_an_input;
  for (int64_t index = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; index < num_candidates;
       index += int64_t{gridDim.x} * kBlockThreads) {
    const int64_t row = index / params.candidates_an_input;
    const auto number = static_cast<int32_t>(index - row * params.candidates_an_input);
    int32_t sample = 0;
    Axes sites = {0, 0, 0, 0};
    if (!FindCandidate<kDimension>(params, params.in_keys[row], number, sample, sites)) continue;
    const int64_t place = bitmap.Place<kDimension>(sample, sites);
    atomicOr(&words[place >> 5], 1u << (place & 31));
  }
}

// A block counts the bits of block_words words.
__global__ inline void __launch_bounds__(kBlockThreads)
    CountOutputsKernel(const uint32_t* words, int64_t num_words, int64_t block_words, int32_t* block_counts) {
  const int64_t begin = blockIdx.x * block_words;
  const int64_t end = min(begin + block_words, num_words);
  int32_t count = 0;
  for (int64_t word = begin + threadIdx.x; word < end; word += kBlockThreads) count += __popc(words[word]);
  const int64_t sum = BlockSum(count);
  if (threadIdx.x == 0) block_counts[blockIdx.x] = static_cast<int32_t>(sum);
}

template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads)
    WriteOutputsKernel(OutputBitmap bitmap, const uint32_t* words, int64_t num_words, int64_t block_words,
                       const int32_t* block_counts, uint64_t* out_keys, int64_t* num_out) {
  using Scan = cub::BlockScan<int32_t, kBlockThreads>;
  __shared__ typename Scan::TempStorage storage;
  const bool is_last = blockIdx.x == gridDim.x - 1;
  if (block_counts[blockIdx.x] == 0 && !is_last) return;
  int64_t before = 0;
  for (unsigned block = threadIdx.x; block < blockIdx.x; block += kBlockThreads) before += block_counts[block];
  before = BlockSum(before);
  const int64_t begin = blockIdx.x * block_words;
  const int64_t end = min(begin + block_words, num_words);
  for (int64_t tile = begin; tile < end; tile += kBlockThreads) {
    const int64_t index = tile + threadIdx.x;
    uint32_t word = index < end ? words[index] : 0;
    int32_t rank = 0, total = 0;
    Scan(storage).ExclusiveSum(__popc(word), rank, total);
    for (int64_t row = before + rank; word != 0; word &= word - 1, ++row) {
      out_keys[row] = bitmap.Key<kDimension>(index * 32 + __ffs(static_cast<int>(word)) - 1);
    }
    before += total;
    __syncthreads();  // the storage is filled anew
  }
  if (is_last && threadIdx.x == 0) *num_out = before;
}

// words: [OutputBitmap::num_words]; block_counts: [max_blocks].
inline cudaError_t BitmapOutputs(const OutputCoordinatesParams& params, uint32_t* words, int32_t* block_counts,
                                 int64_t max_blocks, cudaStream_t stream) {
  constexpr int64_t kMaxMarkBlocks = 4096;  // the candidates that there are number on the device
  const OutputBitmap bitmap(params);
  const int64_t num_words = bitmap.num_words();
  VOXSERVE_RETURN_IF_CUDA(cudaMemsetAsync(words, 0, static_cast<size_t>(num_words) * sizeof(uint32_t), stream));
  const CandidateParams candidates = CandidatesOf(params, /*bounds=*/nullptr);
  const auto mark_blocks =
      static_cast<unsigned>(std::min<int64_t>(NumBlocks(NumOutputCandidates(params)), kMaxMarkBlocks));
  const int64_t tiles = (num_words + kBlockThreads - 1) / kBlockThreads;
  const int64_t block_words = (tiles + max_blocks - 1) / max_blocks * kBlockThreads;
  const auto blocks = static_cast<unsigned>((num_words + block_words - 1) / block_words);
  return VisitDimension(params.geometry.dimension, [&](auto dimension) {
    MarkOutputsKernel<dimension()><<<mark_blocks, kBlockThreads, 0, stream>>>(candidates, bitmap, words);
    VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
    CountOutputsKernel<<<blocks, kBlockThreads, 0, stream>>>(words, num_words, block_words, block_counts);
    VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
    WriteOutputsKernel<dimension()><<<blocks, kBlockThreads, 0, stream>>>(
        bitmap, words, num_words, block_words, block_counts, params.out_keys, params.num_out);
    return LaunchStatus(stream);
  });
}

}  // namespace voxserve::kernels::cuda
