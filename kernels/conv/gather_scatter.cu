#include "kernels/conv/gather_scatter.h"
#include "kernels/conv/pair_tables.h"
#include "kernels/core/epilogue.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"

namespace voxserve::kernels::cuda {
namespace {

// The number of pairs of a row whose table entries and buffer rows a thread loads at the same time.
constexpr int kPairsInFlight = 4;
// Loads depend on earlier loads (mask, table, row), so many threads must run at once to hide the latency. These numbers
// of resident blocks per multiprocessor make the compiler limit the registers of a thread, so that the blocks fit.
constexpr int kGatherBlocksAnSm = 6;
template <typename T>
constexpr int kScatterBlocksAnSm = 5;
template <>
constexpr int kScatterBlocksAnSm<__nv_bfloat16> = 4;  // type conversions need more registers

constexpr int32_t kMaxMaskWords = MaskWords(kMaxKernelVolume);

// One side of the pair tables, and the places of its pairs' rows in the dense buffer.
struct PairRows {
  const int32_t* pairs;  // [num_offsets, capacity]
  int64_t capacity;
  const uint32_t* masks;  // [rows, mask_words]
  int32_t num_offsets;
  int32_t mask_words;
  uint32_t moved[kMaxMaskWords];  // the offsets that are copied, as bits
  OffsetShifts shifts;

  PairRows(const int32_t* p, int64_t c, const uint32_t* m, int32_t k, const OffsetShifts& s)
      : pairs(p), capacity(c), masks(m), num_offsets(k), mask_words(MaskWords(k)), moved{}, shifts(s) {
    for (int32_t offset = 0; offset < k; ++offset) {
      if (s.shift[offset] != OffsetShifts::kNotMoved) moved[offset / 32] |= 1u << (offset % 32);
    }
  }

  // Copies the shifts to shared memory, where the threads of a warp can read different shifts at once. All threads of
  // the block call it.
  __device__ void LoadShifts(int32_t (&shared)[kMaxKernelVolume]) const {
    for (auto k = static_cast<int32_t>(threadIdx.x); k < num_offsets; k += kBlockThreads) shared[k] = shifts.shift[k];
    __syncthreads();
  }

  // Calls visit(buffer_rows, count) for the row's pairs, kPairsInFlight at a time, in ascending order of offsets.
  template <typename Visitor>
  __device__ void ForEachPair(int64_t row, const int32_t (&shared)[kMaxKernelVolume], const Visitor& visit) const {
    for (int32_t word = 0; word < mask_words; ++word) {
      uint32_t bits = masks[row * mask_words + word] & moved[word];
      while (bits != 0) {
        int32_t offset[kPairsInFlight];
        int32_t pair[kPairsInFlight];
        int32_t count = 0;
#pragma unroll
        for (int i = 0; i < kPairsInFlight; ++i) {
          offset[i] = word * 32 + __ffs(static_cast<int>(bits)) - 1;
          if (bits != 0) {
            pair[i] = pairs[offset[i] * capacity + row];
            count = i + 1;
          }
          bits &= bits - 1;
        }
#pragma unroll
        for (int i = 0; i < kPairsInFlight; ++i) {
          if (i < count) pair[i] += shared[offset[i]];
        }
        visit(pair, count);
      }
    }
  }
};

template <typename Word>
struct GatherArguments {
  RowChunks rows;
  const Word* from;
  int64_t from_pitch;  // in words
  Word* to;
  PairRows pair_rows;
};

template <typename T, typename Out>
struct ScatterArguments {
  RowChunks rows;
  int32_t channels;
  const T* from;
  Out* to;
  int64_t to_pitch;
  TypedEpilogue<T, float> epilogue;
  PairRows pair_rows;
};

// Copies input rows: a thread reads one word of a row and writes it to the buffer rows of all the row's pairs.
template <typename Word>
__global__ void __launch_bounds__(kBlockThreads, BlocksAnSm(kGatherBlocksAnSm))
    GatherKernel(const __grid_constant__ GatherArguments<Word> arguments) {
  __shared__ int32_t shifts[kMaxKernelVolume];
  arguments.pair_rows.LoadShifts(shifts);
  arguments.rows.ForEach([&](int64_t row, int32_t chunk) {
    const Word word = arguments.from[row * arguments.from_pitch + chunk];
    arguments.pair_rows.ForEachPair(row, shifts, [&](const int32_t(&buffer_rows)[kPairsInFlight], int32_t count) {
#pragma unroll
      for (int i = 0; i < kPairsInFlight; ++i) {
        if (i < count) arguments.to[int64_t{buffer_rows[i]} * arguments.rows.chunks + chunk] = word;
      }
    });
  });
}

// Sums products: a thread sums kCount channels of an output row over the row's pairs.
template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads, BlocksAnSm(kScatterBlocksAnSm<T>))
    ScatterKernel(const __grid_constant__ ScatterArguments<T, Out> arguments) {
  __shared__ int32_t shifts[kMaxKernelVolume];
  arguments.pair_rows.LoadShifts(shifts);
  arguments.rows.ForEach([&](int64_t row, int32_t chunk) {
    const int32_t channel = chunk * kCount;
    float sums[kCount] = {};
    arguments.pair_rows.ForEachPair(row, shifts, [&](const int32_t(&buffer_rows)[kPairsInFlight], int32_t count) {
      Pack<T, kCount> products[kPairsInFlight];
#pragma unroll
      for (int i = 0; i < kPairsInFlight; ++i) {
        if (i < count)
          products[i] = LoadPack<kCount>(arguments.from + int64_t{buffer_rows[i]} * arguments.channels + channel);
      }
#pragma unroll
      for (int i = 0; i < kPairsInFlight; ++i) {
        if (i < count) {
#pragma unroll
          for (int c = 0; c < kCount; ++c) sums[c] += ToFloat(products[i].values[c]);
        }
      }
    });
    arguments.epilogue.Store(sums, row, channel, arguments.to + row * arguments.to_pitch + channel);
  });
}

template <typename Word>
cudaError_t LaunchGather(const GatherAllOffsetsParams& params, cudaStream_t stream) {
  const ConstRows& from = params.from;
  const auto word_bytes = static_cast<int64_t>(sizeof(Word));
  const GatherArguments<Word> arguments{
      .rows = RowChunks(params.tables.num_in_rows, from.channels * SizeOf(from.dtype) / word_bytes),
      .from = static_cast<const Word*>(from.data),
      .from_pitch = from.pitch_bytes() / word_bytes,
      .to = static_cast<Word*>(params.to),
      .pair_rows = PairRows(params.tables.in_pairs, params.tables.in_capacity, params.tables.in_masks,
                            params.tables.num_offsets, params.shifts)};
  GatherKernel<Word><<<arguments.rows.NumBlocks(), kBlockThreads, 0, stream>>>(arguments);
  return LaunchStatus(stream);
}

template <typename T, typename Out, int kCount>
cudaError_t LaunchScatter(const ScatterAllOffsetsParams& params, cudaStream_t stream) {
  const ScatterArguments<T, Out> arguments{
      .rows = RowChunks(params.tables.num_out_rows, params.to.channels / kCount),
      .channels = params.to.channels,
      .from = static_cast<const T*>(params.from),
      .to = static_cast<Out*>(params.to.data),
      .to_pitch = params.to.pitch,
      .epilogue = TypedEpilogue<T, float>(params.epilogue),
      .pair_rows = PairRows(params.tables.out_pairs, params.tables.out_capacity, params.tables.out_masks,
                            params.tables.num_offsets, params.shifts)};
  ScatterKernel<T, Out, kCount><<<arguments.rows.NumBlocks(), kBlockThreads, 0, stream>>>(arguments);
  return LaunchStatus(stream);
}

}  // namespace

cudaError_t GatherAllOffsets(const GatherAllOffsetsParams& params, cudaStream_t stream) {
  const ConstRows& from = params.from;
  if (params.tables.num_in_rows == 0 || params.tables.num_offsets == 0 || from.channels == 0) return cudaSuccess;
  if (params.tables.num_offsets > kMaxKernelVolume) return cudaErrorInvalidValue;
  const NvtxRange range("GatherAllOffsets");
  const int64_t word_bytes = CommonAlignment()
                                 .Add(from.data)
                                 .Add(from.pitch_bytes())
                                 .Add(params.to)
                                 .Add(from.channels * SizeOf(from.dtype))
                                 .bytes();
  switch (word_bytes) {
    case 16:
      return LaunchGather<uint4>(params, stream);
    case 8:
      return LaunchGather<uint2>(params, stream);
    case 4:
      return LaunchGather<uint32_t>(params, stream);
    case 2:
      return LaunchGather<uint16_t>(params, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t ScatterAllOffsets(const ScatterAllOffsetsParams& params, cudaStream_t stream) {
  const Rows& to = params.to;
  if (params.tables.num_out_rows == 0 || to.channels == 0) return cudaSuccess;
  if (params.tables.num_offsets > kMaxKernelVolume) return cudaErrorInvalidValue;
  const NvtxRange range("ScatterAllOffsets");
  CommonAlignment alignment;
  alignment.Add(params.from).Add(to.channels * SizeOf(params.dtype)).Add(to.data).Add(to.pitch_bytes());
  AddEpilogue(params.epilogue, alignment);
  return VisitInAndOutType(params.dtype, to.dtype, [&](auto in, auto out) {
    using T = decltype(in);
    using Out = decltype(out);
    if (alignment.bytes() == kVectorBytes) return LaunchScatter<T, Out, kVectorBytes / sizeof(T)>(params, stream);
    return LaunchScatter<T, Out, 1>(params, stream);
  });
}

}  // namespace voxserve::kernels::cuda
