#include "kernels/core/binary_search.cuh"
#include "kernels/core/epilogue.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/rows/sample_scale_shift.h"

namespace voxserve::kernels::cuda {
namespace {

template <typename T, typename Out, typename Factor>
struct SampleScaleShiftArguments {
  RowChunks rows;
  const int64_t* sample_begin;
  int32_t num_samples;
  const T* in;
  int64_t in_pitch;
  const Factor* centre;
  const Factor* scale;
  const Factor* shift;
  int64_t factor_pitch;
  Out* out;
  int64_t out_pitch;
  TypedEpilogue<T, float> epilogue;
};

// A thread has kCount channels of a row.
template <typename T, typename Out, typename Factor, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    SampleScaleShiftKernel(const SampleScaleShiftArguments<T, Out, Factor> arguments) {
  arguments.rows.ForEach([&](int64_t row, int32_t chunk) {
    const int32_t channel = chunk * kCount;
    // Neighbouring rows ask the same few begins.
    const int64_t factors =
        RunOf(arguments.sample_begin, arguments.num_samples, row) * arguments.factor_pitch + channel;
    float values[kCount] = {};
    if (arguments.in != nullptr) {
      const Pack<T, kCount> in = LoadPack<kCount>(arguments.in + row * arguments.in_pitch + channel);
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = ToFloat(in.values[i]);
    }
    if (arguments.centre != nullptr) {
      const Pack<Factor, kCount> centre = LoadPack<kCount>(arguments.centre + factors);
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] -= ToFloat(centre.values[i]);
    }
    if (arguments.scale != nullptr) {
      const Pack<Factor, kCount> scale = LoadPack<kCount>(arguments.scale + factors);
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] *= ToFloat(scale.values[i]);
    }
    if (arguments.shift != nullptr) {
      const Pack<Factor, kCount> shift = LoadPack<kCount>(arguments.shift + factors);
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] += ToFloat(shift.values[i]);
    }
    arguments.epilogue.Store(values, row, channel, arguments.out + row * arguments.out_pitch + channel);
  });
}

template <typename T, typename Out, typename Factor, int kCount>
cudaError_t LaunchSampleScaleShift(const SampleScaleShiftParams& params, cudaStream_t stream) {
  const SampleScaleShiftArguments<T, Out, Factor> arguments{
      .rows = RowChunks(params.num_rows, params.channels / kCount),
      .sample_begin = params.sample_begin,
      .num_samples = params.num_samples,
      .in = static_cast<const T*>(params.in),
      .in_pitch = params.in_pitch,
      .centre = static_cast<const Factor*>(params.centre),
      .scale = static_cast<const Factor*>(params.scale),
      .shift = static_cast<const Factor*>(params.shift),
      .factor_pitch = params.factor_pitch,
      .out = static_cast<Out*>(params.out),
      .out_pitch = params.out_pitch,
      .epilogue = TypedEpilogue<T, float>(params.epilogue)};
  SampleScaleShiftKernel<T, Out, Factor, kCount><<<arguments.rows.NumBlocks(), kBlockThreads, 0, stream>>>(arguments);
  return LaunchStatus(stream);
}

}  // namespace

cudaError_t SampleScaleShift(const SampleScaleShiftParams& params, cudaStream_t stream) {
  if (params.num_rows == 0 || params.channels == 0) return cudaSuccess;
  const NvtxRange range("SampleScaleShift");
  const int64_t value_bytes = SizeOf(params.dtype);
  CommonAlignment alignment;
  alignment.Add(params.in)
      .Add(params.in_pitch * value_bytes)
      .Add(params.channels * value_bytes)
      .Add(params.centre)
      .Add(params.scale)
      .Add(params.shift)
      .Add(params.factor_pitch * SizeOf(params.factor_dtype))
      .Add(params.out)
      .Add(params.out_pitch * SizeOf(params.out_dtype));
  AddEpilogue(params.epilogue, alignment);
  return VisitInAndOutType(params.dtype, params.out_dtype, [&](auto in, auto out) {
    using T = decltype(in);
    using Out = decltype(out);
    const auto launch = [&](auto factor) {
      using Factor = decltype(factor);
      if (alignment.bytes() == kVectorBytes) {
        return LaunchSampleScaleShift<T, Out, Factor, kVectorBytes / sizeof(T)>(params, stream);
      }
      return LaunchSampleScaleShift<T, Out, Factor, 1>(params, stream);
    };
    if (params.factor_dtype == DType::kFloat32) return launch(float{});
    if (params.factor_dtype == params.dtype) return launch(in);
    return cudaErrorInvalidValue;
  });
}

}  // namespace voxserve::kernels::cuda
