#pragma once

// This header has the scheduler, the role of warp_groups.cuh that decides which slices each stage holds. Only .cu files
// include it.

#include <cstdint>

#include "kernels/conv/implicit_gemm/arguments.cuh"
#include "kernels/conv/implicit_gemm/warp_group_ring.cuh"
#include "kernels/core/barriers.cuh"

namespace voxserve::kernels::cuda {

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

// Takes the block's items, walks the masks of their tiles and writes the notes of their stages, up to 32 notes at a
// time. One warp runs it.
template <typename T, typename Shape>
class StageScheduler {
 public:
  __device__ StageScheduler(const ImplicitGemmArguments<T>& arguments, const Ring<Shape>& ring)
      : arguments_(arguments), ring_(ring) {
    num_column_tiles_ = (arguments.out_channels + Shape::kColumns - 1) / Shape::kColumns;
    if (arguments.tiles.by_weight != nullptr) {
      by_weight_ = arguments.tiles.by_weight + TilesByWeightBegin(arguments.tiles.out_capacity, Shape::kRows);
    }
    lists_masks_ = by_weight_ != nullptr && arguments.tiles.masks != nullptr && arguments.mask_words == 1;
    const auto num_out = static_cast<int32_t>(NumRows(arguments.tiles.out_capacity, arguments.tiles.num_out));
    num_items_ = (num_out + Shape::kRows - 1) / Shape::kRows * num_column_tiles_ * Shape::kSplitK;
  }

  __device__ void Run() {
    // The first tile is read before it is known whether the tile exists, so that its load overlaps with that of the
    // number of rows.
    auto item = static_cast<int32_t>(blockIdx.x);
    WeighedTile tile = TileOf(item);
    const auto num_blocks = static_cast<int32_t>(gridDim.x);
    const bool takes = arguments_.tiles.counters != nullptr && num_items_ > num_blocks;
    for (int32_t round = 1; item < num_items_; ++round) {
      Schedule(item, tile);
      if (takes) {
        if (round == 1) WaitForEarlierKernels();  // earlier kernels use the same counters
        item = num_blocks + Take();
      } else {
        // Items are ordered by descending weight. The order of the blocks is reversed in every second round, so a block
        // with a heavy item in one round gets a lighter one in the next.
        const auto block = static_cast<int32_t>(blockIdx.x);
        item = round * num_blocks + (round % 2 == 0 ? block : num_blocks - 1 - block);
      }
      if (item < num_items_) tile = TileOf(item);
    }
    if (takes && Lane() == 0) Leave();
    // Every copying group and every thread that copies weights reads its own final note.
    Note over = EmptyStage();
    over.flags = kNoStage;
    Write(over, Lane(), max(Shape::kCopyGroups, kWeightCopiers));
  }

 private:
  using Note = StageNote<Shape::kSlices>;
  static constexpr int kWordBits = 32;
  static constexpr int kStagesAtOnce = 32;
  static_assert(kStagesAtOnce < Shape::kNotes, "no thread of the warp waits for a note of another");
  // A block takes its next item when this many stages of its earlier items are left to multiply. While these stages are
  // multiplied, the scheduler looks up the next item, so no time is lost. The block does not take the item earlier,
  // because another block may become idle first and should then get the item.
  static constexpr int kStagesLeft = Shape::kStages + 12;

  __device__ static int32_t Lane() { return static_cast<int32_t>(threadIdx.x) % 32; }

  __device__ static Note EmptyStage() {
    Note note = {};
#pragma unroll
    for (SliceNote& slice : note.slices) slice.weights = -1;
    return note;
  }

  // Waits until at most kStagesLeft stages are left to multiply, then takes the next item that no block has taken.
  __device__ int32_t Take() {
    if (const int32_t freed = num_noted_ - kStagesLeft; freed >= 0) {
      WaitForBarrier(ring_.freed + freed % Shape::kNotes * 8, static_cast<uint32_t>(freed / Shape::kNotes) & 1);
    }
    int32_t taken = 0;
    if (Lane() == 0) taken = atomicAdd(arguments_.tiles.counters + kItemsTaken, 1);
    return __shfl_sync(~0u, taken, 0);
  }

  // The last block that leaves resets the counters. No block takes an item after that, since each block leaves after it
  // has taken its own last item.
  __device__ void Leave() const {
    if (atomicAdd(arguments_.tiles.counters + kBlocksDone, 1) + 1 < static_cast<int32_t>(gridDim.x)) return;
    arguments_.tiles.counters[kItemsTaken] = 0;
    arguments_.tiles.counters[kBlocksDone] = 0;
  }

  // Returns the tile of Shape::kRows output rows that a work item computes. Without a list by weight it has no masks.
  __device__ WeighedTile TileOf(int32_t item) const {
    const int32_t rank = num_column_tiles_ == 1 ? item / Shape::kSplitK : item / Shape::kSplitK / num_column_tiles_;
    if (by_weight_ == nullptr) return {.tile = rank, .masks = {}};
    const int4 entry = __ldg(reinterpret_cast<const int4*>(by_weight_ + rank));
    return {.tile = entry.x, .masks = {static_cast<uint32_t>(entry.y), static_cast<uint32_t>(entry.z)}};
  }

  // Returns a word of the mask of the t-th 64 rows of a tile.
  __device__ uint32_t MaskOf(const WeighedTile& tile, int t, int32_t word) const {
    if (lists_masks_) return tile.masks[t];
    return arguments_.mask_words == 0 ? 0 : MaskWordOf(arguments_, tile.tile * Shape::kWarpGroups + t, word);
  }

  __device__ void Schedule(int32_t item, const WeighedTile& tile) {
    const int32_t whole = item / Shape::kSplitK, half = item - whole * Shape::kSplitK;
    const int32_t column = num_column_tiles_ == 1 ? 0 : whole % num_column_tiles_ * Shape::kColumns;
    first_part_ = arguments_.axis.slices_an_offset * half / Shape::kSplitK;
    num_parts_ = arguments_.axis.slices_an_offset * (half + 1) / Shape::kSplitK - first_part_;
    inverse_parts_ = __frcp_rn(static_cast<float>(num_parts_));
    first_shortcut_slice_ = arguments_.num_shortcut_slices * half / Shape::kSplitK;
    num_shortcut_slices_ = arguments_.num_shortcut_slices * (half + 1) / Shape::kSplitK - first_shortcut_slice_;
    for (int32_t word = 0; word < max(arguments_.mask_words, 1); ++word) ScheduleWord(tile, column, half, word);
  }

  // Writes the notes of an item's stages for one word of its tile's mask. The last word gets at least one stage, since
  // the item's last stage makes the products store their sums.
  __device__ void ScheduleWord(const WeighedTile& tile, int32_t column, int32_t half, int32_t word) {
    const int32_t row_tile = tile.tile;
    uint32_t masks[Shape::kWarpGroups], all = 0;
#pragma unroll
    for (int t = 0; t < Shape::kWarpGroups; ++t) {
      masks[t] = MaskOf(tile, t, word);
      all |= masks[t];
    }
    all = arguments_.axis.SliceBits(all);
    const int32_t size = arguments_.axis.offsets_a_slice;
    const bool is_last_word = word + 1 >= arguments_.mask_words;
    const int32_t num_of_offsets = __popc(all) * num_parts_;
    const int32_t num_slices = num_of_offsets + (is_last_word ? num_shortcut_slices_ : 0);
    const int32_t num_stages = max((num_slices + Shape::kSlices - 1) / Shape::kSlices, is_last_word ? 1 : 0);
    for (int32_t first = 0; first < num_stages; first += kStagesAtOnce) {
      const int32_t stage = first + Lane();
      Note note = EmptyStage();
      note.row_tile = row_tile;
      note.column = column;
      note.flags = is_last_word && stage + 1 == num_stages ? kLastStage : 0;
      note.half = half;
#pragma unroll
      for (int s = 0; s < Shape::kSlices; ++s) {
        const int32_t number = stage * Shape::kSlices + s;
        if (number >= num_slices) continue;
        if (number >= num_of_offsets) {
          NoteShortcut(first_shortcut_slice_ + number - num_of_offsets, column, s, note);
          continue;
        }
        // This is number / num_parts_ without an integer division, which is slow: the first stages wait for the result.
        const auto rank = static_cast<int32_t>((static_cast<float>(number) + 0.5f) * inverse_parts_);
        const int32_t bit = BitOfRank(all, rank);
        const int32_t offset = word * kWordBits + bit, part = first_part_ + number - rank * num_parts_;
        SliceNote& slice = note.slices[s];
        slice.channel = part * arguments_.axis.slice_values;
        slice.index_tile = row_tile * Shape::kWarpGroups * arguments_.tiles.num_offsets + offset;
        slice.weights = (arguments_.axis.SliceOfPart(offset, part) * arguments_.padded_out_channels + column) *
                        Shape::kSliceVectors;
#pragma unroll
        for (int t = 0; t < Shape::kWarpGroups; ++t) {
          const uint32_t has = masks[t] >> bit & ((1u << size) - 1);
          slice.has |= has << (kTileBits * t);
          if (has != 0) note.flags |= 1u << (Shape::kSlices * t + s);
        }
      }
      Write(note, Lane(), min(num_stages - first, kStagesAtOnce));
    }
  }

  // Notes that slice s of a stage is a slice of the shortcut. All tiles have it.
  __device__ void NoteShortcut(int32_t slice, int32_t column, int s, Note& note) const {
    note.slices[s].channel = slice * arguments_.axis.slice_values;
    note.slices[s].weights = (slice * arguments_.padded_out_channels + column) * Shape::kSliceVectors;
    note.flags |= 1u << (kShortcutBit + s);
#pragma unroll
    for (int t = 0; t < Shape::kWarpGroups; ++t) note.flags |= 1u << (Shape::kSlices * t + s);
  }

  // Returns the set bit that has `rank` set bits below it.
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

  // Writes `count` notes, one per thread.
  __device__ void Write(const Note& note, int32_t index, int32_t count) {
    if (index < count) {
      RingPlace<Shape::kNotes> place = place_;
      place.Advance(index);
      WaitForBarrier(ring_.freed + place.slot * 8, place.parity ^ 1);
      auto* const to = reinterpret_cast<int4*>(ring_.notes + place.slot);  // in the order of StageNote's members
#pragma unroll
      for (int s = 0; s < Shape::kSlices; ++s) {
        const SliceNote& slice = note.slices[s];
        to[s] = make_int4(slice.channel, static_cast<int32_t>(slice.has), slice.index_tile, slice.weights);
      }
      to[Shape::kSlices] = make_int4(note.row_tile, note.column, static_cast<int32_t>(note.flags), note.half);
      ArriveAtBarrier(ring_.noted + place.slot * 8);
    }
    __syncwarp();
    place_.Advance(count);
    num_noted_ += count;
  }

  const ImplicitGemmArguments<T>& arguments_;
  const Ring<Shape> ring_;
  const WeighedTile* by_weight_ = nullptr;  // the tiles of Shape::kRows rows, the heaviest first; null: unknown
  bool lists_masks_;                        // the masks are in by_weight_
  int32_t num_column_tiles_;
  int32_t num_items_;
  int32_t first_part_ = 0;  // the first slice of an offset that the item sums
  int32_t num_parts_ = 0;   // slices of an offset that the item sums
  float inverse_parts_ = 1;
  int32_t first_shortcut_slice_ = 0;  // the first slice of the shortcut that the item sums
  int32_t num_shortcut_slices_ = 0;   // slices of the shortcut that the item sums
  RingPlace<Shape::kNotes> place_;
  int32_t num_noted_ = 0;
};

#endif

}  // namespace voxserve::kernels::cuda
