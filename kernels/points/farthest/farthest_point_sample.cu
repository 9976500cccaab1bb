#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/points/farthest/farthest_point_order.cuh"
#include "kernels/points/farthest/farthest_point_select.cuh"

namespace voxserve::kernels::cuda {
namespace {

constexpr int32_t kDefaultWarps = 16;

// Counts the clusters of num_blocks blocks that the current device can run at a time; 0 if it cannot run such a
// cluster.
cudaError_t CountClusters(int32_t num_blocks, int32_t num_warps, int* num_clusters) {
  *num_clusters = 0;
  int device = 0, has_clusters = 0;
  VOXSERVE_RETURN_IF_CUDA(cudaGetDevice(&device));
  VOXSERVE_RETURN_IF_CUDA(cudaDeviceGetAttribute(&has_clusters, cudaDevAttrClusterLaunch, device));
  const auto kernel = SelectFarthestPointsKernel<true>;
  cudaFuncAttributes attributes{};
  VOXSERVE_RETURN_IF_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  // A device with clusters may run code that was compiled for an older architecture without clusters.
  constexpr int kFirstPtxWithClusters = 90;
  if (has_clusters == 0 || attributes.ptxVersion < kFirstPtxWithClusters) return cudaSuccess;
  VOXSERVE_RETURN_IF_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(num_blocks);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_blocks));
  config.blockDim = dim3(static_cast<unsigned>(num_warps * kWarpThreads));
  config.attrs = &cluster;
  config.numAttrs = 1;
  if (cudaOccupancyMaxActiveClusters(num_clusters, kernel, &config) != cudaSuccess) {
    cudaGetLastError();  // clears the error, which means that the device cannot run such clusters
    *num_clusters = 0;
  }
  return cudaSuccess;
}

// Sets the fields of the layout that the caller left 0. Except for small clouds, more blocks in a cluster are faster,
// since the shared work outweighs the exchange between blocks in every round. So the function takes the largest cluster
// of which the device can run one per sample at the same time, or single blocks if there is no such cluster.
cudaError_t Complete(int64_t num_points, int32_t num_samples, FarthestPointLayout* layout) {
  constexpr int64_t kSmallCloud = 4096;
  const int32_t cluster_warps = layout->num_warps == 0 ? kDefaultWarps : layout->num_warps;
  if (layout->num_blocks == 0) {
    layout->num_blocks = 1;
    for (int32_t num_blocks = kMaxClusterBlocks; num_blocks > 1 && num_points > kSmallCloud; num_blocks /= 2) {
      int num_clusters = 0;
      VOXSERVE_RETURN_IF_CUDA(CountClusters(num_blocks, cluster_warps, &num_clusters));
      if (num_clusters < num_samples) continue;
      layout->num_blocks = num_blocks;
      break;
    }
  }
  const bool is_large_block = layout->num_blocks == 1 && num_points > kDefaultWarps * kWarpThreads * kWarpThreads / 2;
  if (layout->num_warps == 0) layout->num_warps = is_large_block ? kMaxFarthestPointWarps : kDefaultWarps;
  return cudaSuccess;
}

cudaError_t CheckPossible(const FarthestPointLayout& layout) {
  const bool is_power_of_two = layout.num_blocks > 0 && std::has_single_bit(static_cast<uint32_t>(layout.num_blocks));
  if (!is_power_of_two || layout.num_blocks > kMaxClusterBlocks || layout.num_warps < 1 ||
      layout.num_warps > kMaxFarthestPointWarps) {
    return cudaErrorInvalidValue;
  }
  if (layout.num_blocks == 1) return cudaSuccess;
  int num_clusters = 0;
  VOXSERVE_RETURN_IF_CUDA(CountClusters(layout.num_blocks, layout.num_warps, &num_clusters));
  return num_clusters > 0 ? cudaSuccess : cudaErrorInvalidValue;
}

template <bool kIsCluster>
cudaError_t LaunchSelect(const FarthestPointSampleParams& params, const FarthestPointWorkspace& workspace,
                         const FarthestPointLayout& layout, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(params.num_samples) * static_cast<unsigned>(layout.num_blocks));
  config.blockDim = dim3(static_cast<unsigned>(layout.num_warps * kWarpThreads));
  config.stream = stream;
  cudaLaunchAttribute cluster{};
  if constexpr (kIsCluster) {
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(layout.num_blocks);
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.attrs = &cluster;
    config.numAttrs = 1;
  }
  VOXSERVE_RETURN_IF_CUDA(
      cudaLaunchKernelEx(&config, SelectFarthestPointsKernel<kIsCluster>, params, workspace, layout.num_blocks));
  return LaunchStatus(stream);
}

}  // namespace

cudaError_t MaxFarthestPointBlocks(int32_t* num_blocks) {
  int num_clusters = 0;
  for (*num_blocks = kMaxClusterBlocks; *num_blocks > 1; *num_blocks /= 2) {
    VOXSERVE_RETURN_IF_CUDA(CountClusters(*num_blocks, kDefaultWarps, &num_clusters));
    if (num_clusters > 0) break;
  }
  return cudaSuccess;
}

size_t FarthestPointSampleWorkspaceBytes(const FarthestPointSampleParams& params) {
  FarthestPointSampleParams measured = params;
  measured.workspace = nullptr;
  return FarthestPointWorkspace(measured).bytes;
}

cudaError_t FarthestPointSample(const FarthestPointSampleParams& params, cudaStream_t stream,
                                const FarthestPointLayout& layout) {
  if (params.num_samples == 0) return cudaSuccess;
  const NvtxRange range("FarthestPointSample");
  FarthestPointLayout chosen = layout;
  VOXSERVE_RETURN_IF_CUDA(Complete(MaxSamplePoints(params), params.num_samples, &chosen));
  VOXSERVE_RETURN_IF_CUDA(CheckPossible(chosen));
  const FarthestPointWorkspace workspace(params);
  VOXSERVE_RETURN_IF_CUDA(OrderFarthestPoints(params, workspace, stream));
  return chosen.num_blocks > 1 ? LaunchSelect<true>(params, workspace, chosen, stream)
                               : LaunchSelect<false>(params, workspace, chosen, stream);
}

}  // namespace voxserve::kernels::cuda
