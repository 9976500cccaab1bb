#pragma once

// The roles of warp_groups.cuh that copy to stages: the numbers of input rows, the rows, and the weights. Included by
// .cu files alone.

#include <cstdint>

#include "kernels/conv/implicit_gemm/arguments.cuh"
#include "kernels/conv/implicit_gemm/warp_group_ring.cuh"
#include "kernels/core/barriers.cuh"

namespace voxserve::kernels::cuda {

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

// A group of copying warps.
template <typename T, typename Shape>
class RowCopier {
 public:
  __device__ RowCopier(const ImplicitGemmArguments<T>& arguments, const Ring& ring)
      : arguments_(arguments),
        ring_(ring),
        num_out_(static_cast<int32_t>(NumRows(arguments.tiles.out_capacity, arguments.tiles.num_out))) {
    // Eight threads copy a stage's vectors of kRowsOfThread rows, one after the other.
    const int32_t thread = static_cast<int32_t>(threadIdx.x) % kGroupThreads;
    const int32_t vector = thread % kSliceVectors;
    slice_ = thread / kSliceVectors % kSlicesAStage;
    first_row_ = thread / (kSliceVectors * kSlicesAStage) * kRowsOfThread;
    // The second slice's threads have the neighbour's row first, so that the eight write different banks.
    const uint32_t of_rows = ring.stages + slice_ * Shape::kInputBytes + (first_row_ + slice_) * kSliceBytes;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int32_t place = SwizzledSliceVector(first_row_ + 2 * pair, vector) % kSliceVectors;
      to_[pair] = of_rows + 2 * pair * kSliceBytes + place * kSliceVectorBytes;
    }
    offset_in_slice_ = vector * kValues / arguments.axis.offset_values;
    channel_in_slice_ = vector * kValues % arguments.axis.offset_values;
    indices_ = ring.indices + (slice_ * Shape::kWarpGroups * kTileBits + offset_in_slice_) * kTileIndexBytes +
               first_row_ * static_cast<int32_t>(sizeof(int32_t));
  }

  __device__ void Run() {
    WaitForEarlierKernels();  // they make the input
    const int32_t group = static_cast<int32_t>(threadIdx.x) / kGroupThreads - Shape::kWarpGroups;
    RingPlace<Shape::kStages> place;
    RingPlace<Shape::kNotes> note_place;
    place.Advance(group);
    note_place.Advance(group);
    for (;; place.Advance(Shape::kCopyGroups), note_place.Advance(Shape::kCopyGroups)) {
      WaitForBarrier(ring_.indexed + place.slot * 8, place.parity);
      const StageNote& note = ring_.notes[note_place.slot];
      const bool is_over = (note.flags & kNoStage) != 0;
      const int32_t channel = note.channels[slice_] + channel_in_slice_;
      // 0 where there is no slice.
      const uint32_t has = channel < arguments_.in_channels ? note.has[slice_] >> offset_in_slice_ : 0;
      int32_t rows[Shape::kWarpGroups][kRowsOfThread];  // -1: zeros
#pragma unroll
      for (int t = 0; t < Shape::kWarpGroups; ++t) {
        FindRows(place.slot, note.row_tile, t, (has >> (kTileBits * t) & 1) != 0, rows[t]);
      }
      WaitForBarrier(ring_.empty + place.slot * 8, place.parity ^ 1);
      if (is_over) break;
      Copy(place.slot, channel, rows);
    }
    ArriveAtBarrier(ring_.full + place.slot * 8);  // the stage behind the last is full too
  }

 private:
  static constexpr int kRowsOfThread =
      static_cast<int>(kMaskTileRows) / (kGroupThreads / (kSliceVectors * kSlicesAStage));
  static constexpr int kPairs = kRowsOfThread / 2;
  static constexpr int32_t kValues = kSliceVectorBytes / static_cast<int32_t>(sizeof(T));
  static_assert(kSlicesAStage == 2 && kRowsOfThread == 4);

  // The thread's rows of a tile, in the order in which it copies them.
  __device__ void FindRows(int32_t slot, int32_t row_tile, int32_t tile, bool has,
                           int32_t (&rows)[kRowsOfThread]) const {
    if (arguments_.tiles.in_rows != nullptr) {
      const uint32_t from = indices_ + slot * Shape::kIndexBytes + tile * kTileBits * kTileIndexBytes;
      const int4 found = LoadShared4(from);
      rows[0] = found.x;
      rows[1] = found.y;
      rows[2] = found.z;
      rows[3] = found.w;
    } else {
      const int32_t first = row_tile * Shape::kRows + tile * static_cast<int32_t>(kMaskTileRows) + first_row_;
#pragma unroll
      for (int i = 0; i < kRowsOfThread; ++i) rows[i] = first + i < num_out_ ? first + i : -1;
    }
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int32_t first = rows[2 * pair], second = rows[2 * pair + 1];
      rows[2 * pair] = !has ? -1 : slice_ == 0 ? first : second;
      rows[2 * pair + 1] = !has ? -1 : slice_ == 0 ? second : first;
    }
  }

  __device__ void Copy(int32_t slot, int32_t channel, const int32_t (&rows)[Shape::kWarpGroups][kRowsOfThread]) const {
    const uint32_t full = ring_.full + slot * 8;
    const auto* const in = reinterpret_cast<const char*>(arguments_.in + channel);
    const int32_t pitch_bytes = arguments_.in_pitch_bytes;
    if (arguments_.has_whole_in_vectors) {
      CopyRows(slot, rows, [=](uint32_t to, int32_t row) { CopyRowVectorAsync(to, in, row, pitch_bytes); });
      ArriveWithCopies(full);
      return;
    }
    const int32_t count = min(kValues, arguments_.in_channels - channel);
    if (arguments_.has_in_vectors) {
      const int32_t bytes = count * static_cast<int32_t>(sizeof(T));
      CopyRows(slot, rows, [=](uint32_t to, int32_t row) { CopyRowPartAsync(to, in, row, pitch_bytes, bytes); });
      ArriveWithCopies(full);
    } else {
      CopyRows(slot, rows, [&](uint32_t to, int32_t row) { CopyValues(to, in, row, count, arguments_); });
      ArriveAtBarrier(full);
    }
  }

  // Calls copy(to, row) for each of the thread's rows.
  template <typename CopyRow>
  __device__ void CopyRows(int32_t slot, const int32_t (&rows)[Shape::kWarpGroups][kRowsOfThread],
                           const CopyRow& copy) const {
#pragma unroll
    for (int t = 0; t < Shape::kWarpGroups; ++t) {
#pragma unroll
      for (int i = 0; i < kRowsOfThread; ++i) {
        // The other row of a pair lies 64 bytes on, or back.
        const uint32_t first =
            to_[i / 2] + slot * Shape::kStageBytes + t * static_cast<int>(kMaskTileRows) * kSliceBytes;
        copy(i % 2 == 0 ? first : first ^ kSliceBytes, rows[t][i]);
      }
    }
  }

  const ImplicitGemmArguments<T>& arguments_;
  const Ring ring_;
  const int32_t num_out_;
  // The thread's vectors.
  uint32_t to_[kPairs];  // the first of two rows, in the first stage
  uint32_t indices_;     // in the first stage
  int32_t slice_;        // of a stage
  int32_t first_row_;    // of a tile
  int32_t offset_in_slice_;
  int32_t channel_in_slice_;
};

// Copies the numbers of each stage's input rows. By one warp.
template <typename T, typename Shape>
__device__ void CopyIndices(const ImplicitGemmArguments<T>& arguments, const Ring& ring) {
  // 16 threads copy those of a tile at one offset, 16 bytes each.
  constexpr int32_t kThreads = kTileIndexBytes / kSliceVectorBytes;
  constexpr int32_t kTilesAtOnce = Shape::kWarpGroups < 32 / kThreads ? Shape::kWarpGroups : 32 / kThreads;
  const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t lane_tile = lane / kThreads;
  const bool has_several = arguments.axis.offsets_a_slice > 1;
  const int32_t num_offsets = arguments.tiles.num_offsets;
  const int32_t* const in_rows = arguments.tiles.in_rows;
  const int32_t* const of_lane = in_rows + int64_t{lane_tile} * num_offsets * kMaskTileRows + lane % kThreads * 4;
  const uint32_t to_lane = ring.indices + lane_tile * kTileBits * kTileIndexBytes + lane % kThreads * kSliceVectorBytes;
  int32_t groups_left = Shape::kCopyGroups;  // each has to see an end of its own
  RingPlace<Shape::kStages> place;
  for (RingPlace<Shape::kNotes> note_place; groups_left > 0; note_place.Advance(), place.Advance()) {
    WaitForBarrier(ring.noted + note_place.slot * 8, note_place.parity);
    const StageNote& note = ring.notes[note_place.slot];
    if ((note.flags & kNoStage) != 0) --groups_left;
    WaitForBarrier(ring.full + place.slot * 8, place.parity ^ 1);  // nobody reads those of the round before
    if (in_rows != nullptr && lane_tile < kTilesAtOnce) {
#pragma unroll
      for (int32_t slice = 0; slice < kSlicesAStage; ++slice) {
#pragma unroll
        for (int32_t tile = 0; tile < Shape::kWarpGroups; tile += kTilesAtOnce) {
          const uint32_t has = note.has[slice] >> (kTileBits * (tile + lane_tile)) & ((1u << kTileBits) - 1);
          const int32_t* const from = of_lane + int64_t{note.index_tiles[slice] + tile * num_offsets} * kMaskTileRows;
          const uint32_t to = to_lane + place.slot * Shape::kIndexBytes +
                              (slice * Shape::kWarpGroups + tile) * kTileBits * kTileIndexBytes;
          if ((has & 1) != 0) CopyAsync16(to, from, 16);
          if (!has_several) continue;
#pragma unroll
          for (int32_t bit = 1; bit < kTileBits; ++bit) {
            if ((has >> bit & 1) != 0) CopyAsync16(to + bit * kTileIndexBytes, from + bit * kMaskTileRows, 16);
          }
        }
      }
    }
    ArriveWithCopies(ring.indexed + place.slot * 8);
  }
}

// Has the weights of each stage's slices copied, in bulk, and, with an item's last stage, the tile's output rows. By
// one thread.
template <typename T, typename Shape>
__device__ void CopyWeights(const ImplicitGemmArguments<T>& arguments, const Ring& ring) {
  RingPlace<Shape::kStages> place;
  for (RingPlace<Shape::kNotes> note_place;; note_place.Advance(), place.Advance()) {
    WaitForBarrier(ring.noted + note_place.slot * 8, note_place.parity);
    const StageNote& note = ring.notes[note_place.slot];
    const uint32_t flags = note.flags;
    const int32_t column = note.column, row_tile = note.row_tile;
    const int32_t weights[kSlicesAStage] = {note.weights[0], note.weights[1]};
    const uint32_t bytes = min(Shape::kColumns, arguments.padded_out_channels - column) * kSliceBytes;
    const bool has_rows = (flags & kLastStage) != 0 && arguments.tiles.out_rows != nullptr;
    uint32_t expected = has_rows ? Shape::kOutRowBytes : 0;
#pragma unroll
    for (const int32_t of_slice : weights) expected += of_slice < 0 ? 0 : bytes;
    const uint32_t full = ring.full + place.slot * 8;
    WaitForBarrier(ring.empty + place.slot * 8, place.parity ^ 1);
    ArriveExpecting(full, expected);
    if ((flags & kNoStage) != 0) return;
    uint32_t to = ring.stages + place.slot * Shape::kStageBytes + kSlicesAStage * Shape::kInputBytes;
#pragma unroll
    for (const int32_t of_slice : weights) {
      if (of_slice >= 0) CopyBulk(to, arguments.weights + int64_t{of_slice} * kSliceVectorBytes, bytes, full);
      to += Shape::kWeightBytes;
    }
    if (!has_rows) continue;
    const int32_t* const rows = arguments.tiles.out_rows + int64_t{row_tile} * Shape::kRows;
    CopyBulk(ring.out_rows + place.slot * Shape::kOutRowBytes, rows, Shape::kOutRowBytes, full);
  }
}

#endif

}  // namespace voxserve::kernels::cuda
