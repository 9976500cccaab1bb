#pragma once

// The kernel of Mlp (mlp.h). Only the files of its types include this header.
//
// A block has some warp groups that compute, and one more, of which a single thread copies weights. A warp group
// computes 64 rows at a time, its tile: in each round, group i of block b has tile i * blocks + b of the round. Weights
// come in bulk copies, chunk by chunk (mlp_layout.h), into two rings of stages: one of first parts, one of second
// parts. If all chunks have a stage, they are copied once and stay. Otherwise all warp groups of the block go through
// the ring together.
//
// While a warp group's second product of a chunk runs, it activates the hidden values of the next chunk.

#include <algorithm>

#include "kernels/core/barriers.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_tiles.cuh"
#include "kernels/core/tensor_cores.cuh"
#include "kernels/rows/mlp/mlp.h"
#include "kernels/rows/mlp/mlp_group.cuh"
#include "kernels/rows/mlp/mlp_launch.h"
#include "kernels/rows/mlp/mlp_layout.h"
#include "kernels/rows/mlp/mlp_sizes.cuh"

namespace voxserve::kernels::cuda {

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

// Copies the weights of all chunks into the rings, again for each of the block's rounds where they do not stay. One
// thread calls it.
template <int kIn, int kOut>
__device__ void CopyMlpWeights(const MlpParams& params, const MlpRing& first, const MlpRing& second, int32_t stages) {
  using Sizes = MlpSizes<kIn, kOut>;
  const int32_t num_chunks = (params.hidden_channels + kMlpChunk - 1) / kMlpChunk;
  const auto* const weights = static_cast<const char*>(params.weights);
  struct Position {
    int64_t count = 0;  // of copied parts
    int32_t chunk = 0;
    MlpStage at;
  };
  Position of_first, of_second;
  const auto copy = [&](const MlpRing& ring, Position& position, uint32_t offset) {
    const int32_t stage = position.at.stage;
    if (position.count >= stages) WaitForBarrier(ring.Empty(stage), position.at.parity ^ 1);
    ArriveExpecting(ring.Full(stage), ring.bytes);
    CopyBulk(ring.Stage(stage), weights + position.chunk * int64_t{Sizes::kFirstBytes + Sizes::kSecondBytes} + offset,
             ring.bytes, ring.Full(stage));
    ++position.count;
    if (++position.chunk == num_chunks) position.chunk = 0;
    position.at.Advance(stages);
  };
  // A chunk's first product comes before the second product of the chunk before it, and so do the copies.
  const auto copy_to = [&](int64_t end) {
    while (of_second.count < end) {
      if (of_first.count < end) copy(first, of_first, 0);
      if (of_first.count > of_second.count + 1 || of_first.count == end) copy(second, of_second, Sizes::kFirstBytes);
    }
  };
  copy_to(stages);
  WaitForEarlierKernels();
  const int64_t num_rows = NumRows(params.out.capacity, params.out.num_rows);
  const int64_t num_tiles = (num_rows + Sizes::kTileRows - 1) / Sizes::kTileRows;
  const int64_t round_tiles = int64_t{gridDim.x} * Sizes::kGroups;
  const int64_t num_rounds = num_tiles <= blockIdx.x ? 0 : (num_tiles - blockIdx.x + round_tiles - 1) / round_tiles;
  if (num_chunks > stages) copy_to(num_rounds * num_chunks);
  if (num_rounds > 0) return;
  // No warp group waits for the copies, and a block must not end before they have landed.
  for (int32_t stage = 0; stage < stages; ++stage) {
    WaitForBarrier(first.Full(stage), 0);
    WaitForBarrier(second.Full(stage), 0);
  }
}

#endif  // VOXSERVE_HAS_WARP_GROUP_PRODUCTS

template <typename T, int kIn, int kOut, bool kIsWhole>
__global__ void __launch_bounds__(MlpSizes<kIn, kOut>::kThreads, 1)
    MlpKernel(const __grid_constant__ MlpParams params) {
#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS
  using Sizes = MlpSizes<kIn, kOut>;
  extern __shared__ char unaligned[];
  __shared__ uint64_t barriers[4][Sizes::kMaxStages];
  const int32_t num_chunks = (params.hidden_channels + kMlpChunk - 1) / kMlpChunk;
  const int32_t stages = min(num_chunks, Sizes::kMaxStages);
  const uint32_t padding = -SharedAddress(unaligned) % Sizes::kAlignment;
  const uint32_t begin = SharedAddress(unaligned) + padding;
  const uint32_t inputs = begin + stages * (Sizes::kFirstBytes + Sizes::kSecondBytes);
  auto* const hidden_bias =
      reinterpret_cast<float*>(unaligned + padding + (inputs - begin) + Sizes::kGroups * Sizes::kInputBytes);
  const MlpRing first{.stages = begin,
                      .full = SharedAddress(barriers[0]),
                      .empty = SharedAddress(barriers[1]),
                      .bytes = Sizes::kFirstBytes};
  const MlpRing second{.stages = begin + stages * Sizes::kFirstBytes,
                       .full = SharedAddress(barriers[2]),
                       .empty = SharedAddress(barriers[3]),
                       .bytes = Sizes::kSecondBytes};
  if (threadIdx.x == 0) {
    for (int32_t stage = 0; stage < stages; ++stage) {
      for (const MlpRing& ring : {first, second}) {
        InitBarrier(ring.Full(stage), 1);
        InitBarrier(ring.Empty(stage), Sizes::kGroups * Sizes::kGroupThreads / kWarpThreads);
      }
    }
    PublishBarriers();
  }
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < num_chunks * kMlpChunk; i += Sizes::kThreads) {
    hidden_bias[i] = params.hidden_bias[i];
  }
  __syncthreads();
  const int32_t group = __shfl_sync(~0u, static_cast<int32_t>(threadIdx.x) / Sizes::kGroupThreads, 0);
  if (group == Sizes::kGroups) {
    SetRegisters<MlpCopyingRegisters(Sizes::kGroups), /*kAreMore=*/false>();
    if (threadIdx.x == Sizes::kGroups * Sizes::kGroupThreads) {
      CopyMlpWeights<kIn, kOut>(params, first, second, stages);
    }
  } else {
    SetRegisters<MlpComputingRegisters(Sizes::kGroups), /*kAreMore=*/true>();
    WaitForEarlierKernels();
    MlpGroup<T, kIn, kOut, kIsWhole>(params, first, second, stages, inputs, hidden_bias, group).Run();
  }
#endif
}

template <typename T, int kIn, int kOut>
cudaError_t LaunchMlpKernel(const MlpParams& params, cudaStream_t stream) {
  using Sizes = MlpSizes<kIn, kOut>;
  constexpr size_t kMostSharedBytes = Sizes::SharedBytes(kMaxMlpHiddenChannels / kMlpChunk);
  static_assert(kMostSharedBytes <= 227 * 1024 - 4 * Sizes::kMaxStages * sizeof(uint64_t));
  const size_t shared_bytes = Sizes::SharedBytes((params.hidden_channels + kMlpChunk - 1) / kMlpChunk);
  const int64_t num_tiles = (params.out.capacity + Sizes::kTileRows - 1) / Sizes::kTileRows;
  const int64_t num_blocks = std::min<int64_t>(num_tiles, NumSms());
  void (*kernel)(MlpParams) = MlpKernel<T, kIn, kOut, /*kIsWhole=*/false>;
  if constexpr (kIn == kOut) {
    if (params.in.channels == kIn && params.out.channels == kOut) kernel = MlpKernel<T, kIn, kOut, /*kIsWhole=*/true>;
  }
  // The limit belongs to the kernel, not to the launch, so it is the same in all threads.
  VOXSERVE_RETURN_IF_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kMostSharedBytes)));
  return LaunchEarly(kernel, static_cast<unsigned>(num_blocks), Sizes::kThreads, shared_bytes, stream, params);
}

template <typename T>
cudaError_t LaunchMlpOf(const MlpShape& shape, const MlpParams& params, cudaStream_t stream) {
  if (shape.padded_in == 32 && shape.padded_out == 128) return LaunchMlpKernel<T, 32, 128>(params, stream);
  if (shape.padded_in == 32 && shape.padded_out == 192) return LaunchMlpKernel<T, 32, 192>(params, stream);
  switch (shape.padded_out) {
    case 32:
      return LaunchMlpKernel<T, 32, 32>(params, stream);
    case 64:
      return LaunchMlpKernel<T, 64, 64>(params, stream);
    case 96:
      return LaunchMlpKernel<T, 96, 96>(params, stream);
    case 128:
      return LaunchMlpKernel<T, 128, 128>(params, stream);
    case 192:
      return LaunchMlpKernel<T, 192, 192>(params, stream);
    case 256:
      return LaunchMlpKernel<T, 256, 256>(params, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace voxserve::kernels::cuda
