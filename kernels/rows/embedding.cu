#include <cuda/std/limits>

#include "kernels/core/row_launch.cuh"
#include "kernels/rows/embedding.h"

namespace voxserve::kernels::cuda {
namespace {

template <typename T, typename Out, int kCount>
__global__ void __launch_bounds__(kBlockThreads)
    EmbeddingKernel(const RowsOf<T, Out, kCount> rows, const __grid_constant__ EmbeddingParams params) {
  const auto* const indices = static_cast<const T*>(params.index.data);
  const auto* const table = static_cast<const Out*>(params.table);
  const auto num_embeddings = static_cast<float>(params.num_embeddings);
  rows.ForEach([&](int64_t row, int32_t channel) {
    const float index = ToFloat(indices[row * params.index.pitch]);
    Pack<Out, kCount> found;
    if (index >= 0.0f && index < num_embeddings && index == truncf(index)) {
      found = LoadConstantPack<kCount>(table + static_cast<int64_t>(index) * params.out.channels + channel);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        found.values[i] = FromFloat<Out>(::cuda::std::numeric_limits<float>::quiet_NaN());
      }
    }
    *reinterpret_cast<Pack<Out, kCount>*>(rows.Place(params.out, row, channel)) = found;
  });
}

}  // namespace

cudaError_t Embedding(const EmbeddingParams& params, cudaStream_t stream) {
  // The index is read value by value, so its address does not matter for the alignment.
  const ConstRows type_of_index{.dtype = params.index.dtype};
  return LaunchRows("Embedding", type_of_index, params.out, CommonAlignment().Add(params.table),
                    [&]<typename T, typename Out, int kCount>(const RowsOf<T, Out, kCount>& rows) {
                      EmbeddingKernel<<<rows.NumBlocks(), kBlockThreads, 0, stream>>>(rows, params);
                      return LaunchStatus(stream);
                    });
}

}  // namespace voxserve::kernels::cuda
