#include "kernels/core/epilogue.cuh"
#include "kernels/core/row_launch.cuh"
#include "kernels/points/devoxelize.h"

namespace voxserve::kernels::cuda {
namespace {

template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    DevoxelizeKernel(const RowsOf<T, Out, kCount> rows, const DevoxelizeParams params,
                     const TypedEpilogue<T, float> epilogue) {
  rows.ForEach([&](int64_t row, int32_t channel) {
    const int32_t* const neighbours = params.neighbours + row * params.neighbour_pitch;
    const float* const weights = params.weights == nullptr ? nullptr : params.weights + row * params.neighbour_pitch;
    float sums[kCount] = {};
#pragma unroll 8
    for (int32_t n = 0; n < params.num_neighbours; ++n) {
      const int64_t in_row = neighbours[n];
      if (in_row < 0) continue;
      const float weight = weights == nullptr ? 1.0F : weights[n];
      float read[kCount];
      rows.Load(params.in, in_row, channel, read);
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[i] += weight * read[i];
    }
    epilogue.Store(sums, row, channel, rows.Place(params.out, row, channel));
  });
}

}  // namespace

cudaError_t Devoxelize(const DevoxelizeParams& params, cudaStream_t stream) {
  CommonAlignment others;
  AddEpilogue(params.epilogue, others);
  return LaunchRows("Devoxelize", params.in, params.out, others,
                    [&]<typename T, typename Out, int kCount>(const RowsOf<T, Out, kCount>& rows) {
                      DevoxelizeKernel<<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(
                          rows, params, TypedEpilogue<T, float>(params.epilogue));
                      return LaunchStatus(stream);
                    });
}

}  // namespace voxserve::kernels::cuda
