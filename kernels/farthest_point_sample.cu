#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/cluster_mailbox.cuh"
#include "kernels/farthest_point_order.cuh"

// One kernel does all the iterations of a sample, in a block or in the blocks of a cluster. Every lane owns buckets
// (box, largest distance, the point that has it) in its registers and tests them against the point selected last; the
// whole warp updates a bucket that does not pass. Neighbouring buckets belong to different blocks and warps, so that
// those around a new point are updated at once. Every warp then names its furthest point, and after one barrier (and in
// a cluster one exchange of messages) each knows the furthest of all. A point and its distance are touched by the same
// thread in every iteration.

namespace voxserve::kernels::cuda {
namespace {

constexpr int kMaxWarps = MaxFarthestPointWarps(1);
static_assert(kMaxWarps <= kWarpThreads, "one warp compares all warps' candidates");
constexpr int kMaxClusterBlocks = 16;
constexpr int kUnrolledRows = 4;  // loads of a lane in flight

// A point that may be selected. The larger distance comes first, then the lower index; all zero is no point.
struct Candidate {
  uint32_t distance;    // the float's bits, which sort as it does
  uint32_t complement;  // of the index
  float x, y, z;
};

__device__ bool IsBefore(uint32_t distance, uint32_t complement, const Candidate& other) {
  return distance > other.distance || (distance == other.distance && complement > other.complement);
}

// The lane whose candidate comes first.
__device__ int FirstLane(uint32_t distance, uint32_t complement) {
  const uint32_t furthest = WarpMax(distance);
  unsigned lanes = __ballot_sync(~0u, distance == furthest);
  if ((lanes & (lanes - 1)) != 0) {
    const uint32_t first = WarpMax(distance == furthest ? complement : 0);
    lanes = __ballot_sync(~0u, distance == furthest && complement == first);
  }
  return __ffs(static_cast<int>(lanes)) - 1;
}

// The definition's, and of a box's nearest corner the bound: both round alike.
__device__ float SquaredLength(float x, float y, float z) {
  return __fadd_rn(__fadd_rn(__fmul_rn(x, x), __fmul_rn(y, y)), __fmul_rn(z, z));
}

// ---- Kernels -----------------------------------------------------------------------------------------------------

struct Bucket {
  float lowest[3];
  float highest[3];
  Candidate best;
};

// What a warp needs to find a bucket's points.
struct BucketPoints {
  float4* points;    // of the bucket
  float* distances;  // of the bucket
  int num_points;    // in it
};

// Lowers the distances of a bucket; the bucket's best candidate, to all lanes of the warp.
__device__ Candidate Update(const BucketPoints& bucket, int num_rows, float x, float y, float z) {
  const auto lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  Candidate best = {};
  for (int first_row = 0; first_row < num_rows; first_row += kUnrolledRows) {
    float4 point[kUnrolledRows];
    float distance[kUnrolledRows];
#pragma unroll
    for (int r = 0; r < kUnrolledRows; ++r) {
      const int i = (first_row + r) * kWarpThreads + lane;
      if (first_row + r >= num_rows || i >= bucket.num_points) continue;
      point[r] = bucket.points[i];
      distance[r] = bucket.distances[i];
    }
#pragma unroll
    for (int r = 0; r < kUnrolledRows; ++r) {
      const int i = (first_row + r) * kWarpThreads + lane;
      if (first_row + r >= num_rows || i >= bucket.num_points) continue;
      const float nearer = fminf(
          distance[r], SquaredLength(__fsub_rn(point[r].x, x), __fsub_rn(point[r].y, y), __fsub_rn(point[r].z, z)));
      if (nearer < distance[r]) bucket.distances[i] = nearer;
      if (IsBefore(__float_as_uint(nearer), __float_as_uint(point[r].w), best)) {
        best = {__float_as_uint(nearer), __float_as_uint(point[r].w), point[r].x, point[r].y, point[r].z};
      }
    }
  }
  const int first = FirstLane(best.distance, best.complement);
  return {__shfl_sync(~0u, best.distance, first), __shfl_sync(~0u, best.complement, first),
          __shfl_sync(~0u, best.x, first), __shfl_sync(~0u, best.y, first), __shfl_sync(~0u, best.z, first)};
}

// Candidates by warp, and from the cluster's blocks: one list is read while the next is written.
struct Exchange {
  uint2 warp_keys[2][kMaxWarps];  // distance, complement
  float4 warp_points[2][kMaxWarps];
  uint2 block_keys[2][kMaxClusterBlocks];
  float4 block_points[2][kMaxClusterBlocks];
  uint64_t barriers[2];
};

// The first of a list, to all lanes of the warp.
__device__ Candidate FirstOf(const uint2* keys, const float4* points, int count) {
  const auto lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const uint2 key = lane < count ? keys[lane] : uint2{0, 0};
  const int first = FirstLane(key.x, key.y);
  const uint2 first_key = keys[first];
  const float4 point = points[first];
  return {first_key.x, first_key.y, point.x, point.y, point.z};
}

// A block a sample, or a cluster of num_blocks. `capacity`: points of a block in shared memory.
template <int kBuckets, bool kIsShared, bool kIsCluster>
__global__ void __launch_bounds__(MaxFarthestPointWarps(kBuckets) * kWarpThreads, 1)
    SelectKernel(const __grid_constant__ FarthestPointSampleParams params,
                 const __grid_constant__ FarthestPointWorkspace workspace, int num_blocks, int capacity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  if constexpr (kIsCluster) return;  // never launched there
#endif
  extern __shared__ float4 shared_points[];
  __shared__ alignas(16) Exchange exchange;
  const auto lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const auto warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const auto num_warps = static_cast<int>(blockDim.x) / kWarpThreads;
  const int sample = kIsCluster ? static_cast<int>(blockIdx.x) / num_blocks : static_cast<int>(blockIdx.x);
  const int rank = kIsCluster ? static_cast<int>(blockIdx.x) % num_blocks : 0;
  if constexpr (!kIsCluster) num_blocks = 1;

  const int64_t begin = params.point_begin[sample];
  const int64_t num_all = params.point_begin[sample + 1] - begin;
  const int64_t num_valid = params.num_valid[sample];
  int32_t* const selected = params.selected + params.selected_begin[sample];
  float* const distances = params.distances == nullptr ? nullptr : params.distances + params.selected_begin[sample];
  const int64_t num_selected = params.selected_begin[sample + 1] - params.selected_begin[sample];
  const int64_t start = params.starts == nullptr ? 0 : params.starts[sample];
  const auto num_points = static_cast<int>(num_valid);
  const int lanes = num_blocks * num_warps * kBuckets * kWarpThreads;
  const int num_rows = max(1, (num_points + lanes * kWarpThreads - 1) / (lanes * kWarpThreads));  // of a bucket
  const int bucket_points = num_rows * kWarpThreads;
  const int num_buckets = (num_points + bucket_points - 1) / bucket_points;
  const int block_slots = (num_buckets + num_blocks - 1) / num_blocks * bucket_points;
  if (num_selected > num_valid || start < 0 || start >= num_all || (kIsShared && block_slots > capacity)) {
    for (int64_t i = rank * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < num_selected;
         i += num_blocks * static_cast<int64_t>(blockDim.x)) {
      selected[i] = kNothingSelected;
      if (distances != nullptr) distances[i] = -1;
    }
    return;
  }
  if (num_selected == 0) return;

  // Bucket b belongs to block b % num_blocks, there to warp b / num_blocks % num_warps, and so on to lanes.
  const auto local_bucket = [&](int k, int of_lane) { return (k * kWarpThreads + of_lane) * num_warps + warp; };
  const auto bucket_of = [&](int local) { return local * num_blocks + rank; };
  float* const shared_distances = reinterpret_cast<float*>(shared_points + capacity);
  const auto points_of = [&](int local) -> BucketPoints {
    const int first = bucket_of(local) * bucket_points;
    const int count = min(bucket_points, num_points - first);
    if constexpr (kIsShared) {
      return {shared_points + local * bucket_points, shared_distances + local * bucket_points, count};
    } else {
      return {workspace.points + begin + first, workspace.distances + begin + first, count};
    }
  };

  Bucket buckets[kBuckets];
#pragma unroll
  for (int k = 0; k < kBuckets; ++k) {
    Bucket& bucket = buckets[k];
    for (int axis = 0; axis < 3; ++axis) bucket.lowest[axis] = bucket.highest[axis] = 0;
    bucket.best = {};
    const int first_row = bucket_of(local_bucket(k, lane)) * num_rows;
    const int64_t num_boxes = (num_points + kWarpThreads - 1) / kWarpThreads;
    uint32_t complement = 0;
    for (int row = first_row; row < min(static_cast<int64_t>(first_row) + num_rows, num_boxes); ++row) {
      const FarthestPointBox box = workspace.boxes[FirstBox(params, sample) + row];
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) {
        bucket.lowest[axis] = row == first_row ? box.lowest[axis] : fminf(bucket.lowest[axis], box.lowest[axis]);
        bucket.highest[axis] = row == first_row ? box.highest[axis] : fmaxf(bucket.highest[axis], box.highest[axis]);
      }
      complement = max(complement, box.complement);
    }
    if (complement != 0) {
      const float* const point = params.points + (begin + static_cast<int32_t>(~complement)) * params.points_pitch;
      bucket.best = {0x7f800000u, complement, point[0], point[1], point[2]};
    }
  }
  if constexpr (kIsShared) {
    for (int i = static_cast<int>(threadIdx.x); i < block_slots; i += static_cast<int>(blockDim.x)) {
      const int position = bucket_of(i / bucket_points) * bucket_points + i % bucket_points;
      if (position >= num_points) continue;
      shared_points[i] = workspace.points[begin + position];
      shared_distances[i] = __uint_as_float(0x7f800000u);
    }
  }

  [[maybe_unused]] constexpr uint32_t kMessageBytes = sizeof(uint2) + sizeof(uint4);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kIsCluster) {
    if (threadIdx.x == 0) {
      for (uint64_t& barrier : exchange.barriers) {
        InitializeMailbox(&barrier);
        ExpectBytes(&barrier, kMessageBytes * static_cast<uint32_t>(num_blocks));
      }
    }
    SynchronizeCluster();
  }
#endif
  __syncthreads();

  const auto first_index = static_cast<int32_t>((start + workspace.states[sample].start_offset) % num_all);
  const float* const first_point = params.points + (begin + first_index) * params.points_pitch;
  float x = first_point[0], y = first_point[1], z = first_point[2];
  const bool writes = rank == 0 && threadIdx.x == 0;
  if (writes) {
    selected[0] = first_index;
    if (distances != nullptr) distances[0] = __uint_as_float(0x7f800000u);
  }

  bool is_first_of_warp = false;
  Candidate best = {};  // of the lane's buckets
  bool has_changed = true;
  for (int64_t i = 1; i < num_selected; ++i) {
    unsigned touched[kBuckets];
#pragma unroll
    for (int k = 0; k < kBuckets; ++k) {
      const Bucket& bucket = buckets[k];
      const float bound =
          SquaredLength(fmaxf(0, fmaxf(__fsub_rn(bucket.lowest[0], x), __fsub_rn(x, bucket.highest[0]))),
                        fmaxf(0, fmaxf(__fsub_rn(bucket.lowest[1], y), __fsub_rn(y, bucket.highest[1]))),
                        fmaxf(0, fmaxf(__fsub_rn(bucket.lowest[2], z), __fsub_rn(z, bucket.highest[2]))));
      touched[k] = __ballot_sync(~0u, __float_as_uint(bound) < bucket.best.distance);
    }
#pragma unroll
    for (int k = 0; k < kBuckets; ++k) {
      while (touched[k] != 0) {
        const int of_lane = __ffs(static_cast<int>(touched[k])) - 1;
        touched[k] &= touched[k] - 1;
        const Candidate updated = Update(points_of(local_bucket(k, of_lane)), num_rows, x, y, z);
        if (lane == of_lane) buckets[k].best = updated;
        has_changed = true;
      }
    }
    if (has_changed) {
      best = buckets[0].best;
#pragma unroll
      for (int k = 1; k < kBuckets; ++k) {
        if (IsBefore(buckets[k].best.distance, buckets[k].best.complement, best)) best = buckets[k].best;
      }
      is_first_of_warp = lane == FirstLane(best.distance, best.complement);
      has_changed = false;
    }
    const int list = static_cast<int>(i & 1);
    if (is_first_of_warp) {
      exchange.warp_keys[list][warp] = {best.distance, best.complement};
      exchange.warp_points[list][warp] = {best.x, best.y, best.z, 0};
    }
    __syncthreads();
    Candidate next = {};
    if (!kIsCluster || warp == 0) next = FirstOf(exchange.warp_keys[list], exchange.warp_points[list], num_warps);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (kIsCluster) {
      uint64_t* const barrier = &exchange.barriers[list];
      if (warp == 0 && lane < num_blocks) {
        const auto to = static_cast<uint32_t>(lane);
        const uint32_t remote_barrier = AddressInBlock(SharedAddress(barrier), to);
        Send(AddressInBlock(SharedAddress(&exchange.block_points[list][rank]), to), remote_barrier,
             uint4{__float_as_uint(next.x), __float_as_uint(next.y), __float_as_uint(next.z), 0});
        Send(AddressInBlock(SharedAddress(&exchange.block_keys[list][rank]), to), remote_barrier,
             uint2{next.distance, next.complement});
      }
      WaitForPhase(barrier, static_cast<uint32_t>((i - 1) / 2 & 1));
      // No block sends for this list's next turn before it has heard from this thread's block once more.
      if (threadIdx.x == 0) ExpectBytes(barrier, kMessageBytes * static_cast<uint32_t>(num_blocks));
      __syncwarp();
      next = FirstOf(exchange.block_keys[list], exchange.block_points[list], num_blocks);
    }
#endif
    x = next.x, y = next.y, z = next.z;
    if (writes) {
      selected[i] = static_cast<int32_t>(~next.complement);
      if (distances != nullptr) distances[i] = __uint_as_float(next.distance);
    }
  }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kIsCluster) SynchronizeCluster();  // a block's memory is there until the last message has come
#endif
}

// ---- Launchers ---------------------------------------------------------------------------------------------------

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
  const auto kernel = SelectKernel<1, true, true>;
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

// Of a block at most, where a sample has at most num_points: see SelectKernel.
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
  const auto kernel = SelectKernel<kBuckets, kIsShared, kIsCluster>;
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
