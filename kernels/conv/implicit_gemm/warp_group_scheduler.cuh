#pragma once

// The role of warp_groups.cuh that decides what stages hold, and the one that brings their weights. Included by .cu
// files alone.

#include <cstdint>

#include "kernels/conv/implicit_gemm/arguments.cuh"
#include "kernels/conv/implicit_gemm/warp_group_ring.cuh"
#include "kernels/core/barriers.cuh"

namespace voxserve::kernels::cuda {

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

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
      to[0] =
          make_int4(note.parts[0], note.parts[1], static_cast<int32_t>(note.has[0]), static_cast<int32_t>(note.has[1]));
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

#endif

}  // namespace voxserve::kernels::cuda
