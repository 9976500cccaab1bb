#include <limits>

#include "kernels/core/epilogue.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "tests/bench/plain_data_movement.h"

namespace voxserve::bench {
namespace {

using kernels::DType;
using kernels::cuda::kBlockThreads;
using kernels::cuda::kVectorBytes;
using kernels::cuda::LoadPack;
using kernels::cuda::Pack;
using kernels::cuda::RowChunks;

constexpr int kVectorHalves = kVectorBytes / sizeof(__half);

// The pairs that one launch moves: `count` pairs from `begin` on. The pairs of the hole (the identity offset's) are
// left out.
struct PairRange {
  int64_t begin = 0;
  int64_t count = 0;  // without those of the hole
  int64_t hole_begin = 0;
  int64_t hole_size = 0;

  __device__ int64_t Pair(int64_t i) const {
    const int64_t pair = begin + i;
    return pair < hole_begin ? pair : pair + hole_size;
  }
};

// The pair and channel of the value that a thread moves. channels * pairs.count must be below 2^31.
struct ValueIndex {
  __device__ explicit ValueIndex(uint32_t channels) {
    const uint32_t value = blockIdx.x * kBlockThreads + threadIdx.x;
    number = value / channels;
    channel = value - number * channels;
  }
  uint32_t number;  // index of the pair in its range
  uint32_t channel;
};

template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    GatherValuesKernel(uint32_t channels, PairRange pairs, const int32_t* rows, const T* from, T* to) {
  const ValueIndex index(channels);
  if (index.number >= pairs.count) return;
  const int64_t pair = pairs.Pair(index.number);
  to[pair * channels + index.channel] = from[int64_t{rows[pair]} * channels + index.channel];
}

// Each row must occur at most once among these pairs.
template <typename T>
__global__ void __launch_bounds__(kBlockThreads)
    ScatterValuesKernel(uint32_t channels, PairRange pairs, const int32_t* rows, const T* from, T* to) {
  const ValueIndex index(channels);
  if (index.number >= pairs.count) return;
  const int64_t pair = pairs.Pair(index.number);
  T* const sum = to + int64_t{rows[pair]} * channels + index.channel;
  const T added = from[pair * channels + index.channel];
  *sum = kernels::cuda::FromFloat<T>(kernels::cuda::ToFloat(*sum) + kernels::cuda::ToFloat(added));
}

template <typename Word>
__global__ void __launch_bounds__(kBlockThreads)
    GatherPairsKernel(RowChunks chunks, PairRange pairs, const int32_t* rows, const Word* from, Word* to) {
  chunks.ForEach([&](int64_t i, int32_t chunk) {
    const int64_t pair = pairs.Pair(i);
    to[pair * chunks.chunks + chunk] = from[int64_t{rows[pair]} * chunks.chunks + chunk];
  });
}

// Each row must occur at most once among these pairs.
__global__ void __launch_bounds__(kBlockThreads)
    ScatterPairsKernel(RowChunks chunks, PairRange pairs, const int32_t* rows, const __half* from, __half* to) {
  const int64_t channels = int64_t{chunks.chunks} * kVectorHalves;
  chunks.ForEach([&](int64_t i, int32_t chunk) {
    const int64_t pair = pairs.Pair(i);
    __half* const sums = to + rows[pair] * channels + chunk * kVectorHalves;
    const Pack<__half, kVectorHalves> added = LoadPack<kVectorHalves>(from + pair * channels + chunk * kVectorHalves);
    Pack<__half, kVectorHalves> sum = LoadPack<kVectorHalves>(sums);
#pragma unroll
    for (int c = 0; c < kVectorHalves; ++c) {
      sum.values[c] = kernels::cuda::FromFloat<__half>(kernels::cuda::ToFloat(sum.values[c]) +
                                                       kernels::cuda::ToFloat(added.values[c]));
    }
    *reinterpret_cast<Pack<__half, kVectorHalves>*>(sums) = sum;
  });
}

// A row may occur many times among these pairs.
__global__ void __launch_bounds__(kBlockThreads)
    AtomicScatterPairsKernel(RowChunks chunks, PairRange pairs, const int32_t* rows, const __half* from, __half* to) {
  const int64_t channels = int64_t{chunks.chunks} * kVectorHalves;
  chunks.ForEach([&](int64_t i, int32_t chunk) {
    const int64_t pair = pairs.Pair(i);
    auto* const sums = reinterpret_cast<__half2*>(to + rows[pair] * channels + chunk * kVectorHalves);
    const Pack<__half, kVectorHalves> added = LoadPack<kVectorHalves>(from + pair * channels + chunk * kVectorHalves);
#pragma unroll
    for (int c = 0; c < kVectorHalves; c += 2) {
      atomicAdd(sums + c / 2, __halves2half2(added.values[c], added.values[c + 1]));
    }
  });
}

// Calls launch(range) once for all pairs if movement is kFused, else once for each offset, without the identity offset.
template <typename Launch>
cudaError_t ForEachLaunch(const PairListParams& params, PlainMovement movement, const Launch& launch) {
  const int64_t num_pairs = params.offset_begin[params.num_offsets];
  if (movement == PlainMovement::kFused) {
    PairRange range{.count = num_pairs, .hole_begin = num_pairs};
    if (params.identity_offset >= 0) {
      range.hole_begin = params.offset_begin[params.identity_offset];
      range.hole_size = params.offset_begin[params.identity_offset + 1] - range.hole_begin;
      range.count -= range.hole_size;
    }
    if (range.count > 0) launch(range);
    return cudaPeekAtLastError();
  }
  for (int32_t k = 0; k < params.num_offsets; ++k) {
    const int64_t begin = params.offset_begin[k], end = params.offset_begin[k + 1];
    if (k == params.identity_offset || begin == end) continue;
    launch(PairRange{.begin = begin, .count = end - begin, .hole_begin = end});
  }
  return cudaPeekAtLastError();
}

template <typename Word>
cudaError_t GatherWords(const PairListParams& params, PlainMovement movement, cudaStream_t stream) {
  const int64_t words = params.channels * SizeOf(params.dtype) / static_cast<int64_t>(sizeof(Word));
  return ForEachLaunch(params, movement, [&](const PairRange& range) {
    const RowChunks chunks(range.count, words);
    GatherPairsKernel<Word><<<chunks.NumBlocks(), kBlockThreads, 0, stream>>>(
        chunks, range, params.rows, static_cast<const Word*>(params.from), static_cast<Word*>(params.to));
  });
}

template <typename T>
cudaError_t MoveValues(const PairListParams& params, bool is_gather, cudaStream_t stream) {
  const int64_t num_values = params.offset_begin[params.num_offsets] * params.channels;
  if (num_values > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidValue;
  return ForEachLaunch(params, PlainMovement::kScalar, [&](const PairRange& range) {
    const auto kernel = is_gather ? GatherValuesKernel<T> : ScatterValuesKernel<T>;
    kernel<<<kernels::cuda::NumBlocks(range.count * params.channels), kBlockThreads, 0, stream>>>(
        static_cast<uint32_t>(params.channels), range, params.rows, static_cast<const T*>(params.from),
        static_cast<T*>(params.to));
  });
}

cudaError_t MoveValues(const PairListParams& params, bool is_gather, cudaStream_t stream) {
  return params.dtype == DType::kFloat32 ? MoveValues<float>(params, is_gather, stream)
                                         : MoveValues<__half>(params, is_gather, stream);
}

}  // namespace

cudaError_t PlainGather(const PairListParams& params, PlainMovement movement, cudaStream_t stream) {
  if (movement == PlainMovement::kScalar) return MoveValues(params, /*is_gather=*/true, stream);
  const bool is_float32 = params.dtype == DType::kFloat32;
  const int64_t row_bytes = params.channels * SizeOf(params.dtype);
  if (is_float32 || row_bytes % 8 != 0) return cudaErrorInvalidValue;
  return row_bytes % kVectorBytes == 0 ? GatherWords<uint4>(params, movement, stream)
                                       : GatherWords<uint2>(params, movement, stream);
}

cudaError_t PlainScatter(const PairListParams& params, PlainMovement movement, cudaStream_t stream) {
  if (movement == PlainMovement::kScalar) return MoveValues(params, /*is_gather=*/false, stream);
  if (params.dtype == DType::kFloat32 || params.channels % kVectorHalves != 0) return cudaErrorInvalidValue;
  const auto kernel = movement == PlainMovement::kVectorized ? ScatterPairsKernel : AtomicScatterPairsKernel;
  return ForEachLaunch(params, movement, [&](const PairRange& range) {
    const RowChunks chunks(range.count, params.channels / kVectorHalves);
    kernel<<<chunks.NumBlocks(), kBlockThreads, 0, stream>>>(
        chunks, range, params.rows, static_cast<const __half*>(params.from), static_cast<__half*>(params.to));
  });
}

}  // namespace voxserve::bench
