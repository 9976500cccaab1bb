#pragma once

// The role of warp_groups.cuh that multiplies stages and stores the sums. Included by .cu files alone.

#include <cstdint>

#include "kernels/conv/implicit_gemm/arguments.cuh"
#include "kernels/conv/implicit_gemm/split_sums.cuh"
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
    WaitForEarlierKernels();  // they make the residual, and may still read what the output overwrites
    // One value for a warp, as the compiler sees: else it would let products wait for each other.
    const auto of_warp = [](auto value) { return __shfl_sync(~0u, value, 0); };
    const int32_t group = of_warp(static_cast<int32_t>(threadIdx.x) / kGroupThreads);
    const bool arrives = threadIdx.x % 32 == 0;
    float sums[kInstructions][kInstructionColumns / 2] = {};
    RingPlace<Shape::kStages> place, held;
    RingPlace<Shape::kNotes> note_place, held_note;
    bool holds = false;  // a stage whose products may go on
    const auto release = [&](RingPlace<Shape::kStages> stage, RingPlace<Shape::kNotes> note) {
      if (arrives) {
        ArriveAtBarrier(ring_.empty + stage.slot * 8);
        ArriveAtBarrier(ring_.freed + note.slot * 8);
      }
    };
    for (;; place.Advance(), note_place.Advance()) {
      WaitForBarrier(ring_.ready + place.slot * 8, place.parity);
      const StageNote& note = ring_.notes[note_place.slot];
      const uint32_t flags = of_warp(note.flags);
      if ((flags & kNoStage) != 0) break;
      const uint32_t stage = ring_.stages + place.slot * Shape::kStageBytes;
      // One series of products in each case: a series must not be begun under a condition.
      const uint32_t has = flags >> (kSlicesAStage * group) & 3;
      if (has == 3) {
        BeginProducts();
        MultiplySlice(stage, 0, group, sums);
        MultiplySlice(stage, 1, group, sums);
        CommitProducts();
      } else if (has != 0) {
        BeginProducts();
        MultiplySlice(stage, has == 1 ? 0 : 1, group, sums);
        CommitProducts();
      }
      if ((flags & kLastStage) == 0) {
        if (has != 0) {
          WaitForProducts<1>();
        } else {
          WaitForProducts<0>();
        }
        if (holds) release(held, held_note);
        holds = true;
        held = place;
        held_note = note_place;
        continue;
      }
      const int32_t row_tile = note.row_tile, column = note.column;
      [[maybe_unused]] const int32_t half = note.half;
      const WarpRows rows = RowsOf(place.slot, row_tile, group);
      StorePart store;
      if constexpr (kLoadsEarly) store.Load(arguments_, rows, column);  // they arrive while the products go on
      WaitForProducts<0>();
#pragma unroll
      for (auto& of_instruction : sums) {
#pragma unroll
        for (float& sum : of_instruction) asm volatile("" : "+f"(sum)::"memory");  // nobody reads it before
      }
      if (holds) release(held, held_note);
      release(place, note_place);
      holds = false;
      if constexpr (Shape::kSplitK > 1) {
        const SplitSums<T, Shape::kColumns> split(arguments_, row_tile * Shape::kWarpGroups + group, column);
#pragma unroll
        for (int i = 0; i < kInstructions; ++i) split.Leave(half, sums[i], i * kInstructionColumns / 2);
        split.StoreWhole(rows);
      } else {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          const int32_t first_column = column + part * kPartColumns;
          if constexpr (!kLoadsEarly) store.Load(arguments_, rows, first_column);
          store.Store(arguments_, PartOf(sums, part), rows, first_column);
        }
      }
#pragma unroll
      for (auto& of_instruction : sums) {
#pragma unroll
        for (float& sum : of_instruction) sum = 0;
      }
    }
  }

 private:
  // An instruction of more columns would need more registers than a block of so many threads begins with.
  static constexpr int kInstructions = Shape::kColumns > 128 ? 2 : 1;
  static constexpr int kInstructionColumns = Shape::kColumns / kInstructions;
  // Where there are registers for it, the biases and residuals of all columns are loaded at once, before they are
  // needed.
  static constexpr bool kLoadsEarly = kInstructions == 1 && Shape::kSplitK == 1;
  static constexpr int kPartColumns = kLoadsEarly ? Shape::kColumns : 32;  // stored at a time
  static constexpr int kParts = Shape::kColumns / kPartColumns;
  using StorePart = WarpSumsStore<T, kPartColumns / 2>;
  static_assert(kInstructionColumns % kPartColumns == 0);

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

  __device__ static const float (&PartOf(const float (&sums)[kInstructions][kInstructionColumns / 2],
                                         int part))[kPartColumns / 2] {
    constexpr int kPartsAnInstruction = kInstructionColumns / kPartColumns;
    return *reinterpret_cast<const float(*)[kPartColumns / 2]>(
        &sums[part / kPartsAnInstruction][part % kPartsAnInstruction * (kPartColumns / 2)]);
  }

  // The output rows whose sums the thread holds.
  __device__ WarpRows RowsOf(int32_t slot, int32_t row_tile, int32_t group) const {
    const int32_t thread = static_cast<int32_t>(threadIdx.x) % kGroupThreads;
    const int32_t first = group * 64 + thread / 32 * 16 + thread % 32 / 4;
    WarpRows rows;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (arguments_.tiles.out_rows != nullptr) {
        rows.rows[half] = LoadShared(ring_.out_rows + slot * Shape::kOutRowBytes + (first + half * 8) * 4);
      } else {
        const int64_t place = int64_t{row_tile} * Shape::kRows + first + half * 8;
        rows.rows[half] = place < num_out_ ? static_cast<int32_t>(place) : -1;
      }
    }
    return rows;
  }

  const ImplicitGemmArguments<T>& arguments_;
  const Ring ring_;
  const int32_t num_out_;
};

#endif

}  // namespace voxserve::kernels::cuda
