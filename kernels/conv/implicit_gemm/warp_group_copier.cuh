#pragma once

// This header has two roles of the kernel in warp_groups.cuh: RowCopier copies input rows into the stages of the ring,
// CopyWeights copies weights. warp_groups.cuh explains stages, notes and the ring. Only .cu files include this header.

#include <cstdint>

#include "kernels/conv/implicit_gemm/arguments.cuh"
#include "kernels/conv/implicit_gemm/warp_group_ring.cuh"
#include "kernels/core/barriers.cuh"

namespace voxserve::kernels::cuda {

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

// A group of four warps that copies input rows.
template <typename T, typename Shape>
class RowCopier {
 public:
  __device__ RowCopier(const ImplicitGemmArguments<T>& arguments, const Ring<Shape>& ring)
      : arguments_(arguments),
        ring_(ring),
        num_out_(static_cast<int32_t>(NumRows(arguments.tiles.out_capacity, arguments.tiles.num_out))) {
    // Eight threads share kRowsOfThread rows: each thread copies one vector of every row, row after row.
    const int32_t thread = static_cast<int32_t>(threadIdx.x) % kGroupThreads;
    const int32_t vector = VectorInSlice();
    slice_ = thread / Shape::kSliceVectors % Shape::kSlices;
    first_row_ = thread / kStageVectors * kRowsOfThread;
    // Threads of the second panel begin with the neighbouring row, so that the eight threads write different banks.
    const uint32_t of_rows = ring.stages + Panel() * Shape::kInputBytes + (first_row_ + Panel()) * Shape::kPanelBytes;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int32_t place =
          SwizzledSliceVector(first_row_ + 2 * pair, thread % Shape::kPanelVectors) % Shape::kPanelVectors;
      to_[pair] = of_rows + 2 * pair * Shape::kPanelBytes + place * kSliceVectorBytes;
    }
    offset_in_slice_ = vector * kValues / arguments.axis.offset_values;
    channel_in_slice_ = vector * kValues % arguments.axis.offset_values;
    in_rows_ = arguments.tiles.in_rows;
    if (in_rows_ != nullptr) in_rows_ += offset_in_slice_ * kMaskTileRows + first_row_;
  }

  // Rows that consist of whole vectors have their own code, which calls no function: values that are needed after a
  // call would be kept in memory instead of registers.
  __device__ void Run() {
    if (arguments_.has_whole_in_vectors) {
      CopyStages<true>();
    } else {
      CopyStages<false>();
    }
  }

 private:
  static constexpr int kStageVectors = Shape::kPanels * Shape::kPanelVectors;  // per row
  static constexpr int kRowsOfThread = static_cast<int>(kMaskTileRows) / (kGroupThreads / kStageVectors);
  static constexpr int kPairs = kRowsOfThread / 2;
  static constexpr int32_t kValues = kSliceVectorBytes / static_cast<int32_t>(sizeof(T));
  static_assert(Shape::kPanelBytes == kSliceBytes, "rows in shared memory have the 64-byte swizzle");
  static_assert(Shape::kPanels == 2 && kRowsOfThread == 4);

  static constexpr int32_t kOfShortcut = 1 << 20;  // a power of two above the number of any channel

  // The part of a stage that this thread copies.
  struct Fill {
    int32_t channel;                // the first channel; the shortcut's channels begin at kOfShortcut
    int4 rows[Shape::kWarpGroups];  // the input rows for each tile; -1: zeros
  };

  __device__ static int32_t VectorInSlice() { return static_cast<int32_t>(threadIdx.x) % Shape::kSliceVectors; }
  __device__ int32_t Panel() const { return slice_ / Shape::kSlicesAPanel; }

  template <bool kAreWhole>
  __device__ void CopyStages() {
    const int32_t group = static_cast<int32_t>(threadIdx.x) / kGroupThreads - Shape::kWarpGroups;
    place_.Advance(group);
    note_place_.Advance(group);
    // The two buffers take turns. If the looked-up rows were copied from one buffer to the other instead, the copy
    // would have to wait for their loads.
    Fill fills[2];
    bool is_over = !LookUp(fills[0]);
    WaitForEarlierKernels();  // earlier kernels write the input
    while (!is_over) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (is_over) break;
        is_over = !LookUp(fills[1 - i]);  // the rows arrive while this stage is copied
        WaitForBarrier(ring_.empty + place_.slot * 8, place_.parity ^ 1);
        Copy<kAreWhole>(fills[i]);
        place_.Advance(Shape::kCopyGroups);
      }
    }
    // The stage after the last one holds nothing. It must be marked as full too, since its readers wait for it.
    WaitForBarrier(ring_.empty + place_.slot * 8, place_.parity ^ 1);
    ArriveAtBarrier(ring_.full + place_.slot * 8);
  }

  // Starts to look up the input rows of the group's next stage; the loads end later. Returns false if there are no more
  // stages.
  __device__ bool LookUp(Fill& fill) {
    WaitForBarrier(ring_.noted + note_place_.slot * 8, note_place_.parity);
    const auto& note = ring_.notes[note_place_.slot];
    note_place_.Advance(Shape::kCopyGroups);
    const uint32_t flags = note.flags;
    const SliceNote slice = note.slices[slice_];
    const int32_t row_tile = note.row_tile;
    if ((flags & kNoStage) != 0) return false;
    if ((flags >> (kShortcutBit + slice_) & 1) != 0) {
      LookUpShortcut(slice.channel, row_tile, fill);
      return true;
    }
    fill.channel = slice.channel + channel_in_slice_;
    // slice.has is 0 if there is no slice.
    const uint32_t has = fill.channel < arguments_.in_channels ? slice.has >> offset_in_slice_ : 0;
#pragma unroll
    for (int t = 0; t < Shape::kWarpGroups; ++t) {
      const bool is_there = (has >> (kTileBits * t) & 1) != 0;
      if (in_rows_ != nullptr) {
        const int64_t tile = slice.index_tile + t * arguments_.tiles.num_offsets;
        fill.rows[t] = LoadIndicesIf(is_there, in_rows_ + tile * kMaskTileRows);
      } else {
        const int32_t first = row_tile * Shape::kRows + t * static_cast<int32_t>(kMaskTileRows) + first_row_;
        const int32_t end = is_there ? num_out_ : 0;
        fill.rows[t] = make_int4(first < end ? first : -1, first + 1 < end ? first + 1 : -1,
                                 first + 2 < end ? first + 2 : -1, first + 3 < end ? first + 3 : -1);
      }
    }
    return true;
  }

  // A row of the shortcut's input is an output row.
  __device__ void LookUpShortcut(int32_t first_channel, int32_t row_tile, Fill& fill) const {
    const int32_t channel = first_channel + VectorInSlice() * kValues;
    const bool is_there = channel < arguments_.shortcut_channels;
    fill.channel = kOfShortcut + channel;
    const int32_t* const rows = arguments_.tiles.out_rows + int64_t{row_tile} * Shape::kRows + first_row_;
#pragma unroll
    for (int t = 0; t < Shape::kWarpGroups; ++t) fill.rows[t] = LoadIndicesIf(is_there, rows + t * kMaskTileRows);
  }

  template <bool kAreWhole>
  __device__ void Copy(const Fill& fill) const {
    const uint32_t full = ring_.full + place_.slot * 8;
    if constexpr (kAreWhole) {
      const bool is_of_shortcut = fill.channel >= kOfShortcut;
      const T* const rows = is_of_shortcut ? arguments_.shortcut_in : arguments_.in;
      const auto* const in = reinterpret_cast<const char*>(rows + (fill.channel & (kOfShortcut - 1)));
      const int32_t pitch_bytes = is_of_shortcut ? arguments_.shortcut_pitch_bytes : arguments_.in_pitch_bytes;
      CopyRows(fill, [=](uint32_t to, int32_t row) { CopyRowVectorAsync(to, in, row, pitch_bytes); });
      ArriveWithCopies(full);
    } else {
      const auto* const in = reinterpret_cast<const char*>(arguments_.in + fill.channel);
      const int32_t pitch_bytes = arguments_.in_pitch_bytes;
      const int32_t count = min(kValues, arguments_.in_channels - fill.channel);
      if (arguments_.has_in_vectors) {
        const int32_t bytes = count * static_cast<int32_t>(sizeof(T));
        CopyRows(fill, [=](uint32_t to, int32_t row) { CopyRowPartAsync(to, in, row, pitch_bytes, bytes); });
        ArriveWithCopies(full);
      } else {
        CopyRows(fill, [&](uint32_t to, int32_t row) { CopyValues(to, in, row, count, arguments_); });
        ArriveAtBarrier(full);
      }
    }
  }

  // Calls copy(to, row) for each of the thread's rows.
  template <typename CopyRow>
  __device__ void CopyRows(const Fill& fill, const CopyRow& copy) const {
#pragma unroll
    for (int t = 0; t < Shape::kWarpGroups; ++t) {
      const int32_t rows[kRowsOfThread] = {fill.rows[t].x, fill.rows[t].y, fill.rows[t].z, fill.rows[t].w};
#pragma unroll
      for (int i = 0; i < kRowsOfThread; ++i) {
        // The address of a pair's second row is 64 bytes before or after that of the first.
        const uint32_t first =
            to_[i / 2] + place_.slot * Shape::kStageBytes + t * static_cast<int>(kMaskTileRows) * Shape::kPanelBytes;
        copy(i % 2 == 0 ? first : first ^ Shape::kPanelBytes, Panel() == 0 ? rows[i] : rows[i ^ 1]);
      }
    }
  }

  const ImplicitGemmArguments<T>& arguments_;
  const Ring<Shape> ring_;
  const int32_t num_out_;
  RingPlace<Shape::kStages> place_;
  RingPlace<Shape::kNotes> note_place_;  // the next stage to look up
  // The part of a slice that this thread copies.
  const int32_t* in_rows_;  // the part's indices in the first tile
  uint32_t to_[kPairs];     // destination of the first of two rows, in the first stage
  int32_t slice_;           // within the stage
  int32_t first_row_;       // within the tile
  int32_t offset_in_slice_;
  int32_t channel_in_slice_;
};

// Starts bulk copies of the weights for every kWeightCopiers-th stage. For the last stage of an item it also copies the
// tile's output row numbers. One thread of each weight copier warp calls it; `copier` is the warp's number.
template <typename T, typename Shape>
__device__ void CopyWeights(const ImplicitGemmArguments<T>& arguments, const Ring<Shape>& ring, int32_t copier) {
  RingPlace<Shape::kStages> place;
  RingPlace<Shape::kNotes> note_place;
  place.Advance(copier);
  note_place.Advance(copier);
  for (;; note_place.Advance(kWeightCopiers), place.Advance(kWeightCopiers)) {
    WaitForBarrier(ring.noted + note_place.slot * 8, note_place.parity);
    const auto& note = ring.notes[note_place.slot];
    const uint32_t flags = note.flags;
    const int32_t column = note.column, row_tile = note.row_tile;
    int32_t weights[Shape::kSlices];
#pragma unroll
    for (int s = 0; s < Shape::kSlices; ++s) weights[s] = note.slices[s].weights;
    const uint32_t bytes = min(Shape::kColumns, arguments.padded_out_channels - column) * Shape::kSliceBytes;
    const bool has_rows = (flags & kLastStage) != 0 && arguments.tiles.out_rows != nullptr;
    uint32_t expected = has_rows ? Shape::kOutRowBytes : 0;
#pragma unroll
    for (const int32_t of_slice : weights) expected += of_slice < 0 ? 0 : bytes;
    const uint32_t full = ring.full + place.slot * 8;
    WaitForBarrier(ring.empty + place.slot * 8, place.parity ^ 1);
    ArriveExpecting(full, expected);
    if ((flags & kNoStage) != 0) return;
    uint32_t to = ring.stages + place.slot * Shape::kStageBytes + Shape::kPanels * Shape::kInputBytes;
#pragma unroll
    for (int s = 0; s < Shape::kSlices; ++s, to += Shape::kWeightBytes) {
      if (weights[s] < 0) continue;
      const bool is_of_shortcut = (flags >> (kShortcutBit + s) & 1) != 0;
      const unsigned char* const from = is_of_shortcut ? arguments.shortcut_weights : arguments.weights;
      CopyBulk(to, from + int64_t{weights[s]} * kSliceVectorBytes, bytes, full);
    }
    if (!has_rows) continue;
    const int32_t* const rows = arguments.tiles.out_rows + int64_t{row_tile} * Shape::kRows;
    CopyBulk(ring.out_rows + place.slot * Shape::kOutRowBytes, rows, Shape::kOutRowBytes, full);
  }
}

#endif

}  // namespace voxserve::kernels::cuda
