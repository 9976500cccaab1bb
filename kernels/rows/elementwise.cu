#include "kernels/core/row_launch.cuh"
#include "kernels/rows/elementwise.h"

namespace voxserve::kernels::cuda {
namespace {

// Reads kCount values of a row, beginning with `channel`; if `in` has only one channel, its value kCount times.
template <typename T, typename Out, int kCount>
__device__ void LoadOrRepeat(const RowsOf<T, Out, kCount>& rows, const ConstRows& in, bool is_wide, int64_t row,
                             int32_t channel, float (&values)[kCount]) {
  if (is_wide) {
    rows.Load(in, row, channel, values);
    return;
  }
  const float value = ToFloat(static_cast<const T*>(in.data)[row * in.pitch]);
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = value;
}

template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    CombineRowsKernel(const RowsOf<T, Out, kCount> rows, const __grid_constant__ CombineRowsParams params) {
  const bool is_a_wide = params.a.channels == params.out.channels;
  const bool is_b_wide = params.b.channels == params.out.channels;
  VisitElementwise(params, [&](const auto& function) {
    rows.ForEach([&](int64_t row, int32_t channel) {
      float a[kCount], b[kCount];
      LoadOrRepeat(rows, params.a, is_a_wide, row, channel, a);
      LoadOrRepeat(rows, params.b, is_b_wide, row, channel, b);
#pragma unroll
      for (int i = 0; i < kCount; ++i) a[i] = function(a[i], b[i]);
      rows.Store(a, params.out, row, channel);
    });
  });
}

}  // namespace

cudaError_t CombineRows(const CombineRowsParams& params, cudaStream_t stream) {
  if (params.b.dtype != params.a.dtype) return cudaErrorInvalidValue;
  // LaunchRows takes the alignment of its input too, so it gets a wide one.
  const bool is_a_wide = params.a.channels == params.out.channels;
  const ConstRows& wide = is_a_wide ? params.a : params.b;
  CommonAlignment others;
  if (is_a_wide && params.b.channels == params.out.channels) others = others.Add(params.b);
  return LaunchRows("CombineRows", wide, params.out, others,
                    [&]<typename T, typename Out, int kCount>(const RowsOf<T, Out, kCount>& rows) {
                      CombineRowsKernel<<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params);
                      return LaunchStatus(stream);
                    });
}

}  // namespace voxserve::kernels::cuda
