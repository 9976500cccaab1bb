#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/farthest_point_order.cuh"
#include "kernels/farthest_point_select.cuh"

namespace voxserve::kernels::cuda {
namespace {

constexpr int64_t kSlotBytes = sizeof(float4) + sizeof(float);  // of a point in shared memory
constexpr int kPortableClusterBlocks = 8;

// What the kernel may use of the current device.
struct DeviceLimits {
  int32_t num_processors = 0;
  int32_t cluster_blocks = 1;  // 1 where there are no clusters
  int64_t slots = 0;           // points in a block's shared memory

  size_t SharedBytes() const { return static_cast<size_t>(slots * kSlotBytes); }
};

// Lets the kernel have what the device has: the same for every launch, since threads may launch at the same time.
template <typename Kernel>
cudaError_t AllowAll(const Kernel& kernel, const DeviceLimits& limits) {
  VOXSERVE_RETURN_IF_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               static_cast<int>(limits.SharedBytes())));
  if (limits.cluster_blocks == 1) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
}

cudaError_t FindLimits(DeviceLimits* limits) {
  int device = 0, shared_bytes = 0, has_clusters = 0;
  VOXSERVE_RETURN_IF_CUDA(cudaGetDevice(&device));
  VOXSERVE_RETURN_IF_CUDA(cudaDeviceGetAttribute(&limits->num_processors, cudaDevAttrMultiProcessorCount, device));
  VOXSERVE_RETURN_IF_CUDA(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  VOXSERVE_RETURN_IF_CUDA(cudaDeviceGetAttribute(&has_clusters, cudaDevAttrClusterLaunch, device));
  const auto kernel = SelectFarthestPointsKernel<1, true, true>;
  cudaFuncAttributes attributes{};
  VOXSERVE_RETURN_IF_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  limits->slots = (shared_bytes - static_cast<int64_t>(attributes.sharedSizeBytes)) / kSlotBytes;
  // A newer device may run code that was made for an older one.
  constexpr int kFirstPtxWithClusters = 90;
  if (has_clusters == 0 || attributes.ptxVersion < kFirstPtxWithClusters) return cudaSuccess;
  limits->cluster_blocks = kPortableClusterBlocks;

  VOXSERVE_RETURN_IF_CUDA(AllowAll(kernel, *limits));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = kMaxClusterBlocks;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kMaxClusterBlocks);
  config.blockDim = dim3(kBlockThreads);
  config.dynamicSmemBytes = limits->SharedBytes();
  config.attrs = &cluster;
  config.numAttrs = 1;
  int num_clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&num_clusters, kernel, &config) != cudaSuccess) {
    cudaGetLastError();  // this device's way to say no
  } else if (num_clusters > 0) {
    limits->cluster_blocks = kMaxClusterBlocks;
  }
  return cudaSuccess;
}

// Of a block at most, where a sample has at most num_points: see SelectFarthestPointsKernel.
int64_t BlockSlots(const FarthestPointLayout& layout, int64_t num_points) {
  const int64_t lanes = int64_t{layout.num_blocks} * layout.num_warps * layout.buckets_per_lane * kWarpThreads;
  const int64_t bucket_points =
      std::max<int64_t>(1, (num_points + lanes * kWarpThreads - 1) / (lanes * kWarpThreads)) * kWarpThreads;
  return num_points / layout.num_blocks + bucket_points;
}

// Fills in what is left to the launcher. A cluster costs an exchange an iteration, and is worth it where it brings all
// points into shared memory or shares out what one block would have to do.
FarthestPointLayout Completed(FarthestPointLayout layout, const DeviceLimits& limits, int64_t num_points,
                              int32_t num_samples) {
  if (layout.num_blocks == 0) {
    layout.num_blocks = 1;
    while (num_points / layout.num_blocks + kWarpThreads > limits.slots &&
           2 * layout.num_blocks <= limits.cluster_blocks &&
           int64_t{2} * layout.num_blocks * num_samples <= limits.num_processors) {
      layout.num_blocks *= 2;
    }
  }
  // Few warps, each with full lanes: what a warp does in an iteration whatever its buckets is the larger part.
  const int64_t block_buckets = num_points / (int64_t{kWarpThreads} * layout.num_blocks) + 1;
  if (layout.buckets_per_lane == 0) {
    const int32_t num_warps = layout.num_warps == 0 ? 16 : layout.num_warps;
    layout.buckets_per_lane = 1;
    while (layout.buckets_per_lane < 4 && num_warps * layout.buckets_per_lane * kWarpThreads < block_buckets) {
      layout.buckets_per_lane *= 2;
    }
  }
  if (layout.num_warps == 0) layout.num_warps = block_buckets <= 8 * kWarpThreads ? 8 : 16;
  layout.in_global_memory |= BlockSlots(layout, num_points) > limits.slots;
  return layout;
}

bool IsPossible(const FarthestPointLayout& layout, const DeviceLimits& limits) {
  const auto is_power_of_two = [](int32_t value) {
    return value > 0 && std::has_single_bit(static_cast<uint32_t>(value));
  };
  return is_power_of_two(layout.num_blocks) && layout.num_blocks <= limits.cluster_blocks &&
         is_power_of_two(layout.buckets_per_lane) && layout.buckets_per_lane <= 8 && layout.num_warps > 0 &&
         layout.num_warps <= MaxFarthestPointWarps(layout.buckets_per_lane);
}

template <int kBuckets, bool kIsShared, bool kIsCluster>
cudaError_t LaunchSelect(const FarthestPointSampleParams& params, const FarthestPointWorkspace& workspace,
                         const FarthestPointLayout& layout, const DeviceLimits& limits, cudaStream_t stream) {
  const auto kernel = SelectFarthestPointsKernel<kBuckets, kIsShared, kIsCluster>;
  const int64_t slots = kIsShared ? BlockSlots(layout, MaxSamplePoints(params)) : 0;
  VOXSERVE_RETURN_IF_CUDA(AllowAll(kernel, limits));
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(params.num_samples) * static_cast<unsigned>(layout.num_blocks));
  config.blockDim = dim3(static_cast<unsigned>(layout.num_warps * kWarpThreads));
  config.dynamicSmemBytes = static_cast<size_t>(slots * kSlotBytes);
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
      cudaLaunchKernelEx(&config, kernel, params, workspace, layout.num_blocks, static_cast<int>(slots)));
  return LaunchStatus(stream);
}

template <int kBuckets>
cudaError_t LaunchSelectOf(const FarthestPointSampleParams& params, const FarthestPointWorkspace& workspace,
                           const FarthestPointLayout& layout, const DeviceLimits& limits, cudaStream_t stream) {
  if (layout.num_blocks > 1) {
    return layout.in_global_memory ? LaunchSelect<kBuckets, false, true>(params, workspace, layout, limits, stream)
                                   : LaunchSelect<kBuckets, true, true>(params, workspace, layout, limits, stream);
  }
  return layout.in_global_memory ? LaunchSelect<kBuckets, false, false>(params, workspace, layout, limits, stream)
                                 : LaunchSelect<kBuckets, true, false>(params, workspace, layout, limits, stream);
}

}  // namespace

cudaError_t MaxFarthestPointBlocks(int32_t* num_blocks) {
  DeviceLimits limits;
  VOXSERVE_RETURN_IF_CUDA(FindLimits(&limits));
  *num_blocks = limits.cluster_blocks;
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
  DeviceLimits limits;
  VOXSERVE_RETURN_IF_CUDA(FindLimits(&limits));
  const FarthestPointLayout chosen = Completed(layout, limits, MaxSamplePoints(params), params.num_samples);
  if (!IsPossible(chosen, limits)) return cudaErrorInvalidValue;
  const FarthestPointWorkspace workspace(params);
  VOXSERVE_RETURN_IF_CUDA(OrderFarthestPoints(params, workspace, stream));
  switch (chosen.buckets_per_lane) {
    case 1:
      return LaunchSelectOf<1>(params, workspace, chosen, limits, stream);
    case 2:
      return LaunchSelectOf<2>(params, workspace, chosen, limits, stream);
    case 4:
      return LaunchSelectOf<4>(params, workspace, chosen, limits, stream);
    default:
      return LaunchSelectOf<8>(params, workspace, chosen, limits, stream);
  }
}

}  // namespace voxserve::kernels::cuda
