#include <cstdint>
#include <type_traits>

#include "kernels/conv/int8_rounding.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/int8/int8_rows.h"

namespace voxserve::kernels::cuda {
namespace {

template <typename T>
constexpr bool kIsInt8 = sizeof(T) == 1;

// Rounds kCount values to T, which has 8 bits.
template <typename T, int kCount>
__device__ Pack<T, kCount> RoundedPack(const float (&values)[kCount]) {
  Pack<T, kCount> pack;
  if constexpr (kCount % 4 == 0) {
#pragma unroll
    for (int word = 0; word < kCount / 4; ++word) {
      reinterpret_cast<uint32_t*>(&pack)[word] = PackRounded<T>(values + 4 * word);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) pack.values[i] = static_cast<T>(RoundToByte(values[i], std::is_signed_v<T>));
  }
  return pack;
}

// A thread converts kCount neighbouring values of a row.
template <typename In, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    ConvertInt8RowsKernel(const RowChunks chunks, const __grid_constant__ Int8RowsParams params) {
  WaitForEarlierKernels();
  chunks.ForEach([&](int64_t row, int32_t chunk) {
    const int64_t channel = int64_t{chunk} * kCount;
    const Pack<In, kCount> in =
        LoadPack<kCount>(static_cast<const In*>(params.in.data) + row * params.in.pitch + channel);
    float values[kCount];
    if constexpr (kIsInt8<In>) {
      const Pack<float, kCount> scale = LoadConstantPack<kCount>(params.in_scale + channel);
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = __fmul_rn(static_cast<float>(in.values[i]), scale.values[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = ToFloat(in.values[i]);
    }
    auto& out =
        *reinterpret_cast<Pack<Out, kCount>*>(static_cast<Out*>(params.out.data) + row * params.out.pitch + channel);
    if constexpr (kIsInt8<Out>) {
      const Pack<float, kCount> inverse = LoadConstantPack<kCount>(params.inverse_scale + channel);
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = __fmul_rn(values[i], inverse.values[i]);
      out = RoundedPack<Out>(values);
    } else {
      Pack<Out, kCount> pack;
#pragma unroll
      for (int i = 0; i < kCount; ++i) pack.values[i] = FromFloat<Out>(values[i]);
      out = pack;
    }
  });
}

template <typename In, typename Out, int kCount>
cudaError_t Launch(const Int8RowsParams& params, cudaStream_t stream) {
  const RowChunks chunks(params.out.capacity, params.out.channels / kCount, params.out.num_rows);
  return LaunchEarly(ConvertInt8RowsKernel<In, Out, kCount>, chunks.NumBlocks(), kBlockThreads, /*shared_bytes=*/0,
                     stream, chunks, params);
}

// Calls visit(T{}) with the C++ type of a dtype that this file converts.
template <typename Visitor>
cudaError_t VisitValueType(DType dtype, const Visitor& visit) {
  switch (dtype) {
    case DType::kFloat32:
      return visit(float{});
    case DType::kFloat16:
      return visit(__half{});
    case DType::kUint8:
      return visit(uint8_t{});
    case DType::kInt8:
      return visit(int8_t{});
    case DType::kBfloat16:
    case DType::kUint16:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t ConvertInt8Rows(const Int8RowsParams& params, cudaStream_t stream) {
  const NvtxRange range("ConvertInt8Rows");
  if (params.out.capacity == 0 || params.out.channels == 0) return cudaSuccess;
  CommonAlignment alignment;
  alignment.Add(params.in).Add(params.out).Add(params.in_scale).Add(params.inverse_scale);
  const int32_t channels = params.out.channels;
  return VisitValueType(params.in.dtype, [&](auto in) {
    return VisitValueType(params.out.dtype, [&](auto out) {
      using In = decltype(in);
      using Out = decltype(out);
      if constexpr (!kIsInt8<In> && !kIsInt8<Out>) {
        return cudaErrorInvalidValue;
      } else {
        if ((kIsInt8<In> && params.in_scale == nullptr) || (kIsInt8<Out> && params.inverse_scale == nullptr)) {
          return cudaErrorInvalidValue;
        }
        // Values of 8 bits in one access of 16 bytes, or of 8.
        if (alignment.bytes() == kVectorBytes && channels % 16 == 0) return Launch<In, Out, 16>(params, stream);
        if (alignment.bytes() == kVectorBytes && channels % 8 == 0) return Launch<In, Out, 8>(params, stream);
        return Launch<In, Out, 1>(params, stream);
      }
    });
  });
}

}  // namespace voxserve::kernels::cuda
