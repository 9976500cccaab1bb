#pragma once

// The role of warp_groups.cuh that copies input rows to stages. Included by .cu files alone.

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
    // Two fills in turns, which are never moved: a move would wait for the rows.
    Fill fills[2];
    bool is_over = !FindRows(fills[0]);
    while (!is_over) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (is_over) break;
        is_over = !FindRows(fills[1 - i]);  // they arrive meanwhile
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

  // The vectors that the thread copies to a stage.
  struct Fill {
    int32_t channel;
    int32_t rows[Shape::kWarpGroups][kCopiesATile];  // -1: zeros
  };

  // Looks up the rows of the next note. Returns false behind the last stage.
  __device__ bool FindRows(Fill& fill) {
    WaitForBarrier(ring_.noted + note_place_.slot * 8, note_place_.parity);
    const StageNote& note = ring_.notes[note_place_.slot];
    const int32_t row_tile = note.row_tile;
    if (row_tile < 0) return false;
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
      return true;
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
    return true;
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
  // The thread's vectors.
  uint32_t to_;        // in the first stage
  int32_t slice_;      // of a stage
  int32_t first_row_;  // of a tile
  int32_t offset_in_slice_;
  int32_t channel_in_slice_;
  const int32_t* in_rows_;
};

#endif

}  // namespace voxserve::kernels::cuda
