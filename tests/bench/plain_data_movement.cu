#include "kernels/epilogue.cuh"
#include "kernels/launch.cuh"
#include "kernels/row_chunks.cuh"
#include "tests/bench/plain_data_movement.h"

namespace voxserve::bench {
namespace {

using kernels::DType;
using kernels::cuda::kBlockThreads;
using kernels::cuda::kVectorBytes;
using kernels::cuda::LoadPack;
using kernels::cuda::Pack;
using kernels::cuda::RowChunks;

// The pairs of one launch, in order: from `begin` on, but for a hole.
struct PairRange {
  int64_t begin = 0;
  int64_t count = 0;  // without the hole
  int64_t hole_begin = 0;
  int64_t hole_size = 0;

  __device__ int64_t Pair(int64_t i) const {
    const int64_t pair = begin + i;
    return pair < hole_begin ? pair : pair + hole_size;
  }
};

template <typename Word>
__global__ void __launch_bounds__(kBlockThreads)
    GatherPairsKernel(RowChunks chunks, PairRange pairs, const int32_t* rows, const Word* from, Word* to) {
  chunks.ForEach([&](int64_t i, int32_t chunk) {
    const int64_t pair = pairs.Pair(i);
    to[pair * chunks.chunks + chunk] = from[int64_t{rows[pair]} * chunks.chunks + chunk];
  });
}

// A row stands once among these pairs.
template <typename T, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    ScatterPairsKernel(RowChunks chunks, PairRange pairs, const int32_t* rows, const T* from, T* to) {
  const int64_t channels = int64_t{chunks.chunks} * kCount;
  chunks.ForEach([&](int64_t i, int32_t chunk) {
    const int64_t pair = pairs.Pair(i);
    T* const sums = to + rows[pair] * channels + chunk * kCount;
    const Pack<T, kCount> added = LoadPack<kCount>(from + pair * channels + chunk * kCount);
    Pack<T, kCount> sum = LoadPack<kCount>(sums);
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      sum.values[c] =
          kernels::cuda::FromFloat<T>(kernels::cuda::ToFloat(sum.values[c]) + kernels::cuda::ToFloat(added.values[c]));
    }
    *reinterpret_cast<Pack<T, kCount>*>(sums) = sum;
  });
}

// A row may stand many times among these pairs.
__global__ void __launch_bounds__(kBlockThreads)
    AtomicScatterPairsKernel(RowChunks chunks, PairRange pairs, const int32_t* rows, const __half* from, __half* to) {
  constexpr int kCount = kVectorBytes / sizeof(__half);
  const int64_t channels = int64_t{chunks.chunks} * kCount;
  chunks.ForEach([&](int64_t i, int32_t chunk) {
    const int64_t pair = pairs.Pair(i);
    auto* const sums = reinterpret_cast<__half2*>(to + rows[pair] * channels + chunk * kCount);
    const Pack<__half, kCount> added = LoadPack<kCount>(from + pair * channels + chunk * kCount);
#pragma unroll
    for (int c = 0; c < kCount; c += 2) {
      atomicAdd(sums + c / 2, __halves2half2(added.values[c], added.values[c + 1]));
    }
  });
}

// Calls launch(range) for the pairs of every launch.
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

template <typename T, int kCount>
cudaError_t ScatterPacks(const PairListParams& params, PlainMovement movement, cudaStream_t stream) {
  return ForEachLaunch(params, movement, [&](const PairRange& range) {
    const RowChunks chunks(range.count, params.channels / kCount);
    ScatterPairsKernel<T, kCount><<<chunks.NumBlocks(), kBlockThreads, 0, stream>>>(
        chunks, range, params.rows, static_cast<const T*>(params.from), static_cast<T*>(params.to));
  });
}

}  // namespace

cudaError_t PlainGather(const PairListParams& params, PlainMovement movement, cudaStream_t stream) {
  const bool is_float32 = params.dtype == DType::kFloat32;
  if (movement == PlainMovement::kScalar) {
    return is_float32 ? GatherWords<uint32_t>(params, movement, stream)
                      : GatherWords<uint16_t>(params, movement, stream);
  }
  const int64_t row_bytes = params.channels * SizeOf(params.dtype);
  if (is_float32 || row_bytes % 8 != 0) return cudaErrorInvalidValue;
  return row_bytes % kVectorBytes == 0 ? GatherWords<uint4>(params, movement, stream)
                                       : GatherWords<uint2>(params, movement, stream);
}

cudaError_t PlainScatter(const PairListParams& params, PlainMovement movement, cudaStream_t stream) {
  constexpr int kCount = kVectorBytes / sizeof(__half);
  const bool is_float32 = params.dtype == DType::kFloat32;
  if (movement == PlainMovement::kScalar) {
    return is_float32 ? ScatterPacks<float, 1>(params, movement, stream)
                      : ScatterPacks<__half, 1>(params, movement, stream);
  }
  if (is_float32 || params.channels % kCount != 0) return cudaErrorInvalidValue;
  if (movement == PlainMovement::kVectorized) return ScatterPacks<__half, kCount>(params, movement, stream);
  return ForEachLaunch(params, movement, [&](const PairRange& range) {
    const RowChunks chunks(range.count, params.channels / kCount);
    AtomicScatterPairsKernel<<<chunks.NumBlocks(), kBlockThreads, 0, stream>>>(
        chunks, range, params.rows, static_cast<const __half*>(params.from), static_cast<__half*>(params.to));
  });
}

}  // namespace voxserve::bench
