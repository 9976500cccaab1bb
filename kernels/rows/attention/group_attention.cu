#include <algorithm>
#include <atomic>

#include "kernels/core/launch.cuh"
#include "kernels/rows/attention/attention_tile.cuh"
#include "kernels/rows/attention/group_attention.h"
#include "kernels/rows/attention/group_attention_blocks.cuh"
#include "kernels/rows/attention/group_attention_operands.cuh"
#include "kernels/rows/attention/group_attention_small.cuh"
#include "kernels/rows/attention/group_attention_warp_groups.cuh"
#include "kernels/rows/attention/site_groups.cuh"

namespace voxserve::kernels::cuda {
namespace {

template <typename T, int kChannels>
__global__ void __launch_bounds__(kMostWarps * 32, 1)
    GroupAttentionByTilesKernel([[maybe_unused]] const __grid_constant__ GroupAttentionArguments arguments) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  extern __shared__ float4 shared[];
  WaitForEarlierKernels();
  TileRun<T, kChannels>(arguments, reinterpret_cast<unsigned char*>(shared)).Run();
#endif
}

template <typename T, int kChannels, GroupOnes kOnes>
__global__ void __launch_bounds__(kGroupRunThreads, 1)
    GroupAttentionByWarpGroupsKernel([[maybe_unused]] const __grid_constant__ GroupAttentionArguments arguments) {
#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS
  extern __shared__ __align__(1024) unsigned char group_shared[];
  WaitForEarlierKernels();
  WarpGroupRun<T, kChannels, kOnes>(arguments, group_shared).Run();
#endif
}

template <typename T, int kChannels>
__global__ void __launch_bounds__(kSmallGroupWarps* kWarpThreads, kSmallGroupBlocks)
    GroupAttentionByWarpsKernel([[maybe_unused]] const __grid_constant__ GroupAttentionArguments arguments) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  extern __shared__ float4 shared[];
  WaitForEarlierKernels();
  AttendSmallGroups<T, kChannels>(arguments, reinterpret_cast<unsigned char*>(shared));
#endif
}

template <typename T, int kChannels>
__global__ void __launch_bounds__(kLargeGroupWarps * 32, 2)
    GroupAttentionByChunksKernel([[maybe_unused]] const __grid_constant__ GroupAttentionArguments arguments) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  extern __shared__ float4 shared[];
  WaitForEarlierKernels();
  AttendLargeGroup<T, kChannels>(arguments, reinterpret_cast<unsigned char*>(shared));
#endif
}

// A block handles one head and one tile of a group's queries, without tensor cores.
template <typename T, typename Out>
__global__ void __launch_bounds__(kBlockThreads)
    GroupAttentionKernel(const __grid_constant__ GroupAttentionParams params) {
  extern __shared__ float4 shared[];
  WaitForEarlierKernels();
  const GroupPart part = GroupPartAt(params.groups, kTileQueries, blockIdx.x);
  if (part.num_rows == 0) return;  // all threads of the block
  const AttentionTile tile{.first_query = part.begin,
                           .num_queries = part.num_rows,
                           .keys_begin = part.keys_begin,
                           .keys_end = part.keys_begin + part.num_keys,
                           .head = static_cast<int32_t>(blockIdx.y)};
  AttendTile<T, Out>(
      params, tile, [&](int64_t place) { return RowAt(params.groups, place); }, shared);
}

// Returns the grid of blocks that have parts of groups of part_rows queries each.
dim3 GridOfParts(const GroupAttentionParams& params, int32_t part_rows) {
  return {static_cast<unsigned>(MaxGroupParts(params.groups, params.out.capacity, part_rows)),
          static_cast<unsigned>(params.num_heads)};
}

// The shared memory of the current device.
struct SharedMemory {
  int device = 0;
  int a_multiprocessor = 0, a_block = 0, reserved = 0;  // bytes; reserved: in each block

  // Returns the dynamic shared memory that a block may have.
  int Room() const { return a_block - kStaticBytes; }
  // Returns how many blocks with these bytes of dynamic shared memory a multiprocessor holds, 1 to most.
  int Blocks(int32_t bytes, int most) const {
    return std::clamp(a_multiprocessor / (bytes + kStaticBytes + reserved), 1, most);
  }

 private:
  static constexpr int kStaticBytes = 1024;  // more than static variables and the alignment of buffers take
};

cudaError_t ReadSharedMemory(SharedMemory& memory) {
  VOXSERVE_RETURN_IF_CUDA(cudaGetDevice(&memory.device));
  VOXSERVE_RETURN_IF_CUDA(
      cudaDeviceGetAttribute(&memory.a_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor, memory.device));
  VOXSERVE_RETURN_IF_CUDA(
      cudaDeviceGetAttribute(&memory.a_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, memory.device));
  return cudaDeviceGetAttribute(&memory.reserved, cudaDevAttrReservedSharedMemoryPerBlock, memory.device);
}

// Launches a warp for each group and head, or as many blocks as the multiprocessors hold, whose warps take turns.
template <typename T, int kChannels>
cudaError_t LaunchByWarps(const GroupAttentionArguments& arguments, const SharedMemory& memory, int32_t shared_bytes,
                          cudaStream_t stream) {
  const GroupAttentionParams& params = arguments.params;
  const auto kernel = GroupAttentionByWarpsKernel<T, kChannels>;
  static std::atomic<uint64_t> allowed = 0;
  VOXSERVE_RETURN_IF_CUDA(AllowSharedMemory(kernel, memory.Room(), memory.device, allowed));
  const int64_t max_units = MaxGroupParts(params.groups, params.out.capacity, params.groups.size) * params.num_heads;
  const int64_t num_blocks = std::min<int64_t>(int64_t{NumSms()} * memory.Blocks(shared_bytes, kSmallGroupBlocks),
                                               (max_units + kSmallGroupWarps - 1) / kSmallGroupWarps);
  return LaunchEarly(kernel, static_cast<unsigned>(num_blocks), kSmallGroupWarps * kWarpThreads,
                     static_cast<size_t>(shared_bytes), stream, arguments);
}

// Launches as many blocks as there are multiprocessors, or fewer if there are few tiles.
template <typename T, int kChannels, GroupOnes kOnes>
cudaError_t LaunchByWarpGroups(GroupAttentionArguments arguments, const SharedMemory& memory, int32_t largest_group,
                               cudaStream_t stream) {
  const GroupAttentionParams& params = arguments.params;
  const auto kernel = GroupAttentionByWarpGroupsKernel<T, kChannels, kOnes>;
  static std::atomic<uint64_t> allowed = 0;
  VOXSERVE_RETURN_IF_CUDA(AllowSharedMemory(kernel, memory.Room(), memory.device, allowed));
  arguments.buffer_keys = PaddedKeys(largest_group, kGroupStepKeys);
  const int64_t max_tiles = MaxGroupParts(params.groups, params.out.capacity, kGroupTileRows) * params.num_heads;
  const int64_t num_blocks = std::min<int64_t>(NumSms(), (max_tiles + kAttendingGroups - 1) / kAttendingGroups);
  return LaunchEarly(kernel, static_cast<unsigned>(num_blocks), kGroupRunThreads,
                     static_cast<size_t>(GroupRunBytes<kChannels>(arguments.buffer_keys)), stream, arguments);
}

template <typename T, int kChannels>
cudaError_t LaunchOnTensorCores(const GroupAttentionParams& params, cudaStream_t stream) {
  constexpr int32_t kKeyBytes = 2 * HeadRows<kChannels>::kPitch;  // of a key and its value
  const auto largest_group = static_cast<int32_t>(std::min<int64_t>(params.groups.size, params.out.capacity));
  GroupAttentionArguments arguments = ArgumentsOf<T>(params);
  arguments.buffer_keys = PaddedKeys(largest_group, kStepKeys);
  SharedMemory memory;
  VOXSERVE_RETURN_IF_CUDA(ReadSharedMemory(memory));
  const int32_t buffer_bytes = arguments.buffer_keys * kKeyBytes;
  // The kernels round differently, so the size of a group chooses one, and not the capacity, which depends on the
  // batch.
  const int32_t group_bytes = PaddedKeys(params.groups.size, kStepKeys) * kKeyBytes;
  if (params.groups.size <= kMostSmallKeys && kSmallGroupWarps * group_bytes <= memory.Room()) {
    return LaunchByWarps<T, kChannels>(arguments, memory, kSmallGroupWarps * buffer_bytes, stream);
  }
  if constexpr (kChannels <= kMostGroupChannels) {
    if (CodeVersion() == kWarpGroupCode &&
        GroupRunBytes<kChannels>(PaddedKeys(params.groups.size, kGroupStepKeys)) <= memory.Room()) {
      if constexpr (kChannels <= 16) {
        return LaunchByWarpGroups<T, kChannels, GroupOnes::kBesideValues>(arguments, memory, largest_group, stream);
      } else if (arguments.head_channels < kChannels) {
        return LaunchByWarpGroups<T, kChannels, GroupOnes::kAmongValues>(arguments, memory, largest_group, stream);
      } else {
        return LaunchByWarpGroups<T, kChannels, GroupOnes::kApart>(arguments, memory, largest_group, stream);
      }
    }
  }
  if (group_bytes > memory.Room()) {
    return LaunchEarly(GroupAttentionByChunksKernel<T, kChannels>, GridOfParts(params, kLargeGroupRows),
                       kLargeGroupWarps * 32, size_t{kChunkKeys} * kKeyBytes, stream, arguments);
  }

  // Blocks for groups of few tiles have few warps, so that the groups of a block's buffers keep them busy.
  const int32_t tiles_a_group = (largest_group + kBlockRows - 1) / kBlockRows;
  const int32_t warps = tiles_a_group >= kMostWarps / 2 ? kMostWarps : kMostWarps / 2;
  arguments.num_buffers = 2 * buffer_bytes <= memory.Room() ? 2 : 1;
  const int32_t shared_bytes = arguments.num_buffers * buffer_bytes;
  const int32_t blocks_an_sm = memory.Blocks(shared_bytes, kMostWarps / warps);

  const auto kernel = GroupAttentionByTilesKernel<T, kChannels>;
  static std::atomic<uint64_t> allowed = 0;
  VOXSERVE_RETURN_IF_CUDA(AllowSharedMemory(kernel, memory.Room(), memory.device, allowed));
  const int64_t max_tiles = MaxGroupParts(params.groups, params.out.capacity, kBlockRows) * params.num_heads;
  const int64_t num_blocks = std::min<int64_t>(int64_t{NumSms()} * blocks_an_sm, (max_tiles + warps - 1) / warps);
  return LaunchEarly(kernel, static_cast<unsigned>(num_blocks), warps * 32, static_cast<size_t>(shared_bytes), stream,
                     arguments);
}

template <typename T>
cudaError_t LaunchForChannels(const GroupAttentionParams& params, int32_t channels, cudaStream_t stream) {
  if (channels <= 16) return LaunchOnTensorCores<T, 16>(params, stream);
  if (channels <= 24) return LaunchOnTensorCores<T, 24>(params, stream);
  return LaunchOnTensorCores<T, 32>(params, stream);
}

}  // namespace

cudaError_t GroupAttention(const GroupAttentionParams& params, cudaStream_t stream) {
  if (params.out.capacity == 0 || params.out.channels == 0 || params.groups.num_samples == 0) return cudaSuccess;
  const int32_t key_channels = params.keys.channels / params.num_heads;
  const int32_t value_channels = params.values.channels / params.num_heads;
  if (key_channels > kMaxAttentionHeadChannels || value_channels > kMaxAttentionHeadChannels ||
      params.keys.dtype != params.queries.dtype || params.values.dtype != params.queries.dtype ||
      (params.out.dtype != params.queries.dtype && params.out.dtype != DType::kFloat32)) {
    return cudaErrorInvalidValue;
  }
  const NvtxRange range("GroupAttention");
  if (key_channels == value_channels && key_channels <= 32 && CodeVersion() >= kTensorCoreCode) {
    if (params.queries.dtype == DType::kFloat16) return LaunchForChannels<__half>(params, key_channels, stream);
    if (params.queries.dtype == DType::kBfloat16) return LaunchForChannels<__nv_bfloat16>(params, key_channels, stream);
  }
  return VisitInAndOutType(params.queries.dtype, params.out.dtype, [&](auto in, auto out) {
    return LaunchEarly(GroupAttentionKernel<decltype(in), decltype(out)>, GridOfParts(params, kTileQueries),
                       kBlockThreads, AttentionTileBytes(key_channels), stream, params);
  });
}

}  // namespace voxserve::kernels::cuda
