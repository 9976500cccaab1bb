#include "kernels/coordinates/morton_key.h"
#include "kernels/coordinates/sample_begins.h"
#include "kernels/core/binary_search.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/visit_dimension.cuh"

namespace voxserve::kernels::cuda {
namespace {

// Serves one sample per thread.
template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads) SampleBeginsKernel(const SampleBeginsParams params) {
  const auto sample = static_cast<int32_t>(blockIdx.x * kBlockThreads + threadIdx.x);
  if (sample > params.num_samples) return;
  // Finds the first key of this sample or of a later one.
  params.sample_begin[sample] = PartitionPoint(
      *params.num_keys, [&](int64_t row) { return MortonKey<kDimension>::Sample(params.keys[row]) < sample; });
}

}  // namespace

cudaError_t SampleBegins(const SampleBeginsParams& params, cudaStream_t stream) {
  const NvtxRange range("SampleBegins");
  return VisitDimension(params.dimension, [&](auto dimension) {
    SampleBeginsKernel<dimension()><<<NumBlocks(int64_t{params.num_samples} + 1), kBlockThreads, 0, stream>>>(params);
    return LaunchStatus(stream);
  });
}

}  // namespace voxserve::kernels::cuda
