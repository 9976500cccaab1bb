#include "kernels/core/epilogue.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/points/devoxelize.h"

namespace voxserve::kernels::cuda {
namespace {

template <typename T, typename Out>
struct DevoxelizeArguments {
  RowChunks rows;
  int32_t num_neighbours;
  const int32_t* neighbours;
  const float* weights;
  int64_t neighbour_pitch;
  const T* in;
  int64_t in_pitch;
  Out* out;
  int64_t out_pitch;
  TypedEpilogue<T, float> epilogue;
};

// A thread has kCount channels of a position.
template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads) DevoxelizeKernel(const DevoxelizeArguments<T, Out> arguments) {
  arguments.rows.ForEach([&](int64_t row, int32_t chunk) {
    const int32_t channel = chunk * kCount;
    const int32_t* const neighbours = arguments.neighbours + row * arguments.neighbour_pitch;
    const float* const weights =
        arguments.weights == nullptr ? nullptr : arguments.weights + row * arguments.neighbour_pitch;
    float sums[kCount] = {};
#pragma unroll 8
    for (int32_t n = 0; n < arguments.num_neighbours; ++n) {
      const int64_t in_row = neighbours[n];
      if (in_row < 0) continue;
      const float weight = weights == nullptr ? 1.0F : weights[n];
      const Pack<T, kCount> read = LoadPack<kCount>(arguments.in + in_row * arguments.in_pitch + channel);
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[i] += weight * ToFloat(read.values[i]);
    }
    arguments.epilogue.Store(sums, row, channel, arguments.out + row * arguments.out_pitch + channel);
  });
}

template <typename T, typename Out, int kCount>
cudaError_t LaunchDevoxelize(const DevoxelizeParams& params, cudaStream_t stream) {
  const DevoxelizeArguments<T, Out> arguments{.rows = RowChunks(params.num_rows, params.channels / kCount),
                                              .num_neighbours = params.num_neighbours,
                                              .neighbours = params.neighbours,
                                              .weights = params.weights,
                                              .neighbour_pitch = params.neighbour_pitch,
                                              .in = static_cast<const T*>(params.in),
                                              .in_pitch = params.in_pitch,
                                              .out = static_cast<Out*>(params.out),
                                              .out_pitch = params.out_pitch,
                                              .epilogue = TypedEpilogue<T, float>(params.epilogue)};
  DevoxelizeKernel<T, Out, kCount><<<arguments.rows.NumBlocks(), kBlockThreads, 0, stream>>>(arguments);
  return LaunchStatus(stream);
}

}  // namespace

cudaError_t Devoxelize(const DevoxelizeParams& params, cudaStream_t stream) {
  if (params.num_rows == 0 || params.channels == 0) return cudaSuccess;
  const NvtxRange range("Devoxelize");
  const int64_t value_bytes = SizeOf(params.dtype);
  CommonAlignment alignment;
  alignment.Add(params.in)
      .Add(params.in_pitch * value_bytes)
      .Add(params.channels * value_bytes)
      .Add(params.out)
      .Add(params.out_pitch * SizeOf(params.out_dtype));
  AddEpilogue(params.epilogue, alignment);
  return VisitInAndOutType(params.dtype, params.out_dtype, [&](auto in, auto out) {
    using T = decltype(in);
    using Out = decltype(out);
    if (alignment.bytes() == kVectorBytes) return LaunchDevoxelize<T, Out, kVectorBytes / sizeof(T)>(params, stream);
    return LaunchDevoxelize<T, Out, 1>(params, stream);
  });
}

}  // namespace voxserve::kernels::cuda
