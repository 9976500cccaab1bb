#pragma once

// This header has the role of warp_groups.cuh that multiplies stages and stores the sums. Only .cu files include it.

#include <cstdint>

#include "kernels/conv/implicit_gemm/arguments.cuh"
#include "kernels/conv/implicit_gemm/split_sums.cuh"
#include "kernels/conv/implicit_gemm/store_sums.cuh"
#include "kernels/conv/implicit_gemm/warp_group_ring.cuh"
#include "kernels/core/barriers.cuh"

namespace voxserve::kernels::cuda {

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

// A warp group that computes and stores the sums of 64 rows of each tile.
template <typename T, typename Shape>
class SumMaker {
 public:
  __device__ SumMaker(const ImplicitGemmArguments<T>& arguments, const Ring& ring)
      : arguments_(arguments),
        ring_(ring),
        num_out_(static_cast<int32_t>(NumRows(arguments.tiles.out_capacity, arguments.tiles.num_out))) {}

  // There are two nested loops: over items, and over the stages of an item. In a single loop, the compiler would see at
  // the head of the loop that sums may have been stored, and would wait there for all products.
  __device__ void Run() {
    WaitForEarlierKernels();  // which write the residual, and may still read the memory of the output
    const int32_t group = OfWarp(static_cast<int32_t>(threadIdx.x) / kGroupThreads);
    Sums sums = {};
    for (;; Advance()) {
      uint32_t flags = FlagsOfStage();
      if ((flags & kNoStage) != 0) break;
      int32_t adds = 0;  // 0: the next products are the item's first
      for (;;) {
        MultiplyStage(flags, group, adds, sums);
        if ((flags & kLastStage) != 0) break;
        const RingPlace<Shape::kStages> begun = place_;
        const RingPlace<Shape::kNotes> begun_note = note_place_;
        Advance();
        // The next stage is tested while products run. There is no loop here, since the compiler would wait for the
        // products in a loop.
        const bool is_ready = TestBarrier(ring_.ready + place_.slot * 8, place_.parity);
        if (is_ready) flags = ring_.notes[note_place_.slot].flags;
        WaitForProducts<1>();
        ReleaseHeld();
        held_ = begun;
        held_note_ = begun_note;
        holds_ = true;
        flags = is_ready ? OfWarp(flags) : FlagsOfStage();
      }
      const StageNote& note = ring_.notes[note_place_.slot];
      const int32_t row_tile = note.row_tile, column = note.column;
      [[maybe_unused]] const int32_t half = note.half;
      const WarpRows rows = RowsOf(place_.slot, row_tile, group);
      StorePart store;
      if constexpr (kLoadsEarly) store.Load(arguments_, rows, column);  // the loads overlap with the products
      WaitForProducts<0>();
#pragma unroll
      for (int i = 0; i < kInstructions; ++i) HoldBackReads(sums.of[i]);
      ReleaseHeld();
      __syncwarp();  // all lanes have read the note and the rows
      Release(place_, note_place_);
      if (adds == 0) sums = {};
      if constexpr (Shape::kSplitK > 1) {
        const SplitSums<T, Shape::kColumns> split(arguments_, row_tile * Shape::kWarpGroups + group, column);
#pragma unroll
        for (int i = 0; i < kInstructions; ++i) split.Leave(half, sums.of[i], i * kInstructionColumns / 2);
        split.StoreWhole(rows);
      } else {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          const int32_t first_column = column + part * kPartColumns;
          if constexpr (!kLoadsEarly) store.Load(arguments_, rows, first_column);
          store.Store(arguments_, PartOf(sums, part), rows, first_column);
        }
      }
    }
  }

 private:
  // More columns per instruction would need more registers than a thread has when a block of this size starts.
  static constexpr int kInstructions = Shape::kColumns > 128 ? 2 : 1;
  static constexpr int kInstructionColumns = Shape::kColumns / kInstructions;
  // If there are enough registers, the residuals of all columns are loaded at once, ahead of their use.
  static constexpr bool kLoadsEarly = kInstructions == 1 && Shape::kSplitK == 1;
  static constexpr int kPartColumns = kLoadsEarly ? Shape::kColumns : 32;  // columns stored at a time
  static constexpr int kParts = Shape::kColumns / kPartColumns;
  using StorePart = WarpSumsStore<T, kPartColumns / 2, Shape::kColumns == kMaxLabelChannels>;
  static_assert(kInstructionColumns % kPartColumns == 0);

  struct Sums {
    float of[kInstructions][kInstructionColumns / 2];
  };

  // Returns the first lane's value to all lanes, so that the compiler knows that it is the same in all of them.
  // Otherwise the compiler would make products wait for each other.
  template <typename Value>
  __device__ static Value OfWarp(Value value) {
    return __shfl_sync(~0u, value, 0);
  }

  // Waits until the current stage is visible to products and returns its flags.
  __device__ uint32_t FlagsOfStage() const {
    WaitForBarrier(ring_.ready + place_.slot * 8, place_.parity);
    return OfWarp(ring_.notes[note_place_.slot].flags);
  }

  __device__ void Advance() {
    place_.Advance();
    note_place_.Advance();
  }

  __device__ void Release(RingPlace<Shape::kStages> stage, RingPlace<Shape::kNotes> note) const {
    if (threadIdx.x % 32 != 0) return;
    ArriveAtBarrier(ring_.empty + stage.slot * 8);
    ArriveAtBarrier(ring_.freed + note.slot * 8);
  }

  __device__ void ReleaseHeld() {
    if (holds_) Release(held_, held_note_);
    holds_ = false;
  }

  // Starts the products of the current stage. Each branch has a series (BeginProducts to CommitProducts) of its own,
  // since a series must not begin under a condition.
  __device__ void MultiplyStage(uint32_t flags, int32_t group, int32_t& adds, Sums& sums) const {
    const uint32_t stage = ring_.stages + place_.slot * Shape::kStageBytes;
    const uint32_t has = flags >> (kSlicesAStage * group) & 3;
    if (has == 3) {
      BeginProducts();
      MultiplySlice(stage, 0, group, adds, sums);
      MultiplySlice(stage, 1, group, 1, sums);
      CommitProducts();
      adds = 1;
    } else if (has != 0) {
      BeginProducts();
      MultiplySlice(stage, has == 1 ? 0 : 1, group, adds, sums);
      CommitProducts();
      adds = 1;
    } else {
      CommitProducts();  // an empty series, so that WaitForProducts counts one series per stage
    }
  }

  __device__ static void MultiplySlice(uint32_t stage, int32_t slice, int32_t group, int32_t adds, Sums& sums) {
    const uint64_t a = SwizzledMatrix<kSliceBytes>(stage + slice * Shape::kInputBytes + group * 64 * kSliceBytes);
    const uint64_t b =
        SwizzledMatrix<kSliceBytes>(stage + kSlicesAStage * Shape::kInputBytes + slice * Shape::kWeightBytes);
    constexpr int kStepAddress = 32 >> 4;
    constexpr int kNextColumns = kInstructionColumns * kSliceBytes >> 4;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int i = 0; i < kInstructions; ++i) {
        MultiplyAddGroup<T>(sums.of[i], a + step * kStepAddress, b + i * kNextColumns + step * kStepAddress,
                            step == 0 ? adds : 1);
      }
    }
  }

  __device__ static const float (&PartOf(const Sums& sums, int part))[kPartColumns / 2] {
    constexpr int kPartsAnInstruction = kInstructionColumns / kPartColumns;
    return *reinterpret_cast<const float(*)[kPartColumns / 2]>(
        &sums.of[part / kPartsAnInstruction][part % kPartsAnInstruction * (kPartColumns / 2)]);
  }

  // Returns the output rows whose sums the thread holds.
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
  RingPlace<Shape::kStages> place_;
  RingPlace<Shape::kNotes> note_place_;
  // The previous stage, whose products may still run.
  RingPlace<Shape::kStages> held_;
  RingPlace<Shape::kNotes> held_note_;
  bool holds_ = false;
};

#endif

}  // namespace voxserve::kernels::cuda
