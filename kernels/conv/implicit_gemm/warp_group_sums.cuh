#pragma once

// This header has the role of warp_groups.cuh that multiplies stages and stores the sums. Only .cu files include it.

#include <cstdint>
#include <type_traits>

#include "kernels/conv/implicit_gemm/arguments.cuh"
#include "kernels/conv/implicit_gemm/split_sums.cuh"
#include "kernels/conv/implicit_gemm/store_int8_sums.cuh"
#include "kernels/conv/implicit_gemm/warp_group_ring.cuh"
#include "kernels/core/barriers.cuh"

namespace voxserve::kernels::cuda {

// Only kernels that normalize their results need the definitions of these two types (normed_sums.cuh).
template <typename T>
struct NormedArguments;
template <typename T, int kSums>
class NormedSumsStore;

// The arguments of the kernel with blocks of a shape.
template <typename T, typename Shape>
using ArgumentsOf =
    std::conditional_t<Shape::kLaunches == Launches::kNormed, NormedArguments<T>, ImplicitGemmArguments<T>>;

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

// A warp group that computes and stores the sums of 64 rows of each tile.
template <typename T, typename Shape>
class ProductGroup {
 public:
  __device__ ProductGroup(const ArgumentsOf<T, Shape>& arguments, const Ring<Shape>& ring)
      : arguments_(arguments),
        ring_(ring),
        num_out_(static_cast<int32_t>(NumRows(arguments.tiles.out_capacity, arguments.tiles.num_out))),
        group_(OfWarp(static_cast<int32_t>(threadIdx.x) / kGroupThreads)),
        own_slices_(OfWarp(kSlicesOfGroup << Shape::kSlices * (threadIdx.x / kGroupThreads))),
        flags_(OfWarp(SharedAddress(&ring.notes->flags))),
        arrives_(Arrives()),
        inputs_(SwizzledMatrix<Shape::kPanelBytes>(ring.stages + group_ * 64 * Shape::kPanelBytes)),
        weights_(SwizzledMatrix<Shape::kSliceBytes>(ring.stages + Shape::kPanels * Shape::kInputBytes)),
        kept_(ring.kept) {}

  // There are two nested loops: over items, and over the stages of an item. In a single loop, the compiler would see at
  // the head of the loop that sums may have been stored, and would wait there for all products.
  __device__ void Run() {
    if constexpr (kKeeps) {
      kept_ = KeepArrays<StorePart, Shape::kKeptArrays, Shape::kWarpGroups * kGroupThreads>(arguments_, kept_);
    }
    WaitForEarlierKernels();  // which write the residual, and may still read the memory of the output
    // An item's first product ignores the values before it. In 8 bits the compiler would make products wait for each
    // other if the sums were cleared here.
    Sums sums;
    if constexpr (Shape::kSlices == 2) sums = {};
    for (;; Advance()) {
      uint32_t flags = FlagsOfStage();
      if ((flags & kNoStage) != 0) break;
      int32_t adds = 0;  // 0: the next products are the item's first
      Held held;         // the previous stage, whose products may still run
      for (;;) {
        MultiplyStage(flags, adds, sums);
        if ((flags & kLastStage) != 0) break;
        const Held begun = Hold();
        Advance();
        // The next stage is tested while products run. There is no loop here, since the compiler would wait for the
        // products in a loop.
        const bool is_ready = TestBarrier(ring_.ready + place_.slot * 8, place_.parity);
        if (is_ready) flags = FlagsOfNote();
        WaitForProducts<1>();
        Release(held);
        held = begun;
        flags = is_ready ? OfWarp(flags) : FlagsOfStage();
      }
      const auto& note = ring_.notes[note_place_.slot];
      const int32_t row_tile = note.row_tile, column = note.column;
      [[maybe_unused]] const int32_t half = note.half;
      const WarpRows rows = RowsOf(place_.slot, row_tile);
      StorePart stores[kPartsAtOnce];
      if constexpr (kLoadsEarly) {  // the loads overlap with the products
#pragma unroll
        for (int part = 0; part < kPartsAtOnce; ++part) {
          stores[part].Load(arguments_, rows, column + part * kPartColumns);
        }
      }
      WaitForProducts<0>();
      HoldBackReads(sums.of);
      Release(held);
      __syncwarp();  // all lanes have read the note and the rows
      Release(Hold());
      if (adds == 0) sums = {};
      if constexpr (Shape::kSplitK > 1) {
        const SplitSums<T, Shape::kColumns> split(arguments_, row_tile * Shape::kWarpGroups + group_, column);
        split.Leave(half, sums.of);
        split.StoreWhole(rows, kKeeps ? kept_ : 0);
      } else {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          StorePart& store = stores[part % kPartsAtOnce];
          if constexpr (!kLoadsEarly) store.Load(arguments_, rows, column + part * kPartColumns);
          store.Store(arguments_, ColumnsOf<kPartColumns>(sums, part * kPartColumns), rows,
                      column + part * kPartColumns, kept_);
          if (kLoadsEarly && part + kPartsAtOnce < kParts) {
            store.Load(arguments_, rows, column + (part + kPartsAtOnce) * kPartColumns);
          }
        }
      }
    }
  }

 private:
  // An instruction's sums begin at register 24 and must fit the registers that a thread has when a block of this size
  // starts. Otherwise two instructions share the columns; the first computes kFirstColumns.
  static constexpr bool kIsOneInstruction = 24 + Shape::kColumns / 2 <= Shape::kRegisters;
  static constexpr int kFirstColumns = kIsOneInstruction ? Shape::kColumns : (Shape::kColumns / 2 + 31) / 32 * 32;
  static constexpr int kOtherColumns = Shape::kColumns - kFirstColumns;
  // Residuals are loaded ahead of their use if there are enough registers: those of all columns at once, or those of
  // the next parts.
  static constexpr bool kLoadsEarly = Shape::kSplitK == 1 && Shape::kRows * Shape::kColumns <= 128 * 192;
  static constexpr bool kNorms = Shape::kLaunches == Launches::kNormed;
  static constexpr int kPartColumns = kNorms || Shape::kColumns <= 128 ? Shape::kColumns : 32;  // stored at a time
  static constexpr int kParts = Shape::kColumns / kPartColumns;
  static constexpr bool kHasFewSums = Shape::kRows * Shape::kColumns <= 128 * 128;
  static constexpr int kPartsAtOnce = kLoadsEarly && kParts > 1 && kHasFewSums ? 3 : 1;  // whose residuals are held
  using StorePart = std::conditional_t<kNorms, NormedSumsStore<T, kPartColumns / 2>,
                                       SumsStore<T, kPartColumns / 2, Shape::kColumns == kMaxLabelChannels,
                                                 Shape::kColumns >= 128, Shape::kLaunches == Launches::kRotated>>;
  static constexpr uint32_t kSlicesOfGroup = (1u << Shape::kSlices) - 1;  // the first group's flags of slices
  static constexpr uint32_t kFirstSlices = 1u | 1u << Shape::kSlices;     // the flags of both groups' first slices
  static_assert(Shape::kWarpGroups <= 2);
  static constexpr int kAddressUnit = 16;      // bytes of one step of the address in a matrix descriptor
  static constexpr int kProductRowBytes = 32;  // bytes of a row that one product takes
  // In 16 bits a split sum is stored so seldom that reading the bias from global memory costs nothing.
  static constexpr bool kKeeps = Shape::kSplitK == 1 || Shape::kKeptArrays > 1;

  struct Sums {
    SumOf<T> of[Shape::kColumns / 2];
  };

  // Returns the first lane's value to all lanes, so that the compiler knows that it is the same in all of them.
  // Otherwise the compiler would make products wait for each other.
  template <typename Value>
  __device__ static Value OfWarp(Value value) {
    return __shfl_sync(~0u, value, 0);
  }

  __device__ uint32_t FlagsOfNote() const {
    constexpr auto kNoteBytes = static_cast<uint32_t>(sizeof(*ring_.notes));
    return static_cast<uint32_t>(LoadShared(flags_ + note_place_.slot * kNoteBytes));
  }

  // Waits until the current stage is visible to products and returns its flags.
  __device__ uint32_t FlagsOfStage() const {
    WaitForBarrier(ring_.ready + place_.slot * 8, place_.parity);
    return OfWarp(FlagsOfNote());
  }

  __device__ void Advance() {
    place_.Advance();
    note_place_.Advance();
  }

  // The barriers of a stage that is being multiplied. A warp arrives at them when the products are done.
  struct Held {
    bool arrives = false;  // true in this thread; false in all threads if no stage is held
    uint32_t empty = 0;
    uint32_t freed = 0;
  };

  // Returns the current stage's barriers.
  __device__ Held Hold() const {
    return {.arrives = arrives_, .empty = ring_.empty + place_.slot * 8, .freed = ring_.freed + note_place_.slot * 8};
  }

  __device__ static void Release(const Held& held) {
    if (!held.arrives) return;
    ArriveAtBarrier(held.empty);
    ArriveAtBarrier(held.freed);
  }

  // The value passes through a shuffle, since the compiler would otherwise compute it again for every stage.
  __device__ static bool Arrives() {
    const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
    return ArrivesForWarp(__shfl_sync(~0u, lane, lane));
  }

  // Starts the products of the current stage. Each branch has a series (BeginProducts to CommitProducts) of its own,
  // since a series must not begin under a condition.
  __device__ void MultiplyStage(uint32_t flags, int32_t& adds, Sums& sums) const {
    const uint64_t stage = static_cast<uint64_t>(place_.slot) * (Shape::kStageBytes / kAddressUnit);
    const uint32_t has = flags & own_slices_;
    if (HasMost(has)) {
      BeginProducts();
      MultiplySlice(stage, 0, adds, sums);
#pragma unroll
      for (int s = 1; s < Shape::kSlices; ++s) MultiplySlice(stage, s, 1, sums);
      CommitProducts();
      adds = 1;
    } else if (has != 0) {
      BeginProducts();
      if constexpr (Shape::kSlices == 2) {
        MultiplySlice(stage, has == (own_slices_ & kFirstSlices) ? 0 : 1, adds, sums);
      } else {  // one slice or two; a missing second one is replaced by the next, whose inputs are zeros
        const int32_t below = Shape::kSlices * group_;
        const int32_t first = __ffs(static_cast<int>(has)) - 1 - below,
                      last = 31 - __clz(static_cast<int>(has)) - below;
        MultiplySlice(stage, first, adds, sums);
        MultiplySlice(stage, first != last ? last : first ^ 1, 1, sums);
      }
      CommitProducts();
      adds = 1;
    } else {
      CommitProducts();  // an empty series, so that WaitForProducts counts one series per stage
    }
  }

  // Returns true if all slices of a stage are multiplied. Of four, three suffice: the inputs of the missing one are
  // zeros, and its weights may be any whole numbers.
  __device__ bool HasMost(uint32_t has) const {
    if constexpr (Shape::kSlices == 2) return has == own_slices_;
    return __popc(has) > 2;
  }

  // stage: the distance of the stage from the first one, in units of a descriptor's addresses.
  __device__ void MultiplySlice(uint64_t stage, int32_t slice, int32_t adds, Sums& sums) const {
    constexpr int kStepAddress = kProductRowBytes / kAddressUnit;
    constexpr int kSliceAddress = Shape::kSliceBytes / kAddressUnit;
    const uint64_t a = inputs_ + stage + slice / Shape::kSlicesAPanel * (Shape::kInputBytes / kAddressUnit) +
                       slice % Shape::kSlicesAPanel * kSliceAddress;
    const uint64_t b = weights_ + stage + slice * (Shape::kWeightBytes / kAddressUnit);
#pragma unroll
    for (int step = 0; step < Shape::kSliceBytes / kProductRowBytes; ++step) {
      const uint64_t a_step = a + step * kStepAddress, b_step = b + step * kStepAddress;
      const int32_t adds_step = step == 0 ? adds : 1;
      MultiplyAddGroup<T>(ColumnsOf<kFirstColumns>(sums, 0), a_step, b_step, adds_step);
      if constexpr (kOtherColumns > 0) {
        MultiplyAddGroup<T>(ColumnsOf<kOtherColumns>(sums, kFirstColumns), a_step,
                            b_step + kFirstColumns * kSliceAddress, adds_step);
      }
    }
  }

  // Returns the sums of kCount columns from `column` on.
  template <int kCount>
  __device__ static SumOf<T> (&ColumnsOf(Sums& sums, int column))[kCount / 2] {
    return *reinterpret_cast<SumOf<T>(*)[kCount / 2]>(&sums.of[column / 2]);
  }

  // Returns the output rows whose sums the thread holds.
  __device__ WarpRows RowsOf(int32_t slot, int32_t row_tile) const {
    const int32_t thread = static_cast<int32_t>(threadIdx.x) % kGroupThreads;
    const int32_t first = group_ * 64 + thread / 32 * 16 + thread % 32 / 4;
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

  const ArgumentsOf<T, Shape>& arguments_;
  const Ring<Shape> ring_;
  const int32_t num_out_;
  const int32_t group_;        // this warp group's number among the multiplying ones
  const uint32_t own_slices_;  // the flags of this warp group's slices
  const uint32_t flags_;       // the address of the first note's flags
  const bool arrives_;         // ArrivesForWarp
  // Matrix descriptors of the first stage's input rows for this warp group, and of its weights, both of the first
  // slice.
  const uint64_t inputs_, weights_;
  uint32_t kept_;  // the address of the epilogue's arrays in shared memory; 0: they are not kept there
  RingPlace<Shape::kStages> place_;
  RingPlace<Shape::kNotes> note_place_;
};

#endif

}  // namespace voxserve::kernels::cuda
