#include "kernels/epilogue.cuh"
#include "kernels/gather_scatter.h"
#include "kernels/launch.cuh"
#include "kernels/row_chunks.cuh"

namespace voxserve::kernels::cuda {
namespace {

// Offsets whose table entries (and, in a scatter, rows) a thread has under way together: 27 = 3 * 9.
constexpr int kOffsetsInFlight = 9;

template <typename Word>
struct GatherArguments {
  RowChunks rows;
  const int32_t* pairs;  // [num_offsets, capacity]
  int64_t capacity;
  int32_t num_offsets;
  const Word* from;
  int64_t from_pitch;  // words
  Word* to;
  OffsetShifts shifts;
};

template <typename T, typename Out>
struct ScatterArguments {
  RowChunks rows;
  const int32_t* pairs;  // [num_offsets, capacity]
  int64_t capacity;
  int32_t num_offsets;
  int32_t channels;
  const T* from;
  Out* to;
  int64_t to_pitch;
  TypedEpilogue<T, float> epilogue;
  OffsetShifts shifts;
};

// The buffer rows of offsets [first, first + kOffsetsInFlight) for one row of the table; negative: none.
__device__ void LoadBufferRows(const int32_t* pairs_of_row, int64_t capacity, int32_t num_offsets,
                               const OffsetShifts& shifts, int32_t first, int64_t (&buffer_rows)[kOffsetsInFlight]) {
  int32_t pairs[kOffsetsInFlight];
#pragma unroll
  for (int i = 0; i < kOffsetsInFlight; ++i) {
    const int32_t k = first + i;
    pairs[i] = k < num_offsets && shifts.shift[k] != OffsetShifts::kNotMoved ? pairs_of_row[k * capacity] : -1;
  }
#pragma unroll
  for (int i = 0; i < kOffsetsInFlight; ++i) buffer_rows[i] = pairs[i] < 0 ? -1 : pairs[i] + shifts.shift[first + i];
}

// A thread reads one word of an input row and writes it to the row's pairs.
template <typename Word>
__global__ void __launch_bounds__(kBlockThreads) GatherKernel(const __grid_constant__ GatherArguments<Word> arguments) {
  arguments.rows.ForEach([&](int64_t row, int32_t chunk) {
    const Word word = arguments.from[row * arguments.from_pitch + chunk];
    for (int32_t first = 0; first < arguments.num_offsets; first += kOffsetsInFlight) {
      int64_t buffer_rows[kOffsetsInFlight];
      LoadBufferRows(arguments.pairs + row, arguments.capacity, arguments.num_offsets, arguments.shifts, first,
                     buffer_rows);
#pragma unroll
      for (int i = 0; i < kOffsetsInFlight; ++i) {
        if (buffer_rows[i] >= 0) arguments.to[buffer_rows[i] * arguments.rows.chunks + chunk] = word;
      }
    }
  });
}

// A thread sums kCount channels of an output row over its pairs.
template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    ScatterKernel(const __grid_constant__ ScatterArguments<T, Out> arguments) {
  arguments.rows.ForEach([&](int64_t row, int32_t chunk) {
    const int32_t channel = chunk * kCount;
    float sums[kCount] = {};
    for (int32_t first = 0; first < arguments.num_offsets; first += kOffsetsInFlight) {
      int64_t buffer_rows[kOffsetsInFlight];
      LoadBufferRows(arguments.pairs + row, arguments.capacity, arguments.num_offsets, arguments.shifts, first,
                     buffer_rows);
      Pack<T, kCount> products[kOffsetsInFlight];
#pragma unroll
      for (int i = 0; i < kOffsetsInFlight; ++i) {
        products[i] = {};
        if (buffer_rows[i] >= 0) {
          products[i] = LoadPack<kCount>(arguments.from + buffer_rows[i] * arguments.channels + channel);
        }
      }
#pragma unroll
      for (int i = 0; i < kOffsetsInFlight; ++i) {
#pragma unroll
        for (int c = 0; c < kCount; ++c) sums[c] += ToFloat(products[i].values[c]);
      }
    }
    arguments.epilogue.Store(sums, row, channel, arguments.to + row * arguments.to_pitch + channel);
  });
}

template <typename Word>
cudaError_t LaunchGather(const GatherAllOffsetsParams& params, cudaStream_t stream) {
  const int64_t value_bytes = SizeOf(params.dtype);
  const auto word_bytes = static_cast<int64_t>(sizeof(Word));
  const GatherArguments<Word> arguments{
      .rows = RowChunks(params.tables.num_in_rows, params.channels * value_bytes / word_bytes),
      .pairs = params.tables.in_pairs,
      .capacity = params.tables.in_capacity,
      .num_offsets = params.tables.num_offsets,
      .from = static_cast<const Word*>(params.from),
      .from_pitch = params.from_pitch * value_bytes / word_bytes,
      .to = static_cast<Word*>(params.to),
      .shifts = params.shifts};
  GatherKernel<Word><<<arguments.rows.NumBlocks(), kBlockThreads, 0, stream>>>(arguments);
  return LaunchStatus(stream);
}

template <typename T, typename Out, int kCount>
cudaError_t LaunchScatter(const ScatterAllOffsetsParams& params, cudaStream_t stream) {
  const ScatterArguments<T, Out> arguments{.rows = RowChunks(params.tables.num_out_rows, params.channels / kCount),
                                           .pairs = params.tables.out_pairs,
                                           .capacity = params.tables.out_capacity,
                                           .num_offsets = params.tables.num_offsets,
                                           .channels = params.channels,
                                           .from = static_cast<const T*>(params.from),
                                           .to = static_cast<Out*>(params.to),
                                           .to_pitch = params.to_pitch,
                                           .epilogue = TypedEpilogue<T, float>(params.epilogue),
                                           .shifts = params.shifts};
  ScatterKernel<T, Out, kCount><<<arguments.rows.NumBlocks(), kBlockThreads, 0, stream>>>(arguments);
  return LaunchStatus(stream);
}

}  // namespace

cudaError_t GatherAllOffsets(const GatherAllOffsetsParams& params, cudaStream_t stream) {
  if (params.tables.num_in_rows == 0 || params.tables.num_offsets == 0 || params.channels == 0) return cudaSuccess;
  if (params.tables.num_offsets > kMaxKernelVolume) return cudaErrorInvalidValue;
  const NvtxRange range("GatherAllOffsets");
  const int64_t value_bytes = SizeOf(params.dtype);
  const int64_t word_bytes = CommonAlignment()
                                 .Add(params.from)
                                 .Add(params.from_pitch * value_bytes)
                                 .Add(params.to)
                                 .Add(params.channels * value_bytes)
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
  if (params.tables.num_out_rows == 0 || params.channels == 0) return cudaSuccess;
  if (params.tables.num_offsets > kMaxKernelVolume) return cudaErrorInvalidValue;
  const NvtxRange range("ScatterAllOffsets");
  CommonAlignment alignment;
  alignment.Add(params.from)
      .Add(params.channels * SizeOf(params.dtype))
      .Add(params.to)
      .Add(params.to_pitch * SizeOf(params.out_dtype));
  AddEpilogue(params.epilogue, params.dtype, alignment);
  return VisitInAndOutType(params.dtype, params.out_dtype, [&](auto in, auto out) {
    using T = decltype(in);
    using Out = decltype(out);
    if (alignment.bytes() == kVectorBytes) return LaunchScatter<T, Out, kVectorBytes / sizeof(T)>(params, stream);
    return LaunchScatter<T, Out, 1>(params, stream);
  });
}

}  // namespace voxserve::kernels::cuda
