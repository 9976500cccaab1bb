#pragma once

// This is the implicit GEMM kernel that uses tensor core instructions of single warps, for sm_80 and later
// (kernels/conv/implicit_gemm/implicit_gemm.h). Only .cu files include this header.
//
// Blocks are persistent: in each round every block takes one tile of output rows and columns (WarpStageWalker::TileOf).
// All threads of a block copy and multiply. A stage holds two slices (slices.h), in 8 bits four. Stages go through a
// ring in shared memory, and copies fill the ring ahead of the products, also into the next tile. When a stage has
// arrived, the threads start the copy of the stage that is farthest ahead, look up the input rows of the stage after
// that, and multiply the stage that has arrived. Every thread walks over the masks of the block's tiles for itself, so
// no thread waits for another before it looks up input rows. One thread writes a descriptor of each stage
// (WarpStageNote), which all threads read when they copy and multiply the stage's data.
//
// All rows of a warp belong to one tile of 64 rows (tiles.h). The warp skips the slices that this tile does not have.

#include <cstdint>

#include "kernels/conv/implicit_gemm/arguments.cuh"
#include "kernels/conv/implicit_gemm/store_int8_sums.cuh"
#include "kernels/conv/implicit_gemm/store_sums.cuh"
#include "kernels/conv/implicit_gemm/warp_stages.cuh"
#include "kernels/core/warp_products.cuh"

namespace voxserve::kernels::cuda {

// The descriptor, in shared memory, of a stage whose data the threads copy and multiply later.
template <typename Shape>
struct alignas(16) WarpStageNote {
  static constexpr int32_t kNoSlice = -1;
  static constexpr int32_t kShortcutSlices = -2;  // the first slice of the shortcut

  int32_t row_tile;
  int32_t column;
  uint32_t has;  // WarpStage::has: has[s] from bit Shape::kHasBits * s on
  int32_t is_last;
  // The indices of the stage's slices in the packed weights (SliceAxis), or kNoSlice. Slice i of the shortcut's weights
  // is kShortcutSlices - i.
  int32_t slices[Shape::kSlices];
};

// Copies stages to shared memory.
template <typename T, typename Shape>
class WarpStageCopier {
 public:
  using Note = WarpStageNote<Shape>;

  __device__ WarpStageCopier(const ImplicitGemmArguments<T>& arguments, int32_t num_out, uint32_t ring)
      : arguments_(arguments), num_out_(num_out) {
    // Eight threads copy two rows of a panel, whose vectors are in different banks. The next eight threads copy the
    // same rows of the stage's other panel.
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const int32_t vector = thread % Shape::kPanelVectors;
    const int32_t panel = thread / (2 * Shape::kPanelVectors) % Shape::kPanels;
    slice_ = panel * Shape::kSlicesAPanel + vector / Shape::kSliceVectors;
    first_row_ = thread / Shape::kPanelVectors % 2 + thread / (2 * Shape::kPanelVectors * Shape::kPanels) * 2;
    to_ = ring + panel * Shape::kInputBytes + SwizzledSliceVector(first_row_, vector) * kSliceVectorBytes;
    weights_to_ = ring + Shape::kPanels * Shape::kInputBytes + thread * kSliceVectorBytes;
    offset_in_slice_ = ValueInSlice() / arguments.axis.offset_values;
    channel_in_slice_ = ValueInSlice() % arguments.axis.offset_values;
  }

  // Looks up the input rows that the thread will copy to a stage. Thread 0 also writes the stage's note for all
  // threads.
  __device__ void Find(const WarpStage<Shape>& stage, Note& note) {
    if (threadIdx.x == 0) WriteNote(stage, note);
    const int32_t first_channel = OfSlice(stage.parts) * arguments_.axis.slice_values;
    if constexpr (kWarpsAddShortcuts<T>) {
      is_of_shortcut_ = OfSlice(stage.offsets) == WarpStage<Shape>::kOfShortcut;
      if (is_of_shortcut_) {
        FindShortcut(stage.row_tile, first_channel);
        return;
      }
    }
    channel_ = first_channel + channel_in_slice_;
    // Channels after the end of a row become zeros.
    const uint32_t has = channel_ < arguments_.in_channels ? OfSlice(stage.has) >> offset_in_slice_ : 0;
    if (arguments_.tiles.in_rows == nullptr) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const int32_t row = stage.row_tile * Shape::kRows + first_row_ + i * kRowsAtOnce;
        rows_[i] = HasTileOf(has, i) && row < num_out_ ? row : -1;
      }
      return;
    }
    const int64_t num_offsets = arguments_.tiles.num_offsets;
    const int32_t offset = OfSlice(stage.offsets) + offset_in_slice_;
    const int32_t* const from = arguments_.tiles.in_rows + first_row_ +
                                (stage.row_tile * Shape::kMaskTiles * num_offsets + offset) * kMaskTileRows;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int64_t tile = num_offsets * (i / kCopiesATile * kMaskTileRows);
      rows_[i] = LoadIndexIf(HasTileOf(has, i), from + tile + i % kCopiesATile * kRowsAtOnce);
    }
  }

  // Starts to copy the stage of the last Find to a slot of the ring. All threads must see the note of that stage.
  __device__ void Copy(int32_t slot, const Note& note) const {
    CopyRows(to_ + slot * Shape::kStageBytes);
    // Columns after the weights' last column become zeros.
    const int32_t bytes = (arguments_.padded_out_channels - note.column) * Shape::kSliceBytes;
    const int64_t slice_bytes = int64_t{arguments_.padded_out_channels} * Shape::kSliceBytes;
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const int32_t own_slice = kSlicesAtOnce == 1 ? 0 : thread / kThreadsASlice;
    const int32_t thread_bytes = (thread - own_slice * kThreadsASlice) * kSliceVectorBytes;
    const int32_t column_bytes = note.column * Shape::kSliceBytes;
#pragma unroll
    for (int s = 0; s < Shape::kSlices; s += kSlicesAtOnce) {
      int32_t slice = note.slices[s + own_slice];
      if (slice == Note::kNoSlice) continue;
      const unsigned char* weights = arguments_.weights;
      if constexpr (kWarpsAddShortcuts<T>) {
        if (slice < 0) {
          slice = Note::kShortcutSlices - slice;
          weights = arguments_.shortcut_weights;
        }
      }
      const unsigned char* const from = weights + column_bytes + thread_bytes + slice * slice_bytes;
      const uint32_t to = weights_to_ + slot * Shape::kStageBytes + s * Shape::kWeightBytes;
#pragma unroll
      for (int32_t first = 0; first < Shape::kWeightBytes; first += kThreadsASlice * kSliceVectorBytes) {
        CopyAsync16(to + first, from + first, first + thread_bytes < bytes ? kSliceVectorBytes : 0);
      }
    }
  }

 private:
  static constexpr int kRowsAtOnce = Shape::kThreads / (Shape::kPanelVectors * Shape::kPanels);
  static constexpr int kCopies = Shape::kRows / kRowsAtOnce;
  static constexpr int kCopiesATile = static_cast<int>(kMaskTileRows) / kRowsAtOnce;
  static constexpr int32_t kValues = kSliceVectorBytes / static_cast<int32_t>(sizeof(T));
  // A slice's weights may be less than all threads copy at a time.
  static constexpr int kWeightVectors = Shape::kWeightBytes / kSliceVectorBytes;
  static constexpr int kThreadsASlice = kWeightVectors < Shape::kThreads ? kWeightVectors : Shape::kThreads;
  static constexpr int kSlicesAtOnce = Shape::kThreads / kThreadsASlice;
  static_assert(kRowsAtOnce % 8 == 0, "a thread's rows are swizzled alike");
  static_assert(Shape::kPanelBytes == kSliceBytes, "rows in shared memory have the 64-byte swizzle");
  static_assert(kWeightVectors % kThreadsASlice == 0 && Shape::kThreads % kThreadsASlice == 0);
  static_assert(Shape::kSlices % kSlicesAtOnce == 0);

  // Returns the place in its slice of the first value that the thread copies.
  __device__ static int32_t ValueInSlice() {
    return static_cast<int32_t>(threadIdx.x) % Shape::kSliceVectors * kValues;
  }

  // Returns what an array says about the slice of which the thread copies inputs.
  template <typename Value>
  __device__ Value OfSlice(const Value (&of_slices)[Shape::kSlices]) const {
    Value value = of_slices[0];
#pragma unroll
    for (int s = 1; s < Shape::kSlices; ++s) {
      const Value of_other = of_slices[s];
      if (slice_ == s) value = of_other;
    }
    return value;
  }

  // Returns true if the tile of 64 rows that holds the thread's i-th row has the thread's offset.
  __device__ static bool HasTileOf(uint32_t has, int i) { return (has >> (i / kCopiesATile * kTileBits) & 1) != 0; }

  __device__ void WriteNote(const WarpStage<Shape>& stage, Note& note) const {
    note.row_tile = stage.row_tile;
    note.column = stage.column;
    uint32_t has = 0;
#pragma unroll
    for (int s = 0; s < Shape::kSlices; ++s) has |= stage.has[s] << (Shape::kHasBits * s);
    note.has = has;
    note.is_last = stage.is_last ? 1 : 0;
#pragma unroll
    for (int s = 0; s < Shape::kSlices; ++s) {
      const int32_t slice = stage.offsets[s] / arguments_.axis.offsets_a_slice * arguments_.axis.slices_an_offset;
      note.slices[s] = stage.has[s] == 0 ? Note::kNoSlice : slice + stage.parts[s];
      if constexpr (kWarpsAddShortcuts<T>) {
        if (stage.offsets[s] == WarpStage<Shape>::kOfShortcut) note.slices[s] = Note::kShortcutSlices - stage.parts[s];
      }
    }
  }

  // Looks up the rows of a slice of the shortcut. A row of the shortcut's input is an output row.
  __device__ void FindShortcut(int32_t row_tile, int32_t first_channel) {
    channel_ = first_channel + ValueInSlice();
    const bool is_there = channel_ < arguments_.shortcut_channels;
    const int32_t* const from = arguments_.tiles.out_rows + int64_t{row_tile} * Shape::kRows + first_row_;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) rows_[i] = LoadIndexIf(is_there, from + i * kRowsAtOnce);
  }

  __device__ void CopyRows(uint32_t to) const {
    const int32_t count = min(kValues, arguments_.in_channels - channel_);
    const int32_t bytes = count * static_cast<int32_t>(sizeof(T));
    int32_t pitch_bytes = arguments_.in_pitch_bytes;
    const T* rows = arguments_.in;
    if constexpr (kWarpsAddShortcuts<T>) {  // the rows of a shortcut and its convolution are whole vectors
      if (is_of_shortcut_) {
        pitch_bytes = arguments_.shortcut_pitch_bytes;
        rows = arguments_.shortcut_in;
      }
    }
    const auto* const in = reinterpret_cast<const char*>(rows + channel_);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const uint32_t to_row = to + i * kRowsAtOnce * Shape::kPanelBytes;
      if (arguments_.has_whole_in_vectors) {
        CopyRowVectorAsync(to_row, in, rows_[i], pitch_bytes);
      } else if (arguments_.has_in_vectors) {
        CopyRowPartAsync(to_row, in, rows_[i], pitch_bytes, bytes);
      } else {
        CopyValues(to_row, in, rows_[i], count, arguments_);
      }
    }
  }

  const ImplicitGemmArguments<T>& arguments_;
  const int32_t num_out_;
  // The thread's part of every stage.
  uint32_t to_;          // destination in the ring's first slot
  uint32_t weights_to_;  // destination of weights in the ring's first slot
  int32_t slice_;        // within the stage
  int32_t first_row_;
  int32_t offset_in_slice_;
  int32_t channel_in_slice_;
  // The results of the last Find.
  int32_t channel_;
  bool is_of_shortcut_ = false;
  int32_t rows_[kCopies];  // -1: zeros
};

template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksAnSm)
    WarpImplicitGemmKernel([[maybe_unused]] const __grid_constant__ ImplicitGemmArguments<T> arguments) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  using Tile = WarpTile<T, Shape::kRows, Shape::kColumns, Shape::kThreads, Shape::kPanelBytes, Shape::kSliceBytes>;
  static_assert(kMaskTileRows % (Tile::kRowTiles * 16) == 0, "all rows of a warp belong to one tile");
  constexpr int kAhead = Shape::kStages - 1;
  constexpr int kNotes = Shape::kStages + 1;  // a stage is noted before its slot is free
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ WarpStageNote<Shape> notes[kNotes];
  const auto after = [](int32_t place, int count) { return place + 1 < count ? place + 1 : 0; };
  const uint32_t ring = SharedAddress(shared);
  const auto num_out = static_cast<int32_t>(NumRows(arguments.tiles.out_capacity, arguments.tiles.num_out));
  WarpStageWalker<T, Shape> walker(arguments, num_out);
  WarpStageCopier<T, Shape> copier(arguments, num_out, ring);
  copier.Find(walker.Next(), notes[0]);
  int32_t found = 0;  // the place of the note of the last Find
  // Fills a slot with the stage of the last Find, and finds the next stage.
  const auto fill = [&](int32_t slot) {
    if (notes[found].row_tile >= 0) copier.Copy(slot, notes[found]);
    CommitCopies();
    found = after(found, kNotes);
    copier.Find(walker.Next(), notes[found]);
  };
  for (int32_t slot = 0; slot < kAhead; ++slot) {
    __syncthreads();  // makes the note visible
    fill(slot);
  }
  Tile tile;
  const int32_t has_shift = Tile::WarpRow() / static_cast<int32_t>(kMaskTileRows) * kTileBits;
  int32_t before = kAhead;  // the slot before the stage's
  for (int32_t slot = 0, place = 0;; before = slot, slot = after(slot, Shape::kStages), place = after(place, kNotes)) {
    WaitForCopies<kAhead - 1>();
    __syncthreads();  // the stage has arrived for all threads, and no thread reads the previous one any more
    const WarpStageNote<Shape>& note = notes[place];
    if (note.row_tile < 0) break;
    fill(before);
    const uint32_t inputs = ring + slot * Shape::kStageBytes;
    const uint32_t weights = inputs + Shape::kPanels * Shape::kInputBytes;
    const uint32_t has = note.has >> has_shift;
#pragma unroll
    for (int s = 0; s < Shape::kSlices; ++s) {
      if ((has >> (Shape::kHasBits * s) & ((1u << kTileBits) - 1)) == 0) continue;
      tile.Multiply(inputs + s / Shape::kSlicesAPanel * Shape::kInputBytes, weights + s * Shape::kWeightBytes,
                    s % Shape::kSlicesAPanel * Shape::kSliceVectors);
    }
    if (note.is_last == 0) continue;
    const int64_t first_place = int64_t{note.row_tile} * Shape::kRows + Tile::WarpRow();
    const int32_t first_column = note.column + Tile::WarpColumn();
#pragma unroll
    for (int i = 0; i < Tile::kRowTiles; ++i) {
      SumOf<T> sums[Tile::kColumnTiles * 4];
#pragma unroll
      for (int j = 0; j < Tile::kColumnTiles * 4; ++j) {
        sums[j] = tile.sums[i][j / 4][j % 4];
        tile.sums[i][j / 4][j % 4] = 0;
      }
      const WarpRows rows = WarpRowsOf(arguments, first_place + i * 16, num_out);
      constexpr bool kMayRotate = sizeof(T) < sizeof(float);
      constexpr bool kMayLabel = Shape::kColumns == kMaxLabelChannels, kReadsArrays = true;
      SumsStore<T, Tile::kColumnTiles * 4, kMayLabel, kReadsArrays, kMayRotate> store;
      store.Load(arguments, rows, first_column);
      store.Store(arguments, sums, rows, first_column, /*kept=*/0);
    }
  }
#else
  __trap();  // unreachable: CodeVersion tells callers that this code is missing
#endif
}

}  // namespace voxserve::kernels::cuda
