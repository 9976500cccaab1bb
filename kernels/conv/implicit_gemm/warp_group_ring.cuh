#pragma once

// The roles of a block pass data through a ring of stages. This header has the block shapes, the notes that describe
// stages, and places in the ring. warp_groups.cuh defines the terms (item, stage, note, role), slices.h defines slices.
// Only .cu files include this header.

#include <cstddef>
#include <cstdint>

#include "kernels/conv/implicit_gemm/slices.h"
#include "kernels/core/warp_group_products.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int kGroupThreads = 128;  // threads of a warp group
inline constexpr int kWeightCopiers = 2;   // threads that take turns to copy a stage's weights
inline constexpr int kKeptChannels = 256;  // longer arrays of the epilogue are read from global memory

// Several shapes can serve one ConvBlock: one for launches of few tiles and one for launches of many, or one for
// launches that rotate their results (PairRotation), one for launches that normalize them (normed_sums.cuh) and one for
// all others. They add in the same order, so their sums are the same bytes. kAny serves all launches but those of
// kRotated and kNormed, whose code would slow others down.
enum class Launches { kAny, kFewTiles, kManyTiles, kRotated, kNormed };

// The sizes of a thread block and its ring, as constants of the kernel. warp_groups_launch.cuh lists the shapes.
//
// A stage holds 128 bytes of each input row, in two panels of 64 bytes. A panel is a slice, or two slices in 8 bits.
template <int kBytesOfSlice, int kGroups, int kTileColumns, int kCopyingGroups, int kRingStages, int kBlocks,
          int kParts = 1, Launches kServed = Launches::kAny>
struct WarpGroupShape {
  static constexpr int kSliceBytes = kBytesOfSlice;
  static constexpr int kSliceVectors = kSliceBytes / kSliceVectorBytes;
  static constexpr int kPanelBytes = 64;
  static constexpr int kPanelVectors = kPanelBytes / kSliceVectorBytes;
  static constexpr int kPanels = 2;  // per stage
  static constexpr int kSlicesAPanel = kPanelBytes / kSliceBytes;
  static constexpr int kSlices = kPanels * kSlicesAPanel;  // per stage
  static constexpr Launches kLaunches = kServed;
  static constexpr int kWarpGroups = kGroups;  // warp groups that multiply
  static constexpr int kRows = kGroups * 64;
  static constexpr int kColumns = kTileColumns;
  static constexpr int kCopyGroups = kCopyingGroups;
  static constexpr int kThreads = (kGroups + kCopyingGroups + 1) * kGroupThreads;
  static constexpr int kStages = kRingStages;
  // Most tiles have fewer stages, so the scheduler seldom waits for a free note.
  static constexpr int kNotes = kSlices == 2 ? 64 : 48;
  static constexpr int kBarriers = 3 * kStages + 2 * kNotes;
  static constexpr int kBlocksAnSm = kBlocks;
  static constexpr int kSplitK = kParts;                       // items per tile
  static constexpr int kInputBytes = kRows * kPanelBytes;      // per panel
  static constexpr int kWeightBytes = kColumns * kSliceBytes;  // per slice
  static constexpr int kStageBytes = kPanels * kInputBytes + kSlices * kWeightBytes;
  static constexpr int kAlignment = 1024;
  static constexpr int kOutRowBytes = kRows * int{sizeof(int32_t)};  // per stage
  static constexpr int kSharedBytes = kStages * (kStageBytes + kOutRowBytes) + kAlignment;
  // kRegisters is a thread's share of an SM's registers at launch. All threads but the multiplying ones lower their
  // number to kCopyRegisters, and the multiplying threads raise theirs to kProductRegisters. Tiles of more than 128 x
  // 160 sums need more registers, so copying threads keep fewer there.
  static constexpr int kRegisters = 65536 / kBlocks / kThreads / 8 * 8;
  static constexpr int kMostCopyRegisters = kRows * kColumns > 128 * 160 ? 48 : 56;
  static constexpr int kCopyRegisters = kRegisters < kMostCopyRegisters ? kRegisters : kMostCopyRegisters;
  static constexpr int kLeftRegisters =
      (kRegisters * kThreads - kCopyRegisters * (kCopyingGroups + 1) * kGroupThreads) / (kGroups * kGroupThreads);
  static constexpr int kProductRegisters = (kLeftRegisters > 240 ? 240 : kLeftRegisters) / 8 * 8;
  static_assert(kStageBytes % 1024 == 0 && kOutRowBytes % 16 == 0);
  static_assert(kSplitK <= 2, "there are two halves");
  // Arrays of the epilogue that are kept in shared memory: the bias; with norms those of KeptNormArray, in 8 bits those
  // of KeptInt8Array.
  static constexpr int kKeptArrays = kServed == Launches::kNormed ? 5 : kSliceBytes == kInt8SliceBytes ? 3 : 1;
  // Barriers, notes and kept arrays, at most.
  static constexpr int kStaticBytes = 5120 + kKeptArrays * kKeptChannels * int{sizeof(float)};
  static_assert((kSharedBytes + kStaticBytes + 1024) * kBlocks <= 228 * 1024, "more shared memory than an SM has");
};

// A note describes a stage and its slices. The scheduler writes the notes, so that the other roles need not compute
// their contents themselves. The tiles here are the 64-row tiles of the item, numbered t = 0, 1.

// The part of a note about one slice. It is one vector, since a row copier waits for each load from shared memory.
struct alignas(16) SliceNote {
  int32_t channel;  // the input channel at which the slice begins
  uint32_t has;     // bit kTileBits * t + j: tile t has offset j of the slice; 0: none
  // The place in TilesView::in_rows of the first tile's input rows for the slice's first offset, in units of
  // kMaskTileRows indices.
  int32_t index_tile;
  int32_t weights;  // the place of the slice's weights, in units of 16 bytes; -1: there is no slice
};

template <int kSlices>
struct StageNote {
  SliceNote slices[kSlices];
  int32_t row_tile;  // the item's tile of Shape::kRows rows
  int32_t column;    // the first output column of the item
  uint32_t flags;    // bit kSlices * t + s: tile t has slice s; also the flags below
  int32_t half;      // with split K: which half of the sums, 0 or 1
};
static_assert(sizeof(SliceNote) == 16 && sizeof(StageNote<2>) == 48 && offsetof(StageNote<2>, row_tile) == 32);
inline constexpr int kShortcutBit = 16;           // bit kShortcutBit + s: slice s belongs to the shortcut
inline constexpr uint32_t kLastStage = 1u << 30;  // the last stage of an item: its sums are stored after it
inline constexpr uint32_t kNoStage = 1u << 31;    // there are no more stages

// The addresses of the ring's parts in shared memory. A uint32_t member is an address in the shared state space. A
// barrier has 8 bytes.
template <typename Shape>
struct Ring {
  uint32_t stages;
  uint32_t out_rows;  // for each stage that is its item's last: the output rows of the item's tile
  StageNote<Shape::kSlices>* notes;
  uint32_t kept;  // float32 [kKeptArrays, kKeptChannels], which the multiplying warp groups fill and read
  // Five arrays of barriers, one after the other. Each array has one barrier per slot.
  uint32_t full, ready, empty;  // the stage has been copied, is visible to products, has been multiplied
  uint32_t noted, freed;        // the note has been written, may be overwritten
};

// A place in a ring of kSlots slots.
template <int kSlots>
struct RingPlace {
  int32_t slot = 0;
  uint32_t parity = 0;  // the parity of the barriers' phase, which changes with each round of the ring

  __device__ void Advance(int count = 1) {
    slot += count;
    if (slot >= kSlots) {
      slot -= kSlots;
      parity ^= 1;
    }
  }
};

}  // namespace voxserve::kernels::cuda
