#pragma once

// The kernel of kernels/conv/implicit_gemm/implicit_gemm.h for Hopper. Included by .cu files alone.
//
// Blocks are persistent and take every gridDim-th tile. A block's warps have roles:
//   - one walks the masks of the block's tiles and notes for each stage of a ring, of two slices each, what it holds;
//   - two have the weights of a stage's slices copied, in bulk;
//   - groups of four copy the input rows of a stage, 16 bytes a thread at a time, and zeros where a row has no
//     neighbour. A group fills every kCopyGroups-th stage, and knows the rows of its next one before this one is free;
//   - warp groups multiply: each has 64 rows, skips the slices that none of these needs, and stores its sums from
//     registers.
// Notes, copies and weights run ahead of the products, into the next tile too.
//
// With split K the blocks of a cluster have the same tile and each its part of every offset's channels. In the end they
// exchange their sums through shared memory; each adds up some columns, in the order of the parts.

#include <cstdint>

#include "kernels/conv/implicit_gemm/arguments.cuh"
#include "kernels/conv/implicit_gemm/warp_group_copier.cuh"
#include "kernels/conv/implicit_gemm/warp_group_ring.cuh"
#include "kernels/conv/implicit_gemm/warp_group_scheduler.cuh"
#include "kernels/conv/implicit_gemm/warp_group_sums.cuh"
#include "kernels/core/barriers.cuh"

namespace voxserve::kernels::cuda {

template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, VOXSERVE_HAS_WARP_GROUP_PRODUCTS ? Shape::kBlocksAnSm : 1)
    WarpGroupImplicitGemmKernel([[maybe_unused]] const __grid_constant__ ImplicitGemmArguments<T> arguments) {
#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS
  extern __shared__ unsigned char shared[];
  __shared__ uint64_t barriers[2 * Shape::kStages + 2 * Shape::kNotes + 2 * Shape::kWarpGroups];
  __shared__ StageNote notes[Shape::kNotes];
  Ring ring;
  ring.stages = (SharedAddress(shared) + Shape::kAlignment - 1) / Shape::kAlignment * Shape::kAlignment;
  ring.sums = ring.stages + Shape::kStages * Shape::kStageBytes;
  ring.notes = notes;
  ring.full = SharedAddress(barriers);
  ring.empty = ring.full + Shape::kStages * 8;
  ring.noted = ring.empty + Shape::kStages * 8;
  ring.freed = ring.noted + Shape::kNotes * 8;
  ring.ready = ring.freed + Shape::kNotes * 8;
  ring.read = ring.ready + Shape::kWarpGroups * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kStages; ++i) {
      InitBarrier(ring.full + i * 8, kGroupThreads + kSlicesAStage);
      InitBarrier(ring.empty + i * 8, Shape::kWarpGroups * 4);
    }
    for (int i = 0; i < Shape::kNotes; ++i) {
      InitBarrier(ring.noted + i * 8, 1);
      InitBarrier(ring.freed + i * 8, Shape::kWarpGroups * 4);
    }
    for (int i = 0; i < Shape::kWarpGroups; ++i) {
      InitBarrier(ring.ready + i * 8, Shape::kSplitK * 4);
      InitBarrier(ring.read + i * 8, Shape::kSplitK * 4);
    }
    PublishBarriers();
  }
  __syncthreads();
  if constexpr (Shape::kSplitK > 1) SyncCluster();  // barriers are there for the other blocks too
  // Else they would be computed again and again.
  asm volatile("" : "+r"(ring.stages), "+r"(ring.full), "+r"(ring.empty), "+r"(ring.noted), "+r"(ring.freed));
  constexpr int kFirstCopying = Shape::kWarpGroups * kGroupThreads;
  constexpr int kScheduling = kFirstCopying + Shape::kCopyGroups * kGroupThreads;
  if (threadIdx.x < kFirstCopying) {
    SetRegisters<Shape::kProductRegisters, true>();
    SumMaker<T, Shape>(arguments, ring).Run();
  } else {
    SetRegisters<Shape::kCopyRegisters, false>();
    if (threadIdx.x < kScheduling) {
      RowCopier<T, Shape>(arguments, ring).Run();
    } else if (threadIdx.x < kScheduling + 32) {
      StageScheduler<T, Shape>(arguments, ring).Run();
    } else if (threadIdx.x % 32 == 0 && threadIdx.x < kScheduling + (kSlicesAStage + 1) * 32) {
      CopyWeights<T, Shape>(arguments, ring, (static_cast<int32_t>(threadIdx.x) - kScheduling) / 32 - 1);
    }
  }
#endif
}

}  // namespace voxserve::kernels::cuda
