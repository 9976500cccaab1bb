#pragma once

// BrickSlots looks up bricks in a BrickTable, for kernels. NearBricks holds the bricks around the output rows of a
// block of SearchNeighboursKernel: a row's cells begin at a lowest cell and lie within two bricks on each axis, the
// row's near bricks. Only .cu files include this header.

#include <cstdint>

#include "kernels/coordinates/brick_table.h"
#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/hash_slots.cuh"
#include "kernels/coordinates/morton_key.h"
#include "kernels/core/row_tiles.cuh"

namespace voxserve::kernels::cuda {

// The least number of slots per key of the level. Most bricks have several sites, so far fewer slots are used.
inline constexpr int64_t kBrickSlotsAKey = 2;

// Cuts a MortonKey in two: the upper bits are the brick's key, the lower bits the cell's place in the brick.
template <int kDimension>
struct BrickPlaces {
  static constexpr int kLog2Side = 6 / kDimension;
  static constexpr int32_t kSide = 1 << kLog2Side;  // cells per axis
  static constexpr int kBits = kLog2Side * kDimension;
  static constexpr uint32_t kMask = (1u << kBits) - 1;

  __device__ static uint64_t BrickOf(uint64_t key) { return key >> kBits; }
  __device__ static uint32_t PlaceOf(uint64_t key) { return static_cast<uint32_t>(key) & kMask; }

  // Coordinate returns a place's coordinate on an axis; OnAxis returns the bits of a place that a coordinate sets. The
  // first axis is the most significant, as in a MortonKey.
  __device__ static int32_t Coordinate(uint32_t place, int axis) {
    int32_t coordinate = 0;
#pragma unroll
    for (int bit = 0; bit < kLog2Side; ++bit) {
      coordinate |= static_cast<int32_t>(place >> (bit * kDimension + kDimension - 1 - axis) & 1) << bit;
    }
    return coordinate;
  }
  __device__ static uint32_t OnAxis(int32_t coordinate, int axis) {
    uint32_t place = 0;
#pragma unroll
    for (int bit = 0; bit < kLog2Side; ++bit) {
      place |= (static_cast<uint32_t>(coordinate) >> bit & 1) << (bit * kDimension + kDimension - 1 - axis);
    }
    return place;
  }
};

// Returns the row of a place in a brick, or -1 if the place is no site.
__device__ inline int32_t RowInBrick(uint64_t mask, int32_t first_row, uint32_t place) {
  if ((mask >> place & 1) == 0) return -1;
  return first_row + __popcll(mask & ((uint64_t{1} << place) - 1));
}

class BrickSlots {
 public:
  __device__ explicit BrickSlots(const BrickTable& table)
      : slots_(kBrickSlotsAKey * NumRows(table.capacity, table.num_keys), table.seed),
        keys_(table.brick_keys),
        bricks_(table.bricks) {}

  // keys: keys of bricks (BrickPlaces::BrickOf). Sets found[i] to the brick of keys[i] for each set bit i of `wanted`.
  // If the bit is not set, or the table does not have the brick, found[i] gets a brick without sites. All keys of a
  // thread are looked up together, so that their memory accesses overlap.
  template <int kKeys>
  __device__ void Find(const uint64_t (&keys)[kKeys], uint32_t wanted, Brick (&found)[kKeys]) const {
    static_assert(kKeys <= 32);
    uint32_t slot[kKeys];
    uint64_t seen[kKeys];
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      slot[i] = slots_.First(keys[i]);
      found[i] = {.mask = 0, .first_row = 0, .unused = 0};
    }
    uint32_t there = 0;
    while (wanted != 0) {
#pragma unroll
      for (int i = 0; i < kKeys; ++i) {
        if ((wanted >> i & 1) != 0) seen[i] = keys_[slot[i]];
      }
#pragma unroll
      for (int i = 0; i < kKeys; ++i) {
        if ((wanted >> i & 1) == 0) continue;
        if (seen[i] == keys[i] || seen[i] == kNoKey) {
          there |= static_cast<uint32_t>(seen[i] != kNoKey) << i;
          wanted &= ~(1u << i);
        } else {
          slot[i] = slots_.Next(slot[i]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      if ((there >> i & 1) == 0) continue;
      const ulonglong2 words = *reinterpret_cast<const ulonglong2*>(bricks_ + slot[i]);
      found[i] = {.mask = words.x, .first_row = static_cast<int32_t>(words.y), .unused = 0};
    }
  }

 private:
  HashSlots slots_;
  const uint64_t* keys_;
  const Brick* bricks_;
};

inline constexpr int kSearchThreads = 128;
inline constexpr int kCellsAPiece = 32;  // the most cells of a row that are searched at once, apart from boxes

// The bricks near the output rows of a block's threads, and the input rows found in them. Neighbouring rows of a warp
// whose lowest cells are in one brick are a run: they have the same near bricks, which are looked up once. A run has a
// slot, one of those of its warp. A brick's mask is cut into words of 32 places.
template <int kDimension>
struct NearBricks {
  static constexpr int kCount = 1 << kDimension;
  static constexpr int kWordBits = 32;
  static constexpr int kWordsABrick = ((1 << BrickPlaces<kDimension>::kBits) + kWordBits - 1) / kWordBits;
  static constexpr int kWords = kCount * kWordsABrick;

  // The odd pitch puts the words of a slot into different banks.
  uint32_t words[kWords][kSearchThreads + 1];
  int32_t first_rows[kWords][kSearchThreads + 1];  // the row of a word's first site
  uint64_t lowest[kSearchThreads];                 // by slot: the lowest cell of one of the run's rows
  uint32_t wanted[kSearchThreads];                 // by slot: bit i is set if a row of the run reaches near brick i
  int32_t inputs[kCellsAPiece][kSearchThreads];
};

// Returns the key of near brick i of a row with this lowest cell.
template <int kDimension>
__device__ uint64_t NearBrickKey(uint64_t lowest, int i) {
  using Key = MortonKey<kDimension>;
  using Places = BrickPlaces<kDimension>;
  uint64_t moved = Key::SampleFloor(Key::Sample(lowest));
#pragma unroll
  for (int axis = 0; axis < kDimension; ++axis) {
    Axes step = {0, 0, 0, 0};
    step[axis] = Places::kSide;
    const uint64_t translation = (i >> axis & 1) != 0 ? Key::Translation(step) : 0;
    moved |= Key::TranslateAxis(lowest, translation, axis);
  }
  return Places::BrickOf(moved);
}

// Looks up the bricks of the warp's cells. All lanes call it. is_row: the lane has cells, which begin at `lowest` and
// reach at most reach[axis] cells farther. place: the place of `lowest` in its brick. Returns the slot of the lane's
// run.
template <int kDimension>
__device__ int FindNearBricks(const BrickTable& table, const int32_t (&reach)[kMaxDimension], bool is_row,
                              uint64_t lowest, const int32_t (&place)[kDimension], NearBricks<kDimension>& near) {
  using Near = NearBricks<kDimension>;
  using Places = BrickPlaces<kDimension>;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int first_slot = static_cast<int>(threadIdx.x) - lane;
  const uint64_t brick = is_row ? Places::BrickOf(lowest) : kNoKey;
  const uint64_t brick_before = __shfl_up_sync(~0u, brick, 1);
  const bool is_first = lane == 0 || brick != brick_before;
  const uint32_t firsts = __ballot_sync(~0u, is_first);
  const uint32_t to_lane = (2u << lane) - 1;
  const int slot = first_slot + __popc(firsts & to_lane) - 1;
  // For the first lane of a run: the lanes of the run.
  const uint32_t later = firsts & ~to_lane;
  const uint32_t run = (later == 0 ? ~0u : (later & (~later + 1)) - 1) & ~0u << lane;
  uint32_t wanted = is_row ? 1 : 0;
#pragma unroll
  for (int axis = 0; axis < kDimension; ++axis) {
    // Cells of some of the rows reach into the next brick on this axis.
    const uint32_t crosses = __ballot_sync(~0u, place[axis] + reach[axis] >= Places::kSide);
    if ((crosses & run) != 0) wanted |= wanted << (1 << axis);
  }
  __syncwarp();  // all lanes have read what the slots had before
  if (is_first) {
    near.lowest[slot] = lowest;
    near.wanted[slot] = wanted;
  }
  __syncwarp();
  // A lane looks up several of the warp's bricks at a time.
  constexpr int kBricksAtOnce = 2;
  const int num_bricks = __popc(firsts) * Near::kCount;
  for (int first = lane; first < num_bricks; first += kBricksAtOnce * kWarpThreads) {
    uint64_t keys[kBricksAtOnce];
    Brick found[kBricksAtOnce];
    uint32_t is_wanted = 0;
#pragma unroll
    for (int n = 0; n < kBricksAtOnce; ++n) {
      const int number = min(first + n * kWarpThreads, num_bricks - 1);
      const int of = first_slot + number / Near::kCount, i = number % Near::kCount;
      keys[n] = NearBrickKey<kDimension>(near.lowest[of], i);
      is_wanted |= (near.wanted[of] >> i & 1) << n;
    }
    BrickSlots(table).Find(keys, is_wanted, found);
#pragma unroll
    for (int n = 0; n < kBricksAtOnce; ++n) {
      const int number = first + n * kWarpThreads;
      if (number >= num_bricks) break;
      const int of = first_slot + number / Near::kCount, i = number % Near::kCount;
      int32_t first_row = found[n].first_row;
#pragma unroll
      for (int w = 0; w < Near::kWordsABrick; ++w) {
        const auto word = static_cast<uint32_t>(found[n].mask >> (w * Near::kWordBits));
        near.words[i * Near::kWordsABrick + w][of] = word;
        near.first_rows[i * Near::kWordsABrick + w][of] = first_row;
        first_row += __popc(word);
      }
    }
  }
  __syncwarp();
  return slot;
}

// Encodes the position `at`, in cells from the lowest corner of the near bricks: the brick's number on this axis, and
// below it the bits of the place. The OR over all axes is a cell's position. Its bits from 5 on are the number of a
// word of NearBricks, the bits below it a bit of this word.
template <int kDimension>
__device__ uint32_t NearPlace(int32_t at, int axis) {
  using Places = BrickPlaces<kDimension>;
  constexpr int kPlaceBits = Places::kBits < 5 ? 5 : Places::kBits;
  static_assert((NearBricks<kDimension>::kWordsABrick << 5) == 1 << kPlaceBits);
  return static_cast<uint32_t>(at >> Places::kLog2Side) << (kPlaceBits + axis) | Places::OnAxis(at, axis);
}

}  // namespace voxserve::kernels::cuda
