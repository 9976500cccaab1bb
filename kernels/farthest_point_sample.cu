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

constexpr uint32_t kInfinityBits = 0x7f800000u;

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

// A bucket's points, wherever they are kept.
struct BucketPoints {
  float4* points;
  float* distances;
  int num_points;
};

// Who has which of a sample's sorted points. Buckets of num_rows * 32 of them are dealt out, bucket b to block
// b % num_blocks, which deals out those it got to its warps, and these to their lanes, kBuckets times.
template <int kBuckets>
struct Spread {
  __device__ Spread(int64_t sample_points, int blocks, int rank_in_sample)
      : num_points(static_cast<int>(sample_points)), num_blocks(blocks), rank(rank_in_sample) {
    const int64_t points_a_row = int64_t{num_blocks} * static_cast<int64_t>(blockDim.x) * kBuckets * kWarpThreads;
    num_rows = max(1, static_cast<int>((sample_points + points_a_row - 1) / points_a_row));
  }

  __device__ int BucketSize() const { return num_rows * kWarpThreads; }
  // Of the k-th bucket of a lane of this thread's warp, its number in the block; then its number in the sample.
  __device__ int InBlock(int k, int lane) const {
    const auto num_warps = static_cast<int>(blockDim.x) / kWarpThreads;
    return (k * kWarpThreads + lane) * num_warps + static_cast<int>(threadIdx.x) / kWarpThreads;
  }
  __device__ int InSample(int in_block) const { return in_block * num_blocks + rank; }
  // Points that the block has room for where it keeps them in shared memory.
  __device__ int BlockSlots() const {
    const int num_buckets = (num_points + BucketSize() - 1) / BucketSize();
    return (num_buckets + num_blocks - 1) / num_blocks * BucketSize();
  }

  int num_points;
  int num_blocks;
  int rank;      // the block's
  int num_rows;  // of 32 points, in a bucket
};

// With all distances infinite.
template <int kBuckets>
__device__ Bucket LoadBucket(const FarthestPointSampleParams& params, const FarthestPointBox* boxes, int sample,
                             const Spread<kBuckets>& spread, int in_block) {
  Bucket bucket = {};
  const int first_row = spread.InSample(in_block) * spread.num_rows;
  const int num_boxes = (spread.num_points + kWarpThreads - 1) / kWarpThreads;
  uint32_t complement = 0;
  for (int row = first_row; row < min(first_row + spread.num_rows, num_boxes); ++row) {
    const FarthestPointBox box = boxes[FirstBox(params, sample) + row];
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      bucket.lowest[axis] = row == first_row ? box.lowest[axis] : fminf(bucket.lowest[axis], box.lowest[axis]);
      bucket.highest[axis] = row == first_row ? box.highest[axis] : fmaxf(bucket.highest[axis], box.highest[axis]);
    }
    complement = max(complement, box.complement);
  }
  if (complement == 0) return bucket;  // there is no such bucket
  const int64_t point_row = params.point_begin[sample] + static_cast<int32_t>(~complement);
  const float* const point = params.points + point_row * params.points_pitch;
  bucket.best = {kInfinityBits, complement, point[0], point[1], point[2]};
  return bucket;
}

// Whether a bucket may have a point that is nearer to (x, y, z) than to what was selected before.
__device__ bool IsTouched(const Bucket& bucket, float x, float y, float z) {
  const float bound = SquaredLength(fmaxf(0, fmaxf(__fsub_rn(bucket.lowest[0], x), __fsub_rn(x, bucket.highest[0]))),
                                    fmaxf(0, fmaxf(__fsub_rn(bucket.lowest[1], y), __fsub_rn(y, bucket.highest[1]))),
                                    fmaxf(0, fmaxf(__fsub_rn(bucket.lowest[2], z), __fsub_rn(z, bucket.highest[2]))));
  return __float_as_uint(bound) < bucket.best.distance;
}

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

// The candidates of a block's warps, and of a cluster's blocks. One list is read while the next is written.
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

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ void ExpectCandidates(Exchange& exchange, int list, int num_blocks) {
  constexpr uint32_t kCandidateBytes = sizeof(uint2) + sizeof(uint4);
  ExpectBytes(&exchange.barriers[list], kCandidateBytes * static_cast<uint32_t>(num_blocks));
}

// All threads of the cluster, before the first FirstOfCluster.
__device__ void OpenMailboxes(Exchange& exchange, int num_blocks) {
  if (threadIdx.x == 0) {
    for (int list = 0; list < 2; ++list) {
      InitializeMailbox(&exchange.barriers[list]);
      ExpectCandidates(exchange, list, num_blocks);
    }
  }
  SynchronizeCluster();
}

// Of the block's candidate, which the first warp has, and those of the other blocks. turn: 0, 1, ...
__device__ Candidate FirstOfCluster(Exchange& exchange, int64_t turn, const Candidate& of_block, int rank,
                                    int num_blocks) {
  const auto list = static_cast<int>(turn & 1);
  uint64_t* const barrier = &exchange.barriers[list];
  if (static_cast<int>(threadIdx.x) < num_blocks) {
    const uint32_t to = threadIdx.x;
    const uint32_t remote_barrier = AddressInBlock(SharedAddress(barrier), to);
    Send(AddressInBlock(SharedAddress(&exchange.block_points[list][rank]), to), remote_barrier,
         uint4{__float_as_uint(of_block.x), __float_as_uint(of_block.y), __float_as_uint(of_block.z), 0});
    Send(AddressInBlock(SharedAddress(&exchange.block_keys[list][rank]), to), remote_barrier,
         uint2{of_block.distance, of_block.complement});
  }
  __syncwarp();
  WaitForPhase(barrier, static_cast<uint32_t>(turn / 2 & 1));
  // In time: no block sends for this list's next turn before it has heard from this one once more.
  if (threadIdx.x == 0) ExpectCandidates(exchange, list, num_blocks);
  __syncwarp();
  return FirstOf(exchange.block_keys[list], exchange.block_points[list], num_blocks);
}

#endif

// A block a sample, or a cluster of num_blocks. capacity: points that a block has room for in shared memory.
template <int kBuckets, bool kIsShared, bool kIsCluster>
__global__ void __launch_bounds__(MaxFarthestPointWarps(kBuckets) * kWarpThreads, 1)
    SelectKernel(const __grid_constant__ FarthestPointSampleParams params,
                 const __grid_constant__ FarthestPointWorkspace workspace, int num_blocks, int capacity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  if constexpr (kIsCluster) return;  // never launched there
#endif
  extern __shared__ float4 shared_points[];
  float* const shared_distances = reinterpret_cast<float*>(shared_points + capacity);
  __shared__ alignas(16) Exchange exchange;
  const auto lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const auto warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int sample = kIsCluster ? static_cast<int>(blockIdx.x) / num_blocks : static_cast<int>(blockIdx.x);
  const int64_t begin = params.point_begin[sample];
  const int64_t num_all = params.point_begin[sample + 1] - begin;
  const Spread<kBuckets> spread(params.num_valid[sample], kIsCluster ? num_blocks : 1,
                                kIsCluster ? static_cast<int>(blockIdx.x) % num_blocks : 0);

  int32_t* const selected = params.selected + params.selected_begin[sample];
  float* const distances = params.distances == nullptr ? nullptr : params.distances + params.selected_begin[sample];
  const int64_t num_selected = params.selected_begin[sample + 1] - params.selected_begin[sample];
  const int64_t start = params.starts == nullptr ? 0 : params.starts[sample];
  const bool has_room = !kIsShared || spread.BlockSlots() <= capacity;  // max_sample_points may be wrong
  if (num_selected > spread.num_points || start < 0 || start >= num_all || !has_room) {
    for (int64_t i = threadIdx.x; spread.rank == 0 && i < num_selected; i += blockDim.x) {
      selected[i] = kNothingSelected;
      if (distances != nullptr) distances[i] = -1;
    }
    return;
  }
  if (num_selected == 0) return;

  if constexpr (kIsShared) {
    for (auto i = static_cast<int>(threadIdx.x); i < spread.BlockSlots(); i += static_cast<int>(blockDim.x)) {
      const int position = spread.InSample(i / spread.BucketSize()) * spread.BucketSize() + i % spread.BucketSize();
      if (position >= spread.num_points) continue;
      shared_points[i] = workspace.points[begin + position];
      shared_distances[i] = __uint_as_float(kInfinityBits);
    }
  }
  const auto points_of = [&](int in_block) -> BucketPoints {
    const int first = spread.InSample(in_block) * spread.BucketSize();
    const int count = min(spread.BucketSize(), spread.num_points - first);
    if constexpr (kIsShared) {
      const int slot = in_block * spread.BucketSize();
      return {shared_points + slot, shared_distances + slot, count};
    } else {
      return {workspace.points + begin + first, workspace.distances + begin + first, count};
    }
  };
  Bucket buckets[kBuckets];
#pragma unroll
  for (int k = 0; k < kBuckets; ++k) {
    buckets[k] = LoadBucket(params, workspace.boxes, sample, spread, spread.InBlock(k, lane));
  }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kIsCluster) OpenMailboxes(exchange, num_blocks);
#endif
  __syncthreads();

  const auto first_index = static_cast<int32_t>((start + workspace.states[sample].start_offset) % num_all);
  const float* const first_point = params.points + (begin + first_index) * params.points_pitch;
  Candidate next = {kInfinityBits, ~static_cast<uint32_t>(first_index), first_point[0], first_point[1], first_point[2]};
  Candidate best = {};  // of the lane's buckets
  bool is_first_of_warp = false;
  for (int64_t i = 0;; ++i) {
    if (spread.rank == 0 && threadIdx.x == 0) {
      selected[i] = static_cast<int32_t>(~next.complement);
      if (distances != nullptr) distances[i] = __uint_as_float(next.distance);
    }
    if (i + 1 == num_selected) break;

    bool has_changed = i == 0;
    unsigned touched[kBuckets];  // a bit a lane
#pragma unroll
    for (int k = 0; k < kBuckets; ++k) touched[k] = __ballot_sync(~0u, IsTouched(buckets[k], next.x, next.y, next.z));
#pragma unroll
    for (int k = 0; k < kBuckets; ++k) {
      while (touched[k] != 0) {
        const int of_lane = __ffs(static_cast<int>(touched[k])) - 1;
        touched[k] &= touched[k] - 1;
        const Candidate updated =
            Update(points_of(spread.InBlock(k, of_lane)), spread.num_rows, next.x, next.y, next.z);
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
    }
    const auto list = static_cast<int>(i & 1);
    if (is_first_of_warp) {
      exchange.warp_keys[list][warp] = {best.distance, best.complement};
      exchange.warp_points[list][warp] = {best.x, best.y, best.z, 0};
    }
    __syncthreads();
    if (!kIsCluster || warp == 0) {
      next = FirstOf(exchange.warp_keys[list], exchange.warp_points[list], static_cast<int>(blockDim.x) / kWarpThreads);
    }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (kIsCluster) next = FirstOfCluster(exchange, i, next, spread.rank, num_blocks);
#endif
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
