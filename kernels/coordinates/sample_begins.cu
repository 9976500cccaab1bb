#include <algorithm>

#include "kernels/coordinates/morton_key.h"
#include "kernels/coordinates/sample_begins.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_tiles.cuh"
#include "kernels/core/visit_dimension.cuh"

namespace voxserve::kernels::cuda {
namespace {

constexpr size_t kMaxLevelsALaunch = 16;

struct LevelBatch {
  SampleBeginsParams levels[kMaxLevelsALaunch];
};

// Returns the same as PartitionPoint (binary_search.cuh). All lanes of a warp search together: each round cuts the
// range into 32 parts, where a search by one thread waits for memory after every halving.
template <typename Predicate>
__device__ int64_t WarpPartitionPoint(int64_t count, const Predicate& is_before) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  int64_t low = 0;
  while (low < count) {
    // A lane looks at the first index of its part. Those of the first lanes are before the point.
    const int64_t part = (count - low + kWarpThreads - 1) / kWarpThreads;
    const int64_t index = low + lane * part;
    const int num_before = __popc(__ballot_sync(~0u, index < count && is_before(index)));
    if (num_before == 0) break;
    count = min(count, low + num_before * part);
    low += (num_before - 1) * part + 1;
  }
  return low;
}

// A warp serves one sample, and blockIdx.y is the level.
template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads) SampleBeginsKernel(const __grid_constant__ LevelBatch batch) {
  WaitForEarlierKernels();
  const SampleBeginsParams& level = batch.levels[blockIdx.y];
  const auto sample = static_cast<int32_t>(blockIdx.x * kBlockWarps + threadIdx.x / kWarpThreads);
  if (sample > level.num_samples) return;
  int64_t begin = sample == 0 ? 0 : *level.num_keys;
  if (sample > 0 && sample < level.num_samples) {
    // Finds the first key of this sample or of a later one.
    begin =
        WarpPartitionPoint(begin, [&](int64_t row) { return MortonKey<kDimension>::Sample(level.keys[row]) < sample; });
  }
  if (threadIdx.x % kWarpThreads == 0) level.sample_begin[sample] = begin;
}

}  // namespace

cudaError_t SampleBegins(std::span<const SampleBeginsParams> levels, cudaStream_t stream) {
  const NvtxRange range("SampleBegins");
  for (const SampleBeginsParams& level : levels) {
    const bool is_alike = level.dimension == levels[0].dimension && level.num_samples == levels[0].num_samples;
    if (!is_alike) return cudaErrorInvalidValue;
  }
  for (; !levels.empty(); levels = levels.subspan(std::min(levels.size(), kMaxLevelsALaunch))) {
    LevelBatch batch{};
    const size_t count = std::min(levels.size(), kMaxLevelsALaunch);
    std::copy_n(levels.begin(), count, batch.levels);
    const dim3 blocks((static_cast<unsigned>(levels[0].num_samples) + kBlockWarps) / kBlockWarps,
                      static_cast<unsigned>(count));
    VOXSERVE_RETURN_IF_CUDA(VisitDimension(levels[0].dimension, [&](auto dimension) {
      return LaunchEarly(SampleBeginsKernel<dimension()>, blocks, kBlockThreads, 0, stream, batch);
    }));
  }
  return cudaSuccess;
}

}  // namespace voxserve::kernels::cuda
