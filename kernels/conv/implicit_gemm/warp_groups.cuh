#pragma once

// The implicit GEMM kernel for Hopper (kernels/conv/implicit_gemm/implicit_gemm.h). Only .cu files include this header.
//
// An item is a tile of output rows and columns. With split K an item is one half of a tile's sums, over the lower or
// the upper channels of every kernel offset. Blocks are persistent and take another item when the current one is nearly
// done. A stage is one slot of a ring in shared memory and holds two slices (slices.h) of inputs and weights, in 8 bits
// four. The warps of a block have roles:
// - Scheduler, 1 warp: takes items, walks the masks of their tiles, and writes a note for each stage that says which
//   slices the stage holds.
// - Weight copiers, 2 threads in different warps: take turns to start the bulk copies of a stage's weights.
// - Row copiers, groups of four warps: copy the input rows of a stage, 16 bytes per thread at a time, and write zeros
//   if a row has no neighbour. A group fills every kCopyGroups-th stage and meanwhile looks up the input rows of its
//   next stage.
// - Publisher, 1 thread: makes the copies visible to the tensor cores, so that the multiplying warps need no fence.
// - Products, one or two warp groups: each computes 64 rows of the tile, skips the slices that none of these rows
//   needs, and stores its sums from registers.
//
// Notes and copies run ahead of the products, also into the next item. In CUTLASS's words: the copying roles are
// producers, the multiplying warp groups consumers, sums accumulators, and an item is a work tile of a persistent,
// warp-specialized kernel.
//
// The kernel starts before its predecessor on the stream has ended. It reads the tiles form (except its counters),
// the weights and the bias at once, so the predecessor must not write them (implicit_gemm.h). A role that reads
// features, stores sums or uses the counters first waits for the earlier kernels.
//
// With split K, two warps each write one half of the same sums to memory. The warp that finishes last adds the halves
// (split_sums.cuh).

#include <cstdint>

#include "kernels/conv/implicit_gemm/arguments.cuh"
#include "kernels/conv/implicit_gemm/warp_group_copier.cuh"
#include "kernels/conv/implicit_gemm/warp_group_ring.cuh"
#include "kernels/conv/implicit_gemm/warp_group_scheduler.cuh"
#include "kernels/conv/implicit_gemm/warp_group_sums.cuh"
#include "kernels/core/barriers.cuh"

namespace voxserve::kernels::cuda {

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

// Makes each stage visible to the products once it is copied. One thread runs this function.
template <typename Shape>
__device__ void PublishStages(const Ring<Shape>& ring) {
  RingPlace<Shape::kStages> place;
  for (RingPlace<Shape::kNotes> note_place;; note_place.Advance(), place.Advance()) {
    WaitForBarrier(ring.full + place.slot * 8, place.parity);
    const bool is_over = (ring.notes[note_place.slot].flags & kNoStage) != 0;
    PublishToProducts();
    ArriveAtBarrier(ring.ready + place.slot * 8);
    if (is_over) return;
  }
}

// Initialises the ring's barriers. All warps share the work, since a single warp would need some 40 cycles for each
// barrier.
template <typename Shape>
__device__ void MakeBarriers(const Ring<Shape>& ring) {
  constexpr int kWarps = Shape::kThreads / 32;
  static_assert(Shape::kBarriers <= Shape::kThreads);
  const auto thread = static_cast<int>(threadIdx.x);
  const int barrier = thread % 32 * kWarps + thread / 32;
  if (barrier >= Shape::kBarriers) return;
  constexpr int kReady = Shape::kStages, kEmpty = 2 * Shape::kStages, kNoted = 3 * Shape::kStages;
  constexpr int kFreed = kNoted + Shape::kNotes, kProductArrivals = Shape::kWarpGroups * 4 * kArrivalsAWarp;
  const bool is_multiplied = (barrier >= kEmpty && barrier < kNoted) || barrier >= kFreed;
  InitBarrier(ring.full + barrier * 8, is_multiplied ? kProductArrivals : barrier < kReady ? kGroupThreads + 1 : 1);
  PublishBarriers();
}

#endif

template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, VOXSERVE_HAS_WARP_GROUP_PRODUCTS ? Shape::kBlocksAnSm : 1)
    WarpGroupImplicitGemmKernel([[maybe_unused]] const __grid_constant__ ArgumentsOf<T, Shape> arguments) {
#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS
  extern __shared__ unsigned char shared[];
  __shared__ uint64_t barriers[Shape::kBarriers];
  __shared__ StageNote<Shape::kSlices> notes[Shape::kNotes];
  __shared__ alignas(16) float kept[Shape::kKeptArrays * kKeptChannels];
  static_assert(sizeof(barriers) + sizeof(notes) + sizeof(kept) <= Shape::kStaticBytes);
  Ring<Shape> ring;
  ring.stages = (SharedAddress(shared) + Shape::kAlignment - 1) / Shape::kAlignment * Shape::kAlignment;
  ring.out_rows = ring.stages + Shape::kStages * Shape::kStageBytes;
  ring.notes = notes;
  ring.kept = SharedAddress(kept);
  ring.full = SharedAddress(barriers);
  ring.ready = ring.full + Shape::kStages * 8;
  ring.empty = ring.ready + Shape::kStages * 8;
  ring.noted = ring.empty + Shape::kStages * 8;
  ring.freed = ring.noted + Shape::kNotes * 8;
  MakeBarriers<Shape>(ring);
  __syncthreads();
  // Keeps the compiler from computing these addresses again at each use.
  asm volatile("" : "+r"(ring.stages), "+r"(ring.full), "+r"(ring.ready), "+r"(ring.empty));
  asm volatile("" : "+r"(ring.noted), "+r"(ring.freed));
  constexpr int kFirstCopying = Shape::kWarpGroups * kGroupThreads;
  constexpr int kScheduling = kFirstCopying + Shape::kCopyGroups * kGroupThreads;
  if (threadIdx.x < kFirstCopying) {
    SetRegisters<Shape::kProductRegisters, true>();
    ProductGroup<T, Shape>(arguments, ring).Run();
  } else {
    SetRegisters<Shape::kCopyRegisters, false>();
    if (threadIdx.x < kScheduling) {
      RowCopier<T, Shape>(arguments, ring).Run();
    } else if (threadIdx.x < kScheduling + 32) {
      StageScheduler<T, Shape>(arguments, ring).Run();
    } else if (threadIdx.x == kScheduling + 32) {
      CopyWeights<T, Shape>(arguments, ring, 0);
    } else if (threadIdx.x == kScheduling + 64) {
      CopyWeights<T, Shape>(arguments, ring, 1);
    } else if (threadIdx.x == kScheduling + 96) {
      PublishStages<Shape>(ring);
    }
  }
#else
  __trap();  // unreachable: CodeVersion tells callers that this code is missing
#endif
}

}  // namespace voxserve::kernels::cuda
