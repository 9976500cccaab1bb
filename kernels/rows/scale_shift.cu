#include "kernels/core/binary_search.cuh"
#include "kernels/core/epilogue.cuh"
#include "kernels/core/row_launch.cuh"
#include "kernels/rows/scale_shift.h"

namespace voxserve::kernels::cuda {
namespace {

// The scale that all rows share.
struct ChannelScale {
  static constexpr bool kIsInputOptional = false;

  const float* scale;  // null: 1

  template <typename T, typename Out, int kCount>
  __device__ void Apply(const RowsOf<T, Out, kCount>&, int64_t, int32_t channel, float (&values)[kCount]) const {
    if (scale == nullptr) return;
    const Pack<float, kCount> factors = LoadPack<kCount>(scale + channel);
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] *= factors.values[i];
  }
};

// The factors of each row's sample.
template <typename Factor>
struct SampleFactors {
  static constexpr bool kIsInputOptional = true;

  const int64_t* sample_begin;
  int32_t num_samples;
  ConstRows centre, scale, shift;

  template <typename T, typename Out, int kCount>
  __device__ void Apply(const RowsOf<T, Out, kCount>& rows, int64_t row, int32_t channel,
                        float (&values)[kCount]) const {
    const int64_t sample = RunOf(sample_begin, num_samples, row);  // neighbouring rows read the same few begins
    float factors[kCount];
    if (centre.data != nullptr) {
      rows.template Load<Factor>(centre, sample, channel, factors);
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] -= factors[i];
    }
    if (scale.data != nullptr) {
      rows.template Load<Factor>(scale, sample, channel, factors);
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] *= factors[i];
    }
    if (shift.data != nullptr) {
      rows.template Load<Factor>(shift, sample, channel, factors);
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] += factors[i];
    }
  }
};

template <typename T, typename Out, int kCount, typename Factors, typename Bias>
__global__ void __launch_bounds__(kBlockThreads)
    ScaleShiftKernel(const RowsOf<T, Out, kCount> rows, const ConstRows in, const Factors factors, const Rows out,
                     const TypedEpilogue<T, Bias> epilogue) {
  WaitForEarlierKernels();
  rows.ForEach([&](int64_t row, int32_t channel) {
    float values[kCount] = {};
    if (!Factors::kIsInputOptional || in.data != nullptr) rows.Load(in, row, channel, values);
    factors.Apply(rows, row, channel, values);
    epilogue.Store(values, row, channel, rows.Place(out, row, channel));
  });
}

template <typename T, typename Out, int kCount, typename Factors, typename Bias>
cudaError_t LaunchScaleShift(const RowsOf<T, Out, kCount>& rows, const ConstRows& in, const Factors& factors,
                             const Rows& out, const TypedEpilogue<T, Bias>& epilogue, cudaStream_t stream) {
  return LaunchEarly(ScaleShiftKernel<T, Out, kCount, Factors, Bias>, rows.NumBlocks(), kBlockThreads, 0, stream, rows,
                     in, factors, out, epilogue);
}

// Rounds float32 rows to a narrower type.
template <typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    NarrowKernel(const RowsOf<float, Out, kCount> rows, const ConstRows in, const Rows out) {
  WaitForEarlierKernels();
  rows.ForEach([&](int64_t row, int32_t channel) {
    float values[kCount];
    rows.Load(in, row, channel, values);
    rows.Store(values, out, row, channel);
  });
}

bool IsPlainCopy(const ScaleShiftParams& params) { return params.scale == nullptr && params.epilogue.IsEmpty(); }

cudaError_t Narrow(const ConstRows& in, const Rows& out, cudaStream_t stream) {
  if (out.capacity == 0 || out.channels == 0) return cudaSuccess;
  const NvtxRange range("Narrow");
  const int64_t alignment = CommonAlignment().Add(in).Add(out).Add(out.channels * SizeOf(in.dtype)).bytes();
  return VisitFeatureType(out.dtype, [&](auto value) {
    const auto launch = [&]<typename Narrow, int kCount>(const RowsOf<float, Narrow, kCount>& rows) {
      return LaunchEarly(NarrowKernel<Narrow, kCount>, rows.NumBlocks(), kBlockThreads, 0, stream, rows, in, out);
    };
    using Out = decltype(value);
    if (alignment == kVectorBytes) return launch(RowsOf<float, Out, kVectorBytes / sizeof(float)>(out));
    return launch(RowsOf<float, Out, 1>(out));
  });
}

DType FactorType(const SampleScaleShiftParams& params) {
  return params.centre.data != nullptr  ? params.centre.dtype
         : params.scale.data != nullptr ? params.scale.dtype
                                        : params.shift.dtype;
}

}  // namespace

cudaError_t ScaleShift(const ScaleShiftParams& params, cudaStream_t stream) {
  if (params.in.dtype == DType::kFloat32 && params.out.dtype != DType::kFloat32 && IsPlainCopy(params)) {
    return Narrow(params.in, params.out, stream);
  }
  CommonAlignment others;
  AddEpilogue(params.epilogue, others.Add(params.scale));
  return LaunchRows("ScaleShift", params.in, params.out, others,
                    [&]<typename T, typename Out, int kCount>(const RowsOf<T, Out, kCount>& rows) {
                      const auto launch = [&](auto bias) {
                        const TypedEpilogue<T, decltype(bias)> epilogue(params.epilogue);
                        return LaunchScaleShift(rows, params.in, ChannelScale{params.scale}, params.out, epilogue,
                                                stream);
                      };
                      if (params.bias_dtype == DType::kFloat32) return launch(float{});
                      if (params.bias_dtype == params.out.dtype) return launch(Out{});
                      return cudaErrorInvalidValue;
                    });
}

cudaError_t SampleScaleShift(const SampleScaleShiftParams& params, cudaStream_t stream) {
  CommonAlignment others;
  AddEpilogue(params.epilogue, others.Add(params.centre).Add(params.scale).Add(params.shift));
  return LaunchRows("SampleScaleShift", params.in, params.out, others,
                    [&]<typename T, typename Out, int kCount>(const RowsOf<T, Out, kCount>& rows) {
                      const auto launch = [&](auto factor) {
                        const SampleFactors<decltype(factor)> factors{params.sample_begin, params.num_samples,
                                                                      params.centre, params.scale, params.shift};
                        return LaunchScaleShift(rows, params.in, factors, params.out,
                                                TypedEpilogue<T, float>(params.epilogue), stream);
                      };
                      const DType factor_dtype = FactorType(params);
                      if (factor_dtype == DType::kFloat32) return launch(float{});
                      if (factor_dtype == params.in.dtype) return launch(T{});
                      return cudaErrorInvalidValue;
                    });
}

}  // namespace voxserve::kernels::cuda
