#pragma once

// The role of warp_groups.cuh that multiplies stages and stores the sums. Included by .cu files alone.

#include <cstdint>

#include "kernels/conv/implicit_gemm/arguments.cuh"
#include "kernels/conv/implicit_gemm/store_sums.cuh"
#include "kernels/conv/implicit_gemm/warp_group_ring.cuh"
#include "kernels/core/barriers.cuh"

namespace voxserve::kernels::cuda {

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

// A warp group that multiplies and stores 64 rows of each tile.
template <typename T, typename Shape>
class SumMaker {
 public:
  __device__ SumMaker(const ImplicitGemmArguments<T>& arguments, const Ring& ring)
      : arguments_(arguments),
        ring_(ring),
        num_out_(static_cast<int32_t>(NumRows(arguments.tiles.out_capacity, arguments.tiles.num_out))) {}

  __device__ void Run() {
    // One value for a warp, as the compiler sees: else it would let products wait for each other.
    const auto of_warp = [](auto value) { return __shfl_sync(~0u, value, 0); };
    const int32_t group = of_warp(static_cast<int32_t>(threadIdx.x) / kGroupThreads);
    const bool arrives = threadIdx.x % 32 == 0;
    float sums[kInstructions][kInstructionColumns / 2] = {};
    RingPlace<Shape::kStages> place, held;
    RingPlace<Shape::kNotes> note_place, held_note;
    bool holds = false;  // a stage whose products may go on
    const auto release = [&] {
      if (arrives && holds) {
        ArriveAtBarrier(ring_.empty + held.slot * 8);
        ArriveAtBarrier(ring_.freed + held_note.slot * 8);
      }
    };
    for (;; place.Advance(), note_place.Advance()) {
      WaitForBarrier(ring_.noted + note_place.slot * 8, note_place.parity);
      const StageNote note = ring_.notes[note_place.slot];
      if (of_warp(note.row_tile) < 0) break;
      WaitForBarrier(ring_.full + place.slot * 8, place.parity);
      PublishToProducts();
      const uint32_t stage = ring_.stages + place.slot * Shape::kStageBytes;
      // One series of products in each case: a series must not be begun under a condition.
      const bool has_first = HasSlice(of_warp(note.has[0]), group), has_second = HasSlice(of_warp(note.has[1]), group);
      if (has_first && has_second) {
        BeginProducts();
        MultiplySlice(stage, 0, group, sums);
        MultiplySlice(stage, 1, group, sums);
        CommitProducts();
      } else if (has_first || has_second) {
        BeginProducts();
        MultiplySlice(stage, has_first ? 0 : 1, group, sums);
        CommitProducts();
      }
      if ((of_warp(note.column) & kLast) == 0) {
        if (has_first || has_second) {
          WaitForProducts<1>();
        } else {
          WaitForProducts<0>();
        }
        release();
        holds = true;
        held = place;
        held_note = note_place;
        continue;
      }
      WaitForProducts<0>();
#pragma unroll
      for (auto& of_instruction : sums) {
#pragma unroll
        for (float& sum : of_instruction) asm volatile("" : "+f"(sum)::"memory");  // nobody reads it before
      }
      release();
      holds = true;
      held = place;
      held_note = note_place;
      release();
      holds = false;
      const int64_t first_place = int64_t{note.row_tile} * Shape::kRows + group * 64;
      if constexpr (Shape::kSplitK > 1) {
        Exchange(sums, group);
        StoreExchanged(group, first_place, note.column & ~kLast);
      } else {
#pragma unroll
        for (int i = 0; i < kInstructions; ++i)
          Store(sums[i], first_place, (note.column & ~kLast) + i * kInstructionColumns);
      }
#pragma unroll
      for (auto& of_instruction : sums) {
#pragma unroll
        for (float& sum : of_instruction) sum = 0;
      }
    }
    if constexpr (Shape::kSplitK > 1) {  // a block's shared memory is there until nobody reads it any more
      WaitForClusterBarrier(ring_.read + group * 8, exchange_parity_ ^ 1);
    }
  }

 private:
  // An instruction of more columns would need more registers than a block of so many threads begins with.
  static constexpr int kInstructions = Shape::kColumns > 128 ? 2 : 1;
  static constexpr int kInstructionColumns = Shape::kColumns / kInstructions;

  static constexpr int kGroupSums = Shape::kColumns / 2 * kGroupThreads;

  // Whether the warp group has rows in any of a slice's offsets.
  __device__ static bool HasSlice(uint32_t has, int32_t group) {
    return (has >> (kTileBits * group) & ((1u << kTileBits) - 1)) != 0;
  }

  __device__ static void MultiplySlice(uint32_t stage, int32_t slice, int32_t group,
                                       float (&sums)[kInstructions][kInstructionColumns / 2]) {
    const uint64_t a = SwizzledMatrix<kSliceBytes>(stage + slice * Shape::kInputBytes + group * 64 * kSliceBytes);
    const uint64_t b =
        SwizzledMatrix<kSliceBytes>(stage + kSlicesAStage * Shape::kInputBytes + slice * Shape::kWeightBytes);
    constexpr int kStepAddress = 32 >> 4;
    constexpr int kNextColumns = kInstructionColumns * kSliceBytes >> 4;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int i = 0; i < kInstructions; ++i) {
        MultiplyAddGroup<T>(sums[i], a + step * kStepAddress, b + i * kNextColumns + step * kStepAddress);
      }
    }
  }

  // Where the thread's sums lie in shared memory, each kGroupThreads from the next.
  __device__ uint32_t ExchangedSums(int32_t group) const {
    return ring_.sums + (group * kGroupSums + static_cast<int32_t>(threadIdx.x) % kGroupThreads) * 4;
  }

  // Shows the thread's sums to the cluster's blocks, and waits for theirs.
  __device__ void Exchange(const float (&sums)[kInstructions][kInstructionColumns / 2], int32_t group) {
    WaitForClusterBarrier(ring_.read + group * 8, exchange_parity_ ^ 1);  // nobody reads those of the tile before
    const uint32_t mine = ExchangedSums(group);
#pragma unroll
    for (int i = 0; i < kInstructions; ++i) {
#pragma unroll
      for (int r = 0; r < kInstructionColumns / 2; ++r) {
        StoreShared(mine + (i * kInstructionColumns / 2 + r) * kGroupThreads * 4, sums[i][r]);
      }
    }
    MeetCluster(ring_.ready + group * 8);
    WaitForClusterBarrier(ring_.ready + group * 8, exchange_parity_);
  }

  // Stores the sums of all the cluster's blocks, added up in their order, in every kSplitK-th 32 columns.
  __device__ void StoreExchanged(int32_t group, int64_t first_place, int32_t first_column) {
    const auto rank = static_cast<int32_t>(blockIdx.x % Shape::kSplitK);
    const uint32_t mine = ExchangedSums(group);
    for (int32_t j = rank; j < Shape::kColumns / 32; j += Shape::kSplitK) {
      float sums[16];
#pragma unroll
      for (int r = 0; r < 16; ++r) {
        sums[r] = 0;
#pragma unroll
        for (int block = 0; block < Shape::kSplitK; ++block) {
          sums[r] += LoadClusterShared(mine + (j * 16 + r) * kGroupThreads * 4, block);
        }
      }
      Store(sums, first_place, first_column + j * 32);
    }
    MeetCluster(ring_.read + group * 8);
    exchange_parity_ ^= 1;
  }

  // The warp's arrival at a barrier of all the cluster's blocks.
  __device__ static void MeetCluster(uint32_t barrier) {
    __syncwarp();
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    if (lane < Shape::kSplitK) ArriveAtClusterBarrier(barrier, lane);
  }

  template <int kSums>
  __device__ void Store(const float (&sums)[kSums], int64_t first_place, int32_t first_column) const {
    const int32_t first_row = static_cast<int32_t>(threadIdx.x) % kGroupThreads / 32 * 16;
    StoreWarpSums(arguments_, sums, first_place + first_row, first_column, num_out_);
  }

  const ImplicitGemmArguments<T>& arguments_;
  const Ring ring_;
  const int32_t num_out_;
  uint32_t exchange_parity_ = 0;
};

#endif

}  // namespace voxserve::kernels::cuda
