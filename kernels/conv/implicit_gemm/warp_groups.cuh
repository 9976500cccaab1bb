#pragma once

// The kernel of kernels/conv/implicit_gemm/implicit_gemm.h for Hopper. Included by .cu files alone.
//
// An item is a tile of output rows and columns or, with split K, one half of its sums: of every offset's channels the
// lower or the upper ones. Blocks are persistent and take an item more whenever they have nearly done with one. A
// block's warps have roles:
//   - one takes items, walks the masks of their tiles and notes for each stage of a ring, of two slices each, what it
//     holds;
//   - two have the weights of a stage's slices copied, in bulk, each those of every other stage;
//   - groups of four copy the input rows of a stage, 16 bytes a thread at a time, and zeros where a row has no
//     neighbour. A group fills every kCopyGroups-th stage, and looks up the rows of its next one meanwhile;
//   - one makes what was copied visible to the tensor cores, so that those who multiply need no fence of their own;
//   - warp groups multiply: each has 64 rows, skips the slices that none of these needs, and stores its sums from
//     registers.
// Notes, copies and weights run ahead of the products, into the next item too. In CUTLASS's words: those who copy are
// producers, the warp groups that multiply consumers, sums accumulators, and an item is a work tile of a persistent,
// warp-specialized kernel.
//
// A launch begins before the kernel in front of it has ended. The tiles form but its counters, and the weights, are
// read at once: the kernel in front must not write them (implicit_gemm.h). A role that reads features, stores sums or
// takes items waits for earlier kernels first.
//
// With split K warps leave their halves of a tile's sums in memory, and the one that is done last adds them up
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

// Makes the stages visible to products, one after the other. By one thread.
template <typename Shape>
__device__ void PublishStages(const Ring& ring) {
  RingPlace<Shape::kStages> place;
  for (RingPlace<Shape::kNotes> note_place;; note_place.Advance(), place.Advance()) {
    WaitForBarrier(ring.full + place.slot * 8, place.parity);
    const bool is_over = (ring.notes[note_place.slot].flags & kNoStage) != 0;
    PublishToProducts();
    ArriveAtBarrier(ring.ready + place.slot * 8);
    if (is_over) return;
  }
}

// Makes the ring's barriers. A warp makes its own one after the other, which takes some 40 cycles each, so that all
// warps make some.
template <typename Shape>
__device__ void MakeBarriers(const Ring& ring) {
  constexpr int kWarps = Shape::kThreads / 32;
  static_assert(Shape::kBarriers <= Shape::kThreads);
  const auto thread = static_cast<int>(threadIdx.x);
  const int barrier = thread % 32 * kWarps + thread / 32;
  if (barrier >= Shape::kBarriers) return;
  constexpr int kReady = Shape::kStages, kEmpty = 2 * Shape::kStages, kNoted = 3 * Shape::kStages;
  constexpr int kFreed = kNoted + Shape::kNotes, kProductWarps = Shape::kWarpGroups * 4;
  const bool is_multiplied = (barrier >= kEmpty && barrier < kNoted) || barrier >= kFreed;
  InitBarrier(ring.full + barrier * 8, is_multiplied ? kProductWarps : barrier < kReady ? kGroupThreads + 1 : 1);
  PublishBarriers();
}

#endif

template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, VOXSERVE_HAS_WARP_GROUP_PRODUCTS ? Shape::kBlocksAnSm : 1)
    WarpGroupImplicitGemmKernel([[maybe_unused]] const __grid_constant__ ImplicitGemmArguments<T> arguments) {
#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS
  extern __shared__ unsigned char shared[];
  __shared__ uint64_t barriers[Shape::kBarriers];
  __shared__ StageNote notes[Shape::kNotes];
  static_assert(sizeof(barriers) + sizeof(notes) <= Shape::kStaticBytes);
  Ring ring;
  ring.stages = (SharedAddress(shared) + Shape::kAlignment - 1) / Shape::kAlignment * Shape::kAlignment;
  ring.out_rows = ring.stages + Shape::kStages * Shape::kStageBytes;
  ring.notes = notes;
  ring.full = SharedAddress(barriers);
  ring.ready = ring.full + Shape::kStages * 8;
  ring.empty = ring.ready + Shape::kStages * 8;
  ring.noted = ring.empty + Shape::kStages * 8;
  ring.freed = ring.noted + Shape::kNotes * 8;
  MakeBarriers<Shape>(ring);
  __syncthreads();
  // Else they would be computed again and again.
  asm volatile("" : "+r"(ring.stages), "+r"(ring.full), "+r"(ring.ready), "+r"(ring.empty));
  asm volatile("" : "+r"(ring.noted), "+r"(ring.freed));
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
    } else if (threadIdx.x == kScheduling + 32) {
      CopyWeights<T, Shape>(arguments, ring, 0);
    } else if (threadIdx.x == kScheduling + 64) {
      CopyWeights<T, Shape>(arguments, ring, 1);
    } else if (threadIdx.x == kScheduling + 96) {
      PublishStages<Shape>(ring);
    }
  }
#else
  __trap();  // CodeVersion says that there is nothing here
#endif
}

}  // namespace voxserve::kernels::cuda
