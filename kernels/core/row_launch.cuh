#pragma once

// LaunchRows launches a kernel that computes feature rows from feature rows. It chooses the kernel's types, the number
// of values that a thread moves at a time, and the number of blocks, all from the matrices. Only .cu files include this
// header.
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

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/core/rows.h"

namespace voxserve::kernels::cuda {

// The bits of a pack, for a thread that loads several packs before it uses the first one. If they fill registers of 32
// bits, they are such registers: single values of 16 bits would take a register each, and the thread would wait for
// each pack at once to take them apart.
template <typename T, int kCount>
using PackBits =
    std::conditional_t<sizeof(T) * kCount % sizeof(uint32_t) == 0,
                       Pack<uint32_t, std::max<int>(sizeof(T) * kCount / sizeof(uint32_t), 1)>, Pack<T, kCount>>;

template <typename T, int kCount>
__device__ PackBits<T, kCount> BitsOf(const Pack<T, kCount>& pack) {
  return reinterpret_cast<const PackBits<T, kCount>&>(pack);
}
template <int kCount, typename T>
__device__ PackBits<T, kCount> LoadBits(const T* from) {
  return *reinterpret_cast<const PackBits<T, kCount>*>(from);
}
// Returns value i of a pack as float32.
template <typename T, int kCount>
__device__ float ValueOf(const PackBits<T, kCount>& bits, int i) {
  return ToFloat(reinterpret_cast<const Pack<T, kCount>&>(bits).values[i]);
}

// The output's rows, distributed over the threads. A thread computes kCount values of type Out at a time, from values
// of type T.
template <typename T, typename Out, int kCount>
struct RowsOf {
  RowChunks chunks;

  explicit RowsOf(const Rows& out) : chunks(out.capacity, out.channels / kCount, out.num_rows) {}

  unsigned NumBlocks() const { return chunks.NumBlocks(); }

  // Calls visit(row, channel) for each group of kCount values of the calling thread; channel is that of the first
  // value.
  template <typename Visitor>
  __device__ void ForEach(const Visitor& visit) const {
    chunks.ForEach([&](int64_t row, int32_t chunk) { visit(row, chunk * kCount); });
  }

  // Reads kCount values of a row of `in`, beginning with `channel`, as float32. The values in memory have type T, or
  // type Value if it is given.
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

// Returns launch(RowsOf<T, Out, kCount>) for the types of `in` and `out`; returns cudaSuccess without a launch if `out`
// has no values. The type of `out` must be that of `in` or float32, else cudaErrorInvalidValue is returned.
//
// kCount is the number of in's values in 16 bytes, if the rows of `in` and `out` and everything in `others` are aligned
// to 16 bytes, and the channels fill whole 16 bytes. If they fill 8 bytes instead, kCount is the number of values of 16
// bits in 8 bytes, so that layers of 36 or 252 channels are fast too. Else kCount is 1. `others` is the alignment of
// everything else that a thread reads or writes. If `in` has no data, only its type counts. name: the launcher's name
// for the profiler, a string literal.
template <typename Launch>
cudaError_t LaunchRows(const char* name, const ConstRows& in, const Rows& out, CommonAlignment others,
                       const Launch& launch) {
  if (out.capacity == 0 || out.channels == 0) return cudaSuccess;
  const NvtxRange range(name);
  const bool are_aligned = others.Add(in).Add(out).bytes() == kVectorBytes;
  const int64_t in_bytes = out.channels * SizeOf(in.dtype);  // of a row
  return VisitInAndOutType(in.dtype, out.dtype, [&](auto in_value, auto out_value) {
    using T = decltype(in_value);
    using Out = decltype(out_value);
    if (are_aligned && in_bytes % kVectorBytes == 0) return launch(RowsOf<T, Out, kVectorBytes / sizeof(T)>(out));
    if constexpr (sizeof(T) == 2) {
      constexpr int64_t kHalfVectorBytes = kVectorBytes / 2;
      if (are_aligned && in_bytes % kHalfVectorBytes == 0) {
        return launch(RowsOf<T, Out, kHalfVectorBytes / sizeof(T)>(out));
      }
    }
    return launch(RowsOf<T, Out, 1>(out));
  });
}

}  // namespace voxserve::kernels::cuda
