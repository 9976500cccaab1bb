#include <type_traits>

#include "kernels/core/epilogue.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/rows/scale_shift.h"

namespace voxserve::kernels::cuda {
namespace {

template <typename T, typename Out, typename Bias>
struct ScaleShiftArguments {
  RowChunks rows;
  const T* in;
  int64_t in_pitch;
  const float* scale;
  Out* out;
  int64_t out_pitch;
  TypedEpilogue<T, Bias> epilogue;
};

// A thread has kCount channels of a row.
template <typename T, typename Out, typename Bias, int kCount>
__global__ void __launch_bounds__(kBlockThreads) ScaleShiftKernel(const ScaleShiftArguments<T, Out, Bias> arguments) {
  arguments.rows.ForEach([&](int64_t row, int32_t chunk) {
    const int32_t channel = chunk * kCount;
    const Pack<T, kCount> in = LoadPack<kCount>(arguments.in + row * arguments.in_pitch + channel);
    float values[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = ToFloat(in.values[i]);
    if (arguments.scale != nullptr) {
      const Pack<float, kCount> scale = LoadPack<kCount>(arguments.scale + channel);
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] *= scale.values[i];
    }
    arguments.epilogue.Store(values, row, channel, arguments.out + row * arguments.out_pitch + channel);
  });
}

template <typename T, typename Out, typename Bias, int kCount>
cudaError_t LaunchScaleShift(const ScaleShiftParams& params, cudaStream_t stream) {
  const ScaleShiftArguments<T, Out, Bias> arguments{.rows = RowChunks(params.num_rows, params.channels / kCount),
                                                    .in = static_cast<const T*>(params.in),
                                                    .in_pitch = params.in_pitch,
                                                    .scale = params.scale,
                                                    .out = static_cast<Out*>(params.out),
                                                    .out_pitch = params.out_pitch,
                                                    .epilogue = TypedEpilogue<T, Bias>(params.epilogue)};
  ScaleShiftKernel<T, Out, Bias, kCount><<<arguments.rows.NumBlocks(), kBlockThreads, 0, stream>>>(arguments);
  return LaunchStatus(stream);
}

}  // namespace

cudaError_t ScaleShift(const ScaleShiftParams& params, cudaStream_t stream) {
  if (params.num_rows == 0 || params.channels == 0) return cudaSuccess;
  const NvtxRange range("ScaleShift");
  const int64_t value_bytes = SizeOf(params.dtype);
  CommonAlignment alignment;
  alignment.Add(params.in)
      .Add(params.in_pitch * value_bytes)
      .Add(params.channels * value_bytes)
      .Add(params.scale)
      .Add(params.out)
      .Add(params.out_pitch * SizeOf(params.out_dtype));
  AddEpilogue(params.epilogue, alignment);
  return VisitInAndOutType(params.dtype, params.out_dtype, [&](auto in, auto out) {
    using T = decltype(in);
    using Out = decltype(out);
    const auto launch = [&](auto bias) {
      using Bias = decltype(bias);
      if (alignment.bytes() == kVectorBytes) {
        return LaunchScaleShift<T, Out, Bias, kVectorBytes / sizeof(T)>(params, stream);
      }
      return LaunchScaleShift<T, Out, Bias, 1>(params, stream);
    };
    if (params.bias_dtype == DType::kFloat32) return launch(float{});
    if (params.bias_dtype == params.out_dtype) return launch(out);
    return cudaErrorInvalidValue;
  });
}

}  // namespace voxserve::kernels::cuda
