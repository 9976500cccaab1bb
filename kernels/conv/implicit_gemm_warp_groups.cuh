#pragma once

// The kernel of kernels/conv/implicit_gemm.h for Hopper. Included by .cu files alone.
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

#include "kernels/conv/implicit_gemm_arguments.cuh"
#include "kernels/conv/implicit_gemm_store.cuh"
#include "kernels/core/barriers.cuh"
#include "kernels/core/warp_group_products.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int kSlicesAStage = 2;
inline constexpr int kGroupThreads = 128;  // of a warp group

template <int kGroups, int kTileColumns, int kCopyingGroups, int kRingStages, int kBlocks, int kParts = 1>
struct WarpGroupShape {
  static constexpr int kWarpGroups = kGroups;  // that multiply
  static constexpr int kRows = kGroups * 64;
  static constexpr int kColumns = kTileColumns;
  static constexpr int kCopyGroups = kCopyingGroups;
  static constexpr int kThreads = (kGroups + kCopyingGroups + 1) * kGroupThreads;
  static constexpr int kStages = kRingStages;
  static constexpr int kNotes = 64;  // a tile's or more, so that nobody waits for them
  static constexpr int kBlocksAnSm = kBlocks;
  static constexpr int kSplitK = kParts;  // blocks of a cluster
  static constexpr int kInputBytes = kRows * kSliceBytes;      // of a slice
  static constexpr int kWeightBytes = kColumns * kSliceBytes;  // of a slice
  static constexpr int kStageBytes = kSlicesAStage * (kInputBytes + kWeightBytes);
  static constexpr int kAlignment = 1024;
  static constexpr int kSumBytes = kSplitK > 1 ? kRows * kColumns * int{sizeof(float)} : 0;  // exchanged
  static constexpr int kSharedBytes = kStages * kStageBytes + kSumBytes + kAlignment;
  // Registers of a thread that copies, and those that it leaves to the others.
  static constexpr int kRegisters = 65536 / kBlocks / kThreads / 8 * 8;
  static constexpr int kWantedCopyRegisters = kColumns > 128 ? 48 : 64;
  static constexpr int kCopyRegisters = kRegisters < kWantedCopyRegisters ? kRegisters : kWantedCopyRegisters;
  static constexpr int kLeftRegisters =
      (kRegisters * kThreads - kCopyRegisters * (kCopyingGroups + 1) * kGroupThreads) / (kGroups * kGroupThreads);
  static constexpr int kProductRegisters = (kLeftRegisters > 240 ? 240 : kLeftRegisters) / 8 * 8;
  static_assert(kStageBytes % 1024 == 0);
  static constexpr int kStaticBytes = 4096;  // barriers and notes, at most
  static_assert((kSharedBytes + kStaticBytes + 1024) * kBlocks <= 228 * 1024, "more shared memory than an SM has");
};

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

// What a stage holds.
struct alignas(16) StageNote {
  int32_t parts[kSlicesAStage];   // of each slice: offset + kPartFactor * part
  uint32_t has[kSlicesAStage];    // bit kTileBits * t + j: tile t has the slice's offset j; 0: there is no slice
  int32_t slices[kSlicesAStage];  // their numbers among the weights; -1: none
  int32_t row_tile;               // -1: there are no more stages
  int32_t column;                 // the first; + kLast in the last stage of a tile, behind which sums are stored
};
inline constexpr int32_t kLast = 1;  // columns are even
inline constexpr int32_t kPartFactor = 1 << 16;
inline constexpr int kTileBits = kSliceVectors;  // of `has`, as many as a slice can have offsets

// The ring's parts in shared memory; barriers are of 8 bytes, one a slot.
struct Ring {
  uint32_t stages;
  uint32_t sums;
  StageNote* notes;
  uint32_t full, empty;   // of stages
  uint32_t noted, freed;  // of notes
  uint32_t ready, read;   // of exchanged sums, one a warp group
};

// A place in a ring of kSlots slots.
template <int kSlots>
struct RingPlace {
  int32_t slot = 0;
  uint32_t parity = 0;  // of the round

  __device__ void Advance(int count = 1) {
    slot += count;
    if (slot >= kSlots) {
      slot -= kSlots;
      parity ^= 1;
    }
  }
};

// Walks the masks of a block's tiles and notes what stages hold, as many at a time as a warp has threads.
template <typename T, typename Shape>
class StageScheduler {
 public:
  __device__ StageScheduler(const ImplicitGemmArguments<T>& arguments, const Ring& ring)
      : arguments_(arguments), ring_(ring) {
    const auto rank = static_cast<int32_t>(blockIdx.x % Shape::kSplitK);
    first_part_ = arguments.axis.slices_an_offset * rank / Shape::kSplitK;
    num_parts_ = arguments.axis.slices_an_offset * (rank + 1) / Shape::kSplitK - first_part_;
  }

  // By one warp.
  __device__ void Run() {
    const auto num_out = static_cast<int32_t>(NumRows(arguments_.tiles.out_capacity, arguments_.tiles.num_out));
    const int32_t num_column_tiles = (arguments_.out_channels + Shape::kColumns - 1) / Shape::kColumns;
    const int32_t num_tiles = (num_out + Shape::kRows - 1) / Shape::kRows * num_column_tiles;
    const auto cluster = static_cast<int32_t>(blockIdx.x / Shape::kSplitK);
    const auto num_clusters = static_cast<int32_t>(gridDim.x / Shape::kSplitK);
    // Tiles get lighter: those that have the heavier ones of one round have the lighter ones of the next.
    for (int32_t round = 0;; ++round) {
      const int32_t tile = round * num_clusters + (round % 2 == 0 ? cluster : num_clusters - 1 - cluster);
      if (tile >= num_tiles) break;
      const int32_t row_tile = tile / num_column_tiles;
      const int32_t column = (tile - row_tile * num_column_tiles) * Shape::kColumns;
      for (int32_t word = 0; word < max(arguments_.mask_words, 1); ++word) ScheduleWord(row_tile, column, word);
    }
    // For each copying group to see.
    Note({.parts = {}, .has = {}, .slices = {-1, -1}, .row_tile = -1, .column = 0}, Lane(), Shape::kCopyGroups);
  }

 private:
  static constexpr int kWordBits = 32;
  static constexpr int kStagesAtOnce = 32;
  static_assert(kStagesAtOnce < Shape::kNotes, "threads that meet do not wait for what the others note");

  __device__ static int32_t Lane() { return static_cast<int32_t>(threadIdx.x) % 32; }

  // The stages of a tile's offsets of one mask word; of the last word one at least.
  __device__ void ScheduleWord(int32_t row_tile, int32_t column, int32_t word) {
    uint32_t masks[Shape::kWarpGroups], all = 0;
#pragma unroll
    for (int t = 0; t < Shape::kWarpGroups; ++t) {
      masks[t] = arguments_.mask_words == 0 ? 0 : MaskWordOf(arguments_, row_tile * Shape::kWarpGroups + t, word);
      all |= masks[t];
    }
    // One bit for the offsets of a slice.
    const int32_t size = arguments_.axis.offsets_a_slice;
    if (size > 1) all |= all >> 1;
    if (size > 2) all |= all >> 2;
    if (size > 1) all &= size == 2 ? 0x55555555u : 0x11111111u;
    const bool is_last_word = word + 1 >= arguments_.mask_words;
    const int32_t num_slices = __popc(all) * num_parts_;
    const int32_t num_stages = max((num_slices + kSlicesAStage - 1) / kSlicesAStage, is_last_word ? 1 : 0);
    for (int32_t first = 0; first < num_stages; first += kStagesAtOnce) {
      const int32_t stage = first + Lane();
      StageNote note = {.parts = {},
                        .has = {},
                        .slices = {-1, -1},
                        .row_tile = row_tile,
                        .column = column + (is_last_word && stage + 1 == num_stages ? kLast : 0)};
#pragma unroll
      for (int s = 0; s < kSlicesAStage; ++s) {
        const int32_t number = stage * kSlicesAStage + s;
        if (number >= num_slices) continue;
        const int32_t rank = number / num_parts_;
        const int32_t bit = BitOfRank(all, rank);
        const int32_t offset = word * kWordBits + bit, part = first_part_ + number - rank * num_parts_;
        note.parts[s] = offset + part * kPartFactor;
        note.slices[s] = offset / size * arguments_.axis.slices_an_offset + part;
#pragma unroll
        for (int t = 0; t < Shape::kWarpGroups; ++t) {
          note.has[s] |= (masks[t] >> bit & ((1u << size) - 1)) << (kTileBits * t);
        }
      }
      Note(note, Lane(), min(num_stages - first, kStagesAtOnce));
    }
  }

  // The set bit that has `rank` set bits below it.
  __device__ static int32_t BitOfRank(uint32_t bits, int32_t rank) {
    int32_t bit = 0;
#pragma unroll
    for (int width = kWordBits / 2; width > 0; width /= 2) {
      const int32_t below = __popc(bits & ((1u << width) - 1));
      const bool is_above = rank >= below;
      rank -= is_above ? below : 0;
      bit += is_above ? width : 0;
      bits >>= is_above ? width : 0;
    }
    return bit;
  }

  // Notes `count` stages, one a thread.
  __device__ void Note(const StageNote& note, int32_t index, int32_t count) {
    if (index < count) {
      RingPlace<Shape::kNotes> place = place_;
      place.Advance(index);
      WaitForBarrier(ring_.freed + place.slot * 8, place.parity ^ 1);
      auto* const to = reinterpret_cast<int4*>(ring_.notes + place.slot);
      to[0] = make_int4(note.parts[0], note.parts[1], static_cast<int32_t>(note.has[0]),
                        static_cast<int32_t>(note.has[1]));
      to[1] = make_int4(note.slices[0], note.slices[1], note.row_tile, note.column);
      ArriveAtBarrier(ring_.noted + place.slot * 8);
    }
    __syncwarp();
    place_.Advance(count);
  }

  const ImplicitGemmArguments<T>& arguments_;
  const Ring ring_;
  int32_t first_part_;
  int32_t num_parts_;
  RingPlace<Shape::kNotes> place_;
};

// Has the weights of one of each stage's slices copied. By one thread.
template <typename T, typename Shape>
__device__ void CopyWeights(const ImplicitGemmArguments<T>& arguments, const Ring& ring, int32_t slice) {
  const int64_t slice_bytes = int64_t{arguments.padded_out_channels} * kSliceBytes;
  const uint32_t to = ring.stages + kSlicesAStage * Shape::kInputBytes + slice * Shape::kWeightBytes;
  RingPlace<Shape::kStages> place;
  for (RingPlace<Shape::kNotes> note_place;; note_place.Advance(), place.Advance()) {
    WaitForBarrier(ring.noted + note_place.slot * 8, note_place.parity);
    const StageNote& note = ring.notes[note_place.slot];
    if (note.row_tile < 0) return;
    const int32_t number = note.slices[slice];
    const int32_t column = note.column & ~kLast;
    const uint32_t bytes = number < 0 ? 0 : min(Shape::kColumns, arguments.padded_out_channels - column) * kSliceBytes;
    const unsigned char* const from = arguments.weights + number * slice_bytes + column * kSliceBytes;
    const uint32_t full = ring.full + place.slot * 8;
    WaitForBarrier(ring.empty + place.slot * 8, place.parity ^ 1);
    ArriveExpecting(full, bytes);
    if (bytes > 0) CopyBulk(to + place.slot * Shape::kStageBytes, from, bytes, full);
  }
}

// A group of copying warps.
template <typename T, typename Shape>
class RowCopier {
 public:
  __device__ RowCopier(const ImplicitGemmArguments<T>& arguments, const Ring& ring)
      : arguments_(arguments),
        ring_(ring),
        num_out_(static_cast<int32_t>(NumRows(arguments.tiles.out_capacity, arguments.tiles.num_out))) {
    // Eight threads copy a stage's vectors of one row.
    const int32_t thread = static_cast<int32_t>(threadIdx.x) % kGroupThreads;
    const int32_t vector = thread % kSliceVectors;
    slice_ = thread / kSliceVectors % kSlicesAStage;
    first_row_ = thread / (kSliceVectors * kSlicesAStage);
    to_ = ring.stages + slice_ * Shape::kInputBytes + SwizzledSliceVector(first_row_, vector) * kSliceVectorBytes;
    offset_in_slice_ = vector * kValues / arguments.axis.offset_values;
    channel_in_slice_ = vector * kValues % arguments.axis.offset_values;
    in_rows_ = arguments.tiles.in_rows == nullptr ? nullptr : arguments.tiles.in_rows + first_row_;
  }

  __device__ void Run() {
    const int32_t group = static_cast<int32_t>(threadIdx.x) / kGroupThreads - Shape::kWarpGroups;
    note_place_.Advance(group);
    place_.Advance(group);
    // Fills in turns, which are never moved: a move would wait for the rows.
    Fill fills[kFills];
#pragma unroll
    for (int i = 0; i + 1 < kFills; ++i) FindRows(fills[i]);
    for (;;) {
#pragma unroll
      for (int i = 0; i < kFills; ++i) {
        if (!fills[i].is_there) return;
        FindRows(fills[(i + kFills - 1) % kFills]);  // they arrive meanwhile
        WaitForBarrier(ring_.empty + place_.slot * 8, place_.parity ^ 1);
        Copy(fills[i]);
        place_.Advance(Shape::kCopyGroups);
      }
    }
  }

 private:
  static constexpr int kRowsAtOnce = kGroupThreads / (kSliceVectors * kSlicesAStage);
  static constexpr int kCopiesATile = static_cast<int>(kMaskTileRows) / kRowsAtOnce;
  static constexpr int32_t kValues = kSliceVectorBytes / static_cast<int32_t>(sizeof(T));
  static_assert(kRowsAtOnce % 8 == 0, "a thread's rows are swizzled alike");

  // Indices that are under way: far enough ahead for the latency of memory, as registers allow.
  static constexpr int kFills =
      Shape::kWarpGroups == 1 ? 4 : Shape::kWarpGroups == 2 && Shape::kCopyRegisters >= 64 ? 3 : 2;

  // What the thread copies to a stage.
  struct Fill {
    bool is_there;  // false behind the last stage
    int32_t channel;
    int32_t rows[Shape::kWarpGroups][kCopiesATile];  // -1: zeros
  };

  // Of the next note, unless the last has been found.
  __device__ void FindRows(Fill& fill) {
    fill.is_there = false;
    if (is_over_) return;
    WaitForBarrier(ring_.noted + note_place_.slot * 8, note_place_.parity);
    const StageNote& note = ring_.notes[note_place_.slot];
    const int32_t row_tile = note.row_tile;
    is_over_ = row_tile < 0;
    if (is_over_) return;
    fill.is_there = true;
    const int32_t part = note.parts[slice_];
    note_place_.Advance(Shape::kCopyGroups);
    const uint32_t has = note.has[slice_] >> offset_in_slice_;  // 0 where there is no slice
    fill.channel = part / kPartFactor * arguments_.axis.slice_values + channel_in_slice_;
    if (in_rows_ == nullptr) {
#pragma unroll
      for (int t = 0; t < Shape::kWarpGroups; ++t) {
#pragma unroll
        for (int i = 0; i < kCopiesATile; ++i) {
          const int32_t row = row_tile * Shape::kRows + t * 64 + first_row_ + i * kRowsAtOnce;
          fill.rows[t][i] = (has >> (kTileBits * t) & 1) != 0 && row < num_out_ ? row : -1;
        }
      }
      return;
    }
    const int32_t offset = part % kPartFactor + offset_in_slice_;
    const int32_t num_offsets = arguments_.tiles.num_offsets;
    const int32_t* const of_offset =
        in_rows_ + int64_t{row_tile * Shape::kWarpGroups * num_offsets + offset} * kMaskTileRows;
#pragma unroll
    for (int t = 0; t < Shape::kWarpGroups; ++t) {
      const int32_t* const of_tile = of_offset + t * num_offsets * static_cast<int32_t>(kMaskTileRows);
#pragma unroll
      for (int i = 0; i < kCopiesATile; ++i) {
        fill.rows[t][i] = LoadIndexIf((has >> (kTileBits * t) & 1) != 0, of_tile + i * kRowsAtOnce);
      }
    }
  }

  __device__ void Copy(const Fill& fill) const {
    const uint32_t to = to_ + place_.slot * Shape::kStageBytes;
    const uint32_t full = ring_.full + place_.slot * 8;
    const int32_t count = min(kValues, arguments_.in_channels - fill.channel);
    const auto* const in = reinterpret_cast<const char*>(arguments_.in + fill.channel);
    if (arguments_.has_in_vectors && count == kValues) {
#pragma unroll
      for (int t = 0; t < Shape::kWarpGroups; ++t) {
#pragma unroll
        for (int i = 0; i < kCopiesATile; ++i) {
          CopyRowVectorAsync(to + (t * 64 + i * kRowsAtOnce) * kSliceBytes, in, fill.rows[t][i],
                             arguments_.in_pitch_bytes);
        }
      }
      ArriveWithCopies(full);
      return;
    }
#pragma unroll
    for (int t = 0; t < Shape::kWarpGroups; ++t) {
#pragma unroll
      for (int i = 0; i < kCopiesATile; ++i) {
        CopyValues(to + (t * 64 + i * kRowsAtOnce) * kSliceBytes, in, fill.rows[t][i], count, arguments_);
      }
    }
    ArriveAtBarrier(full);
  }

  const ImplicitGemmArguments<T>& arguments_;
  const Ring ring_;
  const int32_t num_out_;
  RingPlace<Shape::kStages> place_;
  RingPlace<Shape::kNotes> note_place_;
  bool is_over_ = false;  // the last note has been read
  // The thread's vectors.
  uint32_t to_;        // in the first stage
  int32_t slice_;      // of a stage
  int32_t first_row_;  // of a tile
  int32_t offset_in_slice_;
  int32_t channel_in_slice_;
  const int32_t* in_rows_;
};

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
    bool is_first = true;  // the next stage begins a tile
    WarpRows rows = {{-1, -1}};
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
      if (is_first) {  // the rows' numbers arrive until they are needed
        const int32_t first_row = static_cast<int32_t>(threadIdx.x) % kGroupThreads / 32 * 16;
        rows = WarpRowsOf(arguments_, int64_t{note.row_tile} * Shape::kRows + group * 64 + first_row, num_out_);
        is_first = false;
      }
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
      is_first = true;
      if constexpr (Shape::kSplitK > 1) {
        Exchange(sums, group);
        StoreExchanged(group, rows, note.column & ~kLast);
      } else {
#pragma unroll
        for (int i = 0; i < kInstructions; ++i) {
          StoreWarpSums(arguments_, sums[i], rows, (note.column & ~kLast) + i * kInstructionColumns);
        }
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
  __device__ void StoreExchanged(int32_t group, const WarpRows& rows, int32_t first_column) {
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
      StoreWarpSums(arguments_, sums, rows, first_column + j * 32);
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

  const ImplicitGemmArguments<T>& arguments_;
  const Ring ring_;
  const int32_t num_out_;
  uint32_t exchange_parity_ = 0;
};

#endif

template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksAnSm)
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
