#pragma once

// The ring of stages between the roles of warp_groups.cuh: the shapes in which blocks come, the notes of what stages
// hold, and the places of barriers. Included by .cu files alone.

#include <cstddef>
#include <cstdint>

#include "kernels/conv/implicit_gemm/slices.h"
#include "kernels/core/warp_group_products.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int kGroupThreads = 128;  // of a warp group
inline constexpr int kWeightCopiers = 2;   // threads, which copy stages' weights in turns

template <int kGroups, int kTileColumns, int kCopyingGroups, int kRingStages, int kBlocks, int kParts = 1>
struct WarpGroupShape {
  static constexpr int kWarpGroups = kGroups;  // that multiply
  static constexpr int kRows = kGroups * 64;
  static constexpr int kColumns = kTileColumns;
  static constexpr int kCopyGroups = kCopyingGroups;
  static constexpr int kThreads = (kGroups + kCopyingGroups + 1) * kGroupThreads;
  static constexpr int kStages = kRingStages;
  static constexpr int kNotes = 64;  // more than most tiles have stages, so that few wait for them
  static constexpr int kBarriers = 3 * kStages + 2 * kNotes;
  static constexpr int kBlocksAnSm = kBlocks;
  static constexpr int kSplitK = kParts;                       // items of a tile
  static constexpr int kInputBytes = kRows * kSliceBytes;      // of a slice
  static constexpr int kWeightBytes = kColumns * kSliceBytes;  // of a slice
  static constexpr int kStageBytes = kSlicesAStage * (kInputBytes + kWeightBytes);
  static constexpr int kAlignment = 1024;
  static constexpr int kOutRowBytes = kRows * int{sizeof(int32_t)};  // of a stage
  static constexpr int kSharedBytes = kStages * (kStageBytes + kOutRowBytes) + kAlignment;
  // Registers of a thread that copies, and those that it leaves to the others: sums of 256 columns need the more.
  static constexpr int kRegisters = 65536 / kBlocks / kThreads / 8 * 8;
  static constexpr int kMostCopyRegisters = kRows * kColumns > 128 * 128 ? 48 : 56;
  static constexpr int kCopyRegisters = kRegisters < kMostCopyRegisters ? kRegisters : kMostCopyRegisters;
  static constexpr int kLeftRegisters =
      (kRegisters * kThreads - kCopyRegisters * (kCopyingGroups + 1) * kGroupThreads) / (kGroups * kGroupThreads);
  static constexpr int kProductRegisters = (kLeftRegisters > 240 ? 240 : kLeftRegisters) / 8 * 8;
  static_assert(kStageBytes % 1024 == 0 && kOutRowBytes % 16 == 0);
  static_assert(kSplitK <= 2, "there are two halves");
  static constexpr int kStaticBytes = 5120;  // barriers and notes, at most
  static_assert((kSharedBytes + kStaticBytes + 1024) * kBlocks <= 228 * 1024, "more shared memory than an SM has");
};

// A note of what a stage holds, so that the roles that read it one stage after the other need not compute much.
struct alignas(16) StageNote {
  int32_t channels[kSlicesAStage];     // of each slice the first in a row
  uint32_t has[kSlicesAStage];         // bit kTileBits * t + j: tile t has the slice's offset j; 0: there is no slice
  int32_t index_tiles[kSlicesAStage];  // where the first tile's input rows lie at its first offset, in 64 numbers
  int32_t weights[kSlicesAStage];      // where its weights lie, in 16 bytes; -1: there is no slice
  int32_t row_tile;
  int32_t column;  // the first
  uint32_t flags;  // bit kSlicesAStage * t + s: tile t has slice s; kLastStage, kNoStage
  int32_t half;    // with split K: 0 or 1
};
static_assert(sizeof(StageNote) == 48 && offsetof(StageNote, index_tiles) == 16 && offsetof(StageNote, row_tile) == 32);
inline constexpr uint32_t kLastStage = 1u << 30;  // of an item: its sums are stored behind it
inline constexpr uint32_t kNoStage = 1u << 31;    // there are no more stages

// The ring's parts in shared memory; barriers are of 8 bytes, one a slot.
struct Ring {
  uint32_t stages;
  uint32_t out_rows;  // of each stage those of its tile, where it is an item's last
  StageNote* notes;
  // Barriers, one behind the other.
  uint32_t full, ready, empty;  // of stages: copied, visible to products, multiplied
  uint32_t noted, freed;        // of notes
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

}  // namespace voxserve::kernels::cuda
