#pragma once

// This is the implicit GEMM kernel that uses tensor core instructions of single warps, for sm_80 and later
// (kernels/conv/implicit_gemm/implicit_gemm.h). Only .cu files include this header.
//
// Blocks are persistent: in each round every block takes one tile of output rows and columns (WarpStageWalker::TileOf).
// All threads of a block copy and multiply. A stage holds two slices (slices.h). Stages go through a ring in shared
// memory, and copies fill the ring ahead of the products, also into the next tile. When a stage has arrived, the
// threads start the copy of the stage that is farthest ahead, look up the input rows of the stage after that, and
// multiply the stage that has arrived. Every thread walks over the masks of the block's tiles for itself, so no thread
// waits for another before it looks up input rows. One thread writes a descriptor of each stage (WarpStageNote), which
// all threads read when they copy and multiply the stage's data.
//
// All rows of a warp belong to one tile of 64 rows (tiles.h). The warp skips the slices that this tile does not have.

#include <cstdint>

#include "kernels/conv/implicit_gemm/arguments.cuh"
#include "kernels/conv/implicit_gemm/store_sums.cuh"
#include "kernels/conv/implicit_gemm/warp_stages.cuh"
#include "kernels/core/warp_products.cuh"

namespace voxserve::kernels::cuda {

// The descriptor, in shared memory, of a stage whose data the threads copy and multiply later.
struct alignas(16) WarpStageNote {
  int32_t row_tile;
  int32_t column;
  uint32_t has;  // WarpStage::has: has[0] in the lower 16 bits, has[1] in the upper 16
  int32_t is_last;
  int32_t slices[2];  // the indices of the stage's two slices in the packed weights (SliceAxis); -1: no slice
};

// Copies stages to shared memory.
template <typename T, typename Shape>
class WarpStageCopier {
 public:
  __device__ WarpStageCopier(const ImplicitGemmArguments<T>& arguments, int32_t num_out, uint32_t ring)
      : arguments_(arguments), num_out_(num_out) {
    // Eight threads copy two rows of a slice, whose vectors are in different banks. The next eight threads copy the
    // same rows of the stage's other slice.
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const int32_t vector = thread % kSliceVectors;
    slice_ = thread / (2 * kSliceVectors) % kSlicesAStage;
    first_row_ = thread / kSliceVectors % 2 + thread / (2 * kSliceVectors * kSlicesAStage) * 2;
    to_ = ring + slice_ * Shape::kInputBytes + SwizzledSliceVector(first_row_, vector) * kSliceVectorBytes;
    weights_to_ = ring + kSlicesAStage * Shape::kInputBytes + thread * kSliceVectorBytes;
    offset_in_slice_ = vector * kValues / arguments.axis.offset_values;
    channel_in_slice_ = vector * kValues % arguments.axis.offset_values;
  }

  // Looks up the input rows that the thread will copy to a stage. Thread 0 also writes the stage's note for all
  // threads.
  __device__ void Find(const WarpStage<Shape>& stage, WarpStageNote& note) {
    if (threadIdx.x == 0) Note(stage, note);
    channel_ = (slice_ == 0 ? stage.parts[0] : stage.parts[1]) * arguments_.axis.slice_values + channel_in_slice_;
    // Channels after the end of a row become zeros.
    const uint32_t of_slice = slice_ == 0 ? stage.has[0] : stage.has[1];
    const uint32_t has = channel_ < arguments_.in_channels ? of_slice >> offset_in_slice_ : 0;
    if (arguments_.tiles.in_rows == nullptr) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const int32_t row = stage.row_tile * Shape::kRows + first_row_ + i * kRowsAtOnce;
        rows_[i] = HasTileOf(has, i) && row < num_out_ ? row : -1;
      }
      return;
    }
    const int64_t num_offsets = arguments_.tiles.num_offsets;
    const int32_t offset = (slice_ == 0 ? stage.offsets[0] : stage.offsets[1]) + offset_in_slice_;
    const int32_t* const from = arguments_.tiles.in_rows + first_row_ +
                                (stage.row_tile * Shape::kMaskTiles * num_offsets + offset) * kMaskTileRows;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int64_t tile = num_offsets * (i / kCopiesATile * kMaskTileRows);
      rows_[i] = LoadIndexIf(HasTileOf(has, i), from + tile + i % kCopiesATile * kRowsAtOnce);
    }
  }

  // Starts to copy the stage of the last Find to a slot of the ring. All threads must see the note of that stage.
  __device__ void Copy(int32_t slot, const WarpStageNote& note) const {
    CopyRows(to_ + slot * Shape::kStageBytes);
    // Columns after the weights' last column become zeros.
    const int32_t bytes = (arguments_.padded_out_channels - note.column) * kSliceBytes;
    const int64_t slice_bytes = int64_t{arguments_.padded_out_channels} * kSliceBytes;
    const int32_t thread_bytes = static_cast<int32_t>(threadIdx.x) * kSliceVectorBytes;
    const unsigned char* const of_column = arguments_.weights + note.column * kSliceBytes + thread_bytes;
#pragma unroll
    for (int s = 0; s < kSlicesAStage; ++s) {
      if (note.slices[s] < 0) continue;
      const unsigned char* const from = of_column + note.slices[s] * slice_bytes;
      const uint32_t to = weights_to_ + slot * Shape::kStageBytes + s * Shape::kWeightBytes;
#pragma unroll
      for (int32_t first = 0; first < Shape::kWeightBytes; first += Shape::kThreads * kSliceVectorBytes) {
        CopyAsync16(to + first, from + first, first + thread_bytes < bytes ? kSliceVectorBytes : 0);
      }
    }
  }

 private:
  static constexpr int kRowsAtOnce = Shape::kThreads / (kSliceVectors * kSlicesAStage);
  static constexpr int kCopies = Shape::kRows / kRowsAtOnce;
  static constexpr int kCopiesATile = static_cast<int>(kMaskTileRows) / kRowsAtOnce;
  static constexpr int32_t kValues = kSliceVectorBytes / static_cast<int32_t>(sizeof(T));
  static_assert(kRowsAtOnce % 8 == 0, "a thread's rows are swizzled alike");
  static_assert(Shape::kWeightBytes % (Shape::kThreads * kSliceVectorBytes) == 0);

  // Returns true if the tile of 64 rows that holds the thread's i-th row has the thread's offset.
  __device__ static bool HasTileOf(uint32_t has, int i) { return (has >> (i / kCopiesATile * kTileBits) & 1) != 0; }

  __device__ void Note(const WarpStage<Shape>& stage, WarpStageNote& note) const {
    note.row_tile = stage.row_tile;
    note.column = stage.column;
    note.has = stage.has[0] | stage.has[1] << 16;
    note.is_last = stage.is_last ? 1 : 0;
#pragma unroll
    for (int s = 0; s < kSlicesAStage; ++s) {
      const int32_t slice = stage.offsets[s] / arguments_.axis.offsets_a_slice * arguments_.axis.slices_an_offset;
      note.slices[s] = stage.has[s] == 0 ? -1 : slice + stage.parts[s];
    }
  }

  __device__ void CopyRows(uint32_t to) const {
    const int32_t count = min(kValues, arguments_.in_channels - channel_);
    const int32_t bytes = count * static_cast<int32_t>(sizeof(T)), pitch_bytes = arguments_.in_pitch_bytes;
    const auto* const in = reinterpret_cast<const char*>(arguments_.in + channel_);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const uint32_t to_row = to + i * kRowsAtOnce * kSliceBytes;
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
  int32_t rows_[kCopies];  // -1: zeros
};

template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksAnSm)
    WarpImplicitGemmKernel([[maybe_unused]] const __grid_constant__ ImplicitGemmArguments<T> arguments) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  using Tile = WarpTile<T, Shape::kRows, Shape::kColumns, Shape::kThreads, kSliceBytes>;
  static_assert(kMaskTileRows % (Tile::kRowTiles * 16) == 0, "all rows of a warp belong to one tile");
  constexpr int kAhead = Shape::kStages - 1;
  constexpr int kNotes = Shape::kStages + 1;  // a stage is noted before its slot is free
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ WarpStageNote notes[kNotes];
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
    const WarpStageNote& note = notes[place];
    if (note.row_tile < 0) break;
    fill(before);
    const uint32_t inputs = ring + slot * Shape::kStageBytes;
    const uint32_t weights = inputs + kSlicesAStage * Shape::kInputBytes;
    const uint32_t has = note.has >> has_shift;
#pragma unroll
    for (int s = 0; s < kSlicesAStage; ++s) {
      if ((has >> (16 * s) & ((1u << kTileBits) - 1)) == 0) continue;
      tile.Multiply(inputs + s * Shape::kInputBytes, weights + s * Shape::kWeightBytes);
    }
    if (note.is_last == 0) continue;
    const int64_t first_place = int64_t{note.row_tile} * Shape::kRows + Tile::WarpRow();
    const int32_t first_column = note.column + Tile::WarpColumn();
#pragma unroll
    for (int i = 0; i < Tile::kRowTiles; ++i) {
      float sums[Tile::kColumnTiles * 4];
#pragma unroll
      for (int j = 0; j < Tile::kColumnTiles * 4; ++j) {
        sums[j] = tile.sums[i][j / 4][j % 4];
        tile.sums[i][j / 4][j % 4] = 0;
      }
      const WarpRows rows = WarpRowsOf(arguments, first_place + i * 16, num_out);
      constexpr bool kMayRotate = sizeof(T) < sizeof(float);
      WarpSumsStore<T, Tile::kColumnTiles * 4, Shape::kColumns == kMaxLabelChannels, kMayRotate> store;
      store.Load(arguments, rows, first_column);
      store.Store(arguments, sums, rows, first_column);
    }
  }
#else
  __trap();  // unreachable: CodeVersion tells callers that this code is missing
#endif
}

}  // namespace voxserve::kernels::cuda
