#pragma once

// This header has the block shape of kernels/conv/implicit_gemm/warps.cuh and the walk over the stages of a tile. A
// stage is two slices (slices.h), in 8 bits four, of inputs and weights that are copied and multiplied together. Only
// .cu files include this header.

#include <cstdint>

#include "kernels/conv/implicit_gemm/arguments.cuh"

namespace voxserve::kernels::cuda {

// The sizes of a thread block and its ring, as constants of the kernel. warps_launch.cuh lists the shapes.
//
// A stage holds 128 bytes of each input row, in two panels of 64 bytes. A panel is a slice, or two slices in 8 bits.
template <int kBytesOfSlice, int kTileRows, int kTileColumns, int kTileThreads, int kRingStages, int kBlocks>
struct WarpShape {
  static constexpr int kSliceBytes = kBytesOfSlice;
  static constexpr int kSliceVectors = kSliceBytes / kSliceVectorBytes;
  static constexpr int kPanelBytes = 64;
  static constexpr int kPanelVectors = kPanelBytes / kSliceVectorBytes;
  static constexpr int kPanels = kSlicesAStage;
  static constexpr int kSlicesAPanel = kPanelBytes / kSliceBytes;
  static constexpr int kSlices = kPanels * kSlicesAPanel;  // per stage
  static constexpr int kRows = kTileRows;
  static constexpr int kColumns = kTileColumns;
  static constexpr int kThreads = kTileThreads;
  static constexpr int kStages = kRingStages;
  static constexpr int kBlocksAnSm = kBlocks;
  static constexpr int kMaskTiles = kRows / static_cast<int>(kMaskTileRows);
  static constexpr int kHasBits = 32 / kSlices;                // per slice in WarpStageNote::has
  static constexpr int kInputBytes = kRows * kPanelBytes;      // per panel
  static constexpr int kWeightBytes = kColumns * kSliceBytes;  // per slice
  static constexpr int kStageBytes = kPanels * kInputBytes + kSlices * kWeightBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes;
  static_assert(kSharedBytes <= 98 * 1024, "sm_86 has 99 KB a block, of which notes take some bytes");
  static_assert(kTileBits * kMaskTiles <= kHasBits);
};

// The kernel adds shortcuts (ConvOperands) in 8 bits alone: the engine has no other way to add them in 8 bits, and no
// float kernel has registers to spare for it.
template <typename T>
inline constexpr bool kWarpsAddShortcuts = sizeof(T) == 1;

// The content of a stage. Every thread finds it for itself. The tiles here are the tiles of 64 rows within the block's
// tile.
template <typename Shape>
struct WarpStage {
  static constexpr int32_t kOfShortcut = -1;  // in `offsets`: a slice of the shortcut, which all tiles have

  // Bit kTileBits * t + j of has[s]: tile t has offset j of slice s. has[s] is 0 if there is no slice s.
  uint32_t has[Shape::kSlices];
  int32_t offsets[Shape::kSlices];  // each slice's first offset
  int32_t parts[Shape::kSlices];    // the slice's number within its offset, or within the shortcut
  int32_t row_tile;                 // the block's tile of Shape::kRows rows; -1: there are no more stages
  int32_t column;                   // the first column
  bool is_last;                     // the tile's last stage: sums are stored after it
};

// Walks over the stages of a block's tiles. The walker has little state, since every thread holds it in registers
// beside its sums.
template <typename T, typename Shape>
class WarpStageWalker {
 public:
  __device__ WarpStageWalker(const ImplicitGemmArguments<T>& arguments, int32_t num_out)
      : arguments_(arguments), num_out_(num_out), word_(LastWord()) {
    LoadNextMasks();
    TakeWord();
    SkipEmptyWords();
  }

  __device__ WarpStage<Shape> Next() {
    WarpStage<Shape> stage = {};
    stage.row_tile = row_tile_;
    stage.column = column_;
    if (row_tile_ < 0) return stage;
    const uint32_t of_slice = (1u << arguments_.axis.offsets_a_slice) - 1;
#pragma unroll
    for (int s = 0; s < Shape::kSlices; ++s) {
      if (left_ == 0) {
        if constexpr (kWarpsAddShortcuts<T>) TakeShortcutSlice(s, stage);
        continue;
      }
      const int32_t bit = __ffs(static_cast<int32_t>(left_)) - 1;
      stage.offsets[s] = word_ * kWordBits + bit;
      stage.parts[s] = part_;
#pragma unroll
      for (int t = 0; t < Shape::kMaskTiles; ++t) {
        stage.has[s] |= (masks_[t] >> bit & of_slice) << (kTileBits * t);
      }
      if (++part_ == arguments_.axis.slices_an_offset) {
        part_ = 0;
        left_ &= left_ - 1;
      }
    }
    SkipEmptyWords();
    if (left_ == 0 && shortcut_left_ == 0) {
      stage.is_last = true;
      TakeWord();
      SkipEmptyWords();
    }
    return stage;
  }

 private:
  static constexpr int32_t kWordBits = 32;

  __device__ int32_t LastWord() const { return max(arguments_.mask_words, 1) - 1; }
  __device__ int32_t NumColumnTiles() const {
    return (arguments_.out_channels + Shape::kColumns - 1) / Shape::kColumns;
  }

  // Returns the tile that the block computes in a round (tiles of rows and columns, counted along the columns first);
  // -1 if there is none.
  __device__ int32_t TileOf(int32_t round) const {
    // Later tiles mostly have fewer offsets, since rows are ordered by their highest offset, descending. The order of
    // the blocks is reversed in every second round, so a block with a heavy tile in one round gets a lighter one in the
    // next.
    const auto block = static_cast<int32_t>(blockIdx.x), num_blocks = static_cast<int32_t>(gridDim.x);
    const int32_t tile = round * num_blocks + (round % 2 == 0 ? block : num_blocks - 1 - block);
    return tile < (num_out_ + Shape::kRows - 1) / Shape::kRows * NumColumnTiles() ? tile : -1;
  }

  // Makes the next slice of the shortcut, if any is left, slice s of a stage. Shortcuts take the places that a word of
  // the mask leaves free in its last stage, and after the last word stages of their own.
  __device__ void TakeShortcutSlice(int s, WarpStage<Shape>& stage) {
    if (shortcut_left_ == 0) return;
    stage.offsets[s] = WarpStage<Shape>::kOfShortcut;
    stage.parts[s] = arguments_.num_shortcut_slices - shortcut_left_--;
#pragma unroll
    for (int t = 0; t < Shape::kMaskTiles; ++t) stage.has[s] |= 1u << (kTileBits * t);
  }

  // Moves on to the next word of the tile's mask or, after the last word, to the first word of the next tile.
  __device__ void TakeWord() {
    if (word_ < LastWord()) {
      ++word_;
    } else {
      const int32_t tile = TileOf(++round_), num_column_tiles = NumColumnTiles();
      row_tile_ = tile < 0 ? -1 : tile / num_column_tiles;
      column_ = (tile - row_tile_ * num_column_tiles) * Shape::kColumns;
      word_ = tile < 0 ? LastWord() : 0;
      if constexpr (kWarpsAddShortcuts<T>) shortcut_left_ = arguments_.num_shortcut_slices;
    }
    uint32_t all = 0;
#pragma unroll
    for (int t = 0; t < Shape::kMaskTiles; ++t) {
      masks_[t] = next_masks_[t];
      all |= masks_[t];
    }
    left_ = arguments_.axis.SliceBits(all);
    LoadNextMasks();
  }

  // If the word has no slices left, moves on to the tile's next word that has slices, or to its last word.
  __device__ void SkipEmptyWords() {
    while (left_ == 0 && word_ < LastWord()) TakeWord();
  }

  // Loads the masks that the next TakeWord will use, so that TakeWord need not wait for them.
  __device__ void LoadNextMasks() {
    const bool is_same_tile = word_ < LastWord();
    const int32_t tile = is_same_tile ? 0 : TileOf(round_ + 1);
    const int64_t row_tile = is_same_tile ? row_tile_ : tile / NumColumnTiles();
    const bool is_there = tile >= 0 && arguments_.mask_words > 0;
#pragma unroll
    for (int t = 0; t < Shape::kMaskTiles; ++t) {
      next_masks_[t] =
          is_there ? MaskWordOf(arguments_, row_tile * Shape::kMaskTiles + t, is_same_tile ? word_ + 1 : 0) : 0;
    }
  }

  const ImplicitGemmArguments<T>& arguments_;
  const int32_t num_out_;
  int32_t round_ = -1;
  int32_t row_tile_ = -1;
  int32_t column_ = 0;
  int32_t word_;
  uint32_t masks_[Shape::kMaskTiles];
  uint32_t next_masks_[Shape::kMaskTiles];
  uint32_t left_;              // the word's remaining slices, each as the bit of its first offset
  int32_t part_ = 0;           // the next slice of the lowest remaining offset
  int32_t shortcut_left_ = 0;  // the tile's remaining slices of the shortcut
};

}  // namespace voxserve::kernels::cuda
