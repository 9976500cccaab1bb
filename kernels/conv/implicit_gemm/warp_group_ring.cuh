#pragma once

// The ring of stages between the roles of warp_groups.cuh: the shapes of blocks, the notes that describe stages, and
// places in the ring. Only .cu files include this header.

#include <cstddef>
#include <cstdint>

#include "kernels/conv/implicit_gemm/slices.h"
#include "kernels/core/warp_group_products.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int kGroupThreads = 128;  // threads of a warp group
inline constexpr int kWeightCopiers = 2;   // threads that copy stages' weights in turns

template <int kGroups, int kTileColumns, int kCopyingGroups, int kRingStages, int kBlocks, int kParts = 1>
struct WarpGroupShape {
  static constexpr int kWarpGroups = kGroups;  // warp groups that multiply
  static constexpr int kRows = kGroups * 64;
  static constexpr int kColumns = kTileColumns;
  static constexpr int kCopyGroups = kCopyingGroups;
  static constexpr int kThreads = (kGroups + kCopyingGroups + 1) * kGroupThreads;
  static constexpr int kStages = kRingStages;
  static constexpr int kNotes = 64;  // most tiles have fewer stages, so the scheduler seldom waits for a free note
  static constexpr int kBarriers = 3 * kStages + 2 * kNotes;
  static constexpr int kBlocksAnSm = kBlocks;
  static constexpr int kSplitK = kParts;                       // items per tile
  static constexpr int kInputBytes = kRows * kSliceBytes;      // per slice
  static constexpr int kWeightBytes = kColumns * kSliceBytes;  // per slice
  static constexpr int kStageBytes = kSlicesAStage * (kInputBytes + kWeightBytes);
  static constexpr int kAlignment = 1024;
  static constexpr int kOutRowBytes = kRows * int{sizeof(int32_t)};  // per stage
  static constexpr int kSharedBytes = kStages * (kStageBytes + kOutRowBytes) + kAlignment;
  // Registers of a copying thread, and of a multiplying thread, which gets what the copying threads give up. Sums of
  // 256 columns need the larger split.
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

// Describes a stage, so that the roles that read it need not compute this themselves.
struct alignas(16) StageNote {
  int32_t channels[kSlicesAStage];     // each slice's first channel of the row
  uint32_t has[kSlicesAStage];         // bit kTileBits * t + j: tile t has the slice's offset j; 0: there is no slice
  int32_t index_tiles[kSlicesAStage];  // index of the first tile's input rows at the first offset, in units of 64
  int32_t weights[kSlicesAStage];      // the place of the slice's weights, in units of 16 bytes; -1: there is no slice
  int32_t row_tile;
  int32_t column;  // the first column
  uint32_t flags;  // bit kSlicesAStage * t + s: tile t has slice s; also kLastStage, kNoStage
  int32_t half;    // the half of the sums, 0 or 1, with split K
};
static_assert(sizeof(StageNote) == 48 && offsetof(StageNote, index_tiles) == 16 && offsetof(StageNote, row_tile) == 32);
inline constexpr uint32_t kLastStage = 1u << 30;  // the last stage of an item: its sums are stored after it
inline constexpr uint32_t kNoStage = 1u << 31;    // there are no more stages

// The ring's parts in shared memory. A barrier has 8 bytes; there is one per slot.
struct Ring {
  uint32_t stages;
  uint32_t out_rows;  // output rows of each stage's tile, if the stage is its item's last
  StageNote* notes;
  // Arrays of barriers, one array behind the other.
  uint32_t full, ready, empty;  // stages: copied, visible to products, multiplied
  uint32_t noted, freed;        // notes: written, free again
};

// A place in a ring of kSlots slots.
template <int kSlots>
struct RingPlace {
  int32_t slot = 0;
  uint32_t parity = 0;  // parity of the barriers' phase in this round

  __device__ void Advance(int count = 1) {
    slot += count;
    if (slot >= kSlots) {
      slot -= kSlots;
      parity ^= 1;
    }
  }
};

}  // namespace voxserve::kernels::cuda
