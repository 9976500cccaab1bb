#pragma once

// Launches kernels that compute feature rows from feature rows. The matrices determine the types, the number of values
// that a thread moves at a time, and the blocks. Only .cu files include this header.
//
//   cudaError_t Double(const DoubleParams& params, cudaStream_t stream) {
//     return LaunchRows("Double", params.in, params.out, CommonAlignment(), [&](const auto& rows) {
//       DoubleKernel<<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params);
//       return LaunchStatus(stream);
//     });
//   }
//
// The kernel is a template over the parameters of RowsOf:
//
//   template <typename T, typename Out, int kCount>
//   __global__ void __launch_bounds__(kBlockThreads)
//       DoubleKernel(const RowsOf<T, Out, kCount> rows, const __grid_constant__ DoubleParams params) {
//     rows.ForEach([&](int64_t row, int32_t channel) {
//       float values[kCount];
//       rows.Load(params.in, row, channel, values);
//       for (float& value : values) value *= 2;
//       rows.Store(values, params.out, row, channel);
//     });
//   }

#include <cstdint>

#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/core/rows.h"

namespace voxserve::kernels::cuda {

// The output's rows. A thread computes kCount values of type Out at a time, from values of type T.
template <typename T, typename Out, int kCount>
struct RowsOf {
  RowChunks chunks;

  explicit RowsOf(const Rows& out) : chunks(out.capacity, out.channels / kCount, out.num_rows) {}

  unsigned NumBlocks() const { return chunks.NumBlocks(); }

  // Calls visit(row, channel) for the calling thread's values; channel is the first one's.
  template <typename Visitor>
  __device__ void ForEach(const Visitor& visit) const {
    chunks.ForEach([&](int64_t row, int32_t chunk) { visit(row, chunk * kCount); });
  }

  // Reads values of a row whose type is T, or another type if given.
  template <typename Value = T>
  __device__ void Load(const ConstRows& in, int64_t row, int32_t channel, float (&values)[kCount]) const {
    const Pack<Value, kCount> read = LoadPack<kCount>(static_cast<const Value*>(in.data) + row * in.pitch + channel);
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = ToFloat(read.values[i]);
  }
  __device__ Out* Place(const Rows& out, int64_t row, int32_t channel) const {
    return static_cast<Out*>(out.data) + row * out.pitch + channel;
  }
  __device__ void Store(const float (&values)[kCount], const Rows& out, int64_t row, int32_t channel) const {
    Pack<Out, kCount> result;
#pragma unroll
    for (int i = 0; i < kCount; ++i) result.values[i] = FromFloat<Out>(values[i]);
    *reinterpret_cast<Pack<Out, kCount>*>(Place(out, row, channel)) = result;
  }
};

// Returns launch(RowsOf<T, Out, kCount>) for the types of `in` and `out`; does nothing if there are no values. out's
// type is in's or float32.
//
// kCount is the number of in's values in 16 bytes, if `in`, `out` and `others` are aligned to 16 bytes; else 1.
// `others` is the alignment of everything else that a thread reads or writes. An `in` without data does not count: only
// its type matters. name: the launcher's name for the profiler, a string literal.
template <typename Launch>
cudaError_t LaunchRows(const char* name, const ConstRows& in, const Rows& out, CommonAlignment others,
                       const Launch& launch) {
  if (out.capacity == 0 || out.channels == 0) return cudaSuccess;
  const NvtxRange range(name);
  const int64_t alignment = others.Add(in).Add(out).Add(out.channels * SizeOf(in.dtype)).bytes();
  return VisitInAndOutType(in.dtype, out.dtype, [&](auto in_value, auto out_value) {
    using T = decltype(in_value);
    using Out = decltype(out_value);
    if (alignment == kVectorBytes) return launch(RowsOf<T, Out, kVectorBytes / sizeof(T)>(out));
    return launch(RowsOf<T, Out, 1>(out));
  });
}

}  // namespace voxserve::kernels::cuda
